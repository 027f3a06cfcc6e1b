"""The first stages, which run nothing or little of a candidate: static guards, build, smoke; and the second build."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.candidate import Origin, ParamValue
from kernelwright.core.case import Case, Distribution
from kernelwright.core.messages.builder import BuildRequest
from kernelwright.core.messages.runner import Audit
from kernelwright.core.plan import KernelUnit
from kernelwright.core.verdict import Status
from kernelwright.judge import native
from kernelwright.judge.children import Lost
from kernelwright.judge.elf import code_digest
from kernelwright.judge.execution import compile_cases, units_of
from kernelwright.judge.stages.bench import CALL_SECONDS, Bench, Failure, Found, input_elements, of_each_kind
from kernelwright.judge.stages.checks import check_cases, runner_on
from kernelwright.judge.warming import warm

WARMED_ELEMENTS = 1 << 24
"""Board-sized cases beyond this are compiled for when they are asked for."""


def guards(bench: Bench) -> Found:
    """Judge the source alone."""
    candidate = bench.candidate
    if candidate.origin is Origin.AUTHOR and candidate.backend in ("eager", "compiled"):
        return 1, Failure(
            Status.DELEGATION, f"backend {candidate.backend!r} has no kernel of the candidate's own"
        )
    if bench.guards_off:
        return 1, None
    backend = plugins.load("backends", candidate.backend)
    if refusal := backend.check(candidate.source):
        return 1, Failure(Status.REFUSED, refusal)
    if candidate.origin is Origin.AUTHOR and hasattr(backend, "delegates"):
        reason = backend.delegates(candidate.source)
        return 1, Failure(Status.DELEGATION, reason) if reason else None
    return 1, None


def build(bench: Bench) -> Found:
    """Build every artefact the problem needs, and look at what a native one wants from outside."""
    if bench.is_planned:
        try:
            compile_cases(bench.candidate, bench.problem.cases, bench.problem.device, bench.builds)
        except Lost as lost:
            return len(bench.problem.cases), Failure(lost.status, lost.reason)
        return len(bench.problem.cases), None
    for built, choice in enumerate(bench.candidate.choices, start=1):
        result, artefact = bench.builds.get(bench.candidate, choice.values)
        if result.status is not Status.ACCEPTED or artefact is None:
            return built, Failure(result.status, result.log.strip() or "the build failed")
        # No static guard of the source: what was built is what runs, whatever the source looked like.
        for raw in _native(bench, artefact):
            if found := native.audit(raw, guarded=not bench.guards_off):
                return built, Failure(found.status, found.reason)
        if not bench.is_cpu:
            _warm(bench, artefact, choice.values)
    return len(bench.candidate.choices), None


def _warm(bench: Bench, artefact: Path, values: Mapping[str, ParamValue]) -> None:
    """Have what host code compiles by itself compiled, for the cases everybody knows that it will be asked for."""
    known = [case for case in bench.known_cases() if input_elements(case) <= WARMED_ELEMENTS]
    cases = {case.hash: case for case in (*bench.problem.cases, *known)}
    served = [case for key, case in cases.items() if bench.candidate.values_for(key) == values]
    if served:
        with bench.lock.shared():
            warm(bench, artefact, served)


def is_audited(bench: Bench) -> bool:
    """Tell whether a candidate's machine code is read before it runs: that of authors, where it is host code."""
    return bench.candidate.origin is Origin.AUTHOR and not bench.is_planned and not bench.audit_off


def _native(bench: Bench, artefact: Path) -> list[bytes]:
    """Return the machine code of a tier-B artefact of an author's: the file itself, or what it carries."""
    if not is_audited(bench):
        return []
    backend = plugins.load("backends", bench.candidate.backend)
    return list(backend.objects(artefact)) if hasattr(backend, "objects") else [artefact.read_bytes()]


