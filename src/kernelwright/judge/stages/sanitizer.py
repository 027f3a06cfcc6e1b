"""The sanitizer stage: small odd cases in a build that checks every memory access and every undefined operation.

A sanitized library wants its runtime loaded before everything else, so its runners are born in a nursery of their own
that was started with it. Guard pages and the sandbox are those of every runner.
"""

from kernelwright.backends import cpp
from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate
from kernelwright.core.case import Case, Distribution, Layout
from kernelwright.core.errors import BackendUnavailable
from kernelwright.core.verdict import Status
from kernelwright.judge.children import Lost, Runner, Service
from kernelwright.judge.execution import LOAD_SECONDS
from kernelwright.judge.runners import ForkedRunner
from kernelwright.judge.stages.bench import (
    CALL_SECONDS,
    SMOKE_ELEMENTS,
    Bench,
    Failure,
    Found,
    Skipped,
    Told,
    input_elements,
)
from kernelwright.judge.stages.device_sanitizer import sanitize_plans
from kernelwright.judge.stages.layouts import laid_out

ODD_CASES = 8
SLOWER = 10
"""Time a sanitized call may take, in those of a plain one."""
REPORTS = ("AddressSanitizer", "runtime error:")
REPORT_LINES = 4
REPORT_BYTES = 4096
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:abort_on_error=0:exitcode=99:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=0",
}
EXCEPTIONS = "libstdc++.so.6"
"""Loaded with the runtime, which looks once, when it starts, for what throws: found later, it ends the process."""


def sanitize(bench: Bench) -> Told:
    """Run small odd cases under the sanitizers there are: for C++ of our own compiling on a CPU, for plans on a GPU."""
    if bench.is_cpu and brings_native(bench.candidate):
        return _sanitize_native(bench)
    if bench.is_planned:
        return sanitize_plans(bench, odd_cases(bench))
    if bench.is_interpreted:
        return 0, Skipped("an interpreter stands in for the GPU")
    return 0, Skipped(
        f"no sanitizer looks into backend {bench.candidate.backend!r} here: its host code is none of ours"
    )


def brings_native(candidate: Candidate) -> bool:
    """Tell whether a candidate has C++ that we compile: all of it, or what a Python file passes through its door."""
    backend = plugins.load("backends", candidate.backend)
    return candidate.backend == "cpp" or bool(hasattr(backend, "doors") and backend.doors(candidate.source))


def _sanitize_native(bench: Bench) -> Found:
    runtime = cpp.sanitizer_runtime()
    if runtime is None:
        raise BackendUnavailable(
            "cpp", "the compiler's libasan for `ship`", "Install it beside the compiler."
        )
    groups: dict[str, list[Case]] = {}
    for case in odd_cases(bench):
        groups.setdefault(bench.build_key(case), []).append(case)
    watched = OPTIONS | {"LD_PRELOAD": f"{runtime} {EXCEPTIONS}"}
    threads = bench.problem.device.units
    nursery = Service("nursery", "kernelwright.worker.nursery", bench.home, threads, environment=watched)
    checked = 0
    try:
        for cases in groups.values():
            count, failure = _run(bench, nursery, cases)
            checked += count
            if failure:
                return checked, failure
    finally:
        nursery.close()
    return checked, None


def odd_cases(bench: Bench) -> list[Case]:
    """Return small edge cases, a hidden one, the problem's own if small, and odd addresses."""
    edges = [
        case
        for case in bench.op.edge_cases()
        if input_elements(case) <= SMOKE_ELEMENTS
        and case.dtype in bench.dtypes
        and not bench.is_left_out(case)
    ]
    chosen = bench.rng.sample(edges, min(ODD_CASES, len(edges)))
    chosen += [bench.hidden_case(SMOKE_ELEMENTS), bench.probed_case()]
    moved = [case for kind, _, case in laid_out(chosen[-2], bench.rng) if kind is Layout.OFFSET]
    return sorted([*chosen, *moved[:2]], key=input_elements)


def _run(bench: Bench, nursery: Service, cases: list[Case]) -> Found:
    values = {**bench.candidate.values_for(cases[0].hash), cpp.SANITIZED: True}
    result, artefact = bench.builds.get(bench.candidate, values)
    if artefact is None:
        return 0, Failure(result.status, f"the sanitized build failed: {result.log}")
    number = 0
    with bench.arena(cases, range(len(cases))) as arena:
        for index, case in enumerate(cases):
            arena.write_inputs(index, bench.op.make_inputs(case, Distribution.SIGNED, bench.seed))
        arena.poison_outputs()
        with ForkedRunner(nursery, artefact, bench.candidate.backend, arena, bench.home) as runner:
            try:
                runner.ready(LOAD_SECONDS)
                for number in range(len(cases)):
                    runner.run(number, 1, CALL_SECONDS * SLOWER)
            except Lost as lost:
                return number + 1, _told(runner, lost, cases[number])
    return len(cases), None


def _told(runner: Runner, lost: Lost, case: Case) -> Failure:
    """Return the first lines of a report if there is one, else how the runner ended."""
    runner.log.seek(0)
    said = runner.log.read(REPORT_BYTES).decode(errors="replace")
    lines = [line for line in said.splitlines() if line.strip("= ")]
    start = next((number for number, line in enumerate(lines) if any(word in line for word in REPORTS)), None)
    if start is None:
        return Failure(lost.status, lost.reason, case)
    return Failure(Status.SANITIZER, "\n".join(lines[start : start + REPORT_LINES]), case)