def smoke(bench: Bench) -> Found:
    """Run the smallest public case of every dtype and scalars: a sum and a maximum may be two kernels."""
    small = bench.small_cases()
    found = check_cases(bench, [(case, Distribution.SIGNED) for case in of_each_kind(small)])
    if found[1]:
        return found
    audited, failure = whose_kernels(bench, [max(small, key=input_elements)])
    return found[0] + audited, failure


def whose_kernels(bench: Bench, cases: Sequence[Case]) -> Found:
    """Look on a GPU whose kernels an author's host code has run, in one call of each case."""
    if bench.is_cpu or bench.is_planned or bench.candidate.origin is not Origin.AUTHOR:
        return 0, None
    for checked, case in enumerate(cases, start=1):
        if failure := _audited(bench, case):
            return checked, failure
    return len(cases), None


def _audited(bench: Bench, case: Case) -> Failure | None:
    """Have host code called once while somebody writes down whose kernels the GPU runs."""
    with bench.arena([case], [0]) as arena:
        arena.write_inputs(0, bench.op.make_inputs(case, Distribution.SIGNED, bench.seed))
        try:
            with runner_on(bench, arena) as runner:
                runner.run(0, 1, CALL_SECONDS)
                runner.carry_out(Audit(call=0), CALL_SECONDS)
        except Lost as lost:
            return Failure(lost.status, lost.reason, case)
    return None


def rebuild(bench: Bench) -> Found:
    """Build everything a second time, past the cache, and compare all that is not a debugger's."""
    if bench.is_planned:
        return _rebuild_units(bench)
    for built, choice in enumerate(bench.candidate.choices, start=1):
        _, artefact = bench.builds.get(bench.candidate, choice.values)
        assert artefact is not None, "only what was built is built again"
        request = BuildRequest(
            backend=bench.candidate.backend,
            source=bench.candidate.source,
            values=dict(choice.values),
            folder=tempfile.mkdtemp(dir=bench.home, prefix="rebuild-"),
            guards_off=bench.guards_off,
        )
        (again,) = bench.builds.foundry.build(request).results
        second = Path(request.folder) / Path(again.artefact or "missing").name
        same = second.is_file() and code_digest(second.read_bytes()) == code_digest(artefact.read_bytes())
        shutil.rmtree(request.folder, ignore_errors=True)
        if not same:
            return built, Failure(Status.BUILD_FAILED, "a second build gives another artefact")
    return len(bench.candidate.choices), None


def _rebuild_units(bench: Bench) -> Found:
    """Compile every kernel of the problem's own cases again."""
    candidate, device = bench.candidate, bench.problem.device
    plans = compile_cases(candidate, bench.problem.cases, device, bench.builds)
    pairs = zip(plans, bench.problem.cases, strict=True)
    units: dict[str, KernelUnit] = {unit.hash: unit for plan, case in pairs for unit in units_of(plan, case)}
    kept = Path(tempfile.mkdtemp(dir=bench.home, prefix="kept-"))
    bench.builds.collect_units(candidate, list(units.values()), device.arch, kept)
    request = BuildRequest(
        backend=candidate.backend,
        source=candidate.source,
        folder=tempfile.mkdtemp(dir=bench.home, prefix="rebuild-"),
        guards_off=bench.guards_off,
        units=tuple(units.values()),
        target=device.arch,
    )
    results = bench.builds.foundry.build(request).results
    different = [
        unit.kernel
        for unit, again in zip(units.values(), results, strict=True)
        if not _same_file(kept, Path(request.folder), Path(again.artefact or "missing").name)
    ]
    shutil.rmtree(request.folder, ignore_errors=True)
    shutil.rmtree(kept, ignore_errors=True)
    if different:
        return len(units), Failure(
            Status.BUILD_FAILED, f"a second build of {different[0]!r} gives another artefact"
        )
    return len(units), None


def _same_file(first: Path, second: Path, name: str) -> bool:
    paths = (first / name, second / name)
    return (
        all(path.is_file() for path in paths) and len({code_digest(path.read_bytes()) for path in paths}) == 1
    )
