"""The last audits on a CPU: tensors beyond an index, and lives of thousands of calls."""

import random
from dataclasses import replace
from importlib import import_module
from itertools import accumulate, chain, pairwise, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.core import plugins
from kernelwright.core.case import Case, DType
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Stage, Status
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.stages import Bench, Failure, intake, run_stage
from kernelwright.judge.stages.bench import Found
from kernelwright.judge.stages.big_index import ELEMENTS, block_starts, check_big
from kernelwright.judge.stages.longevity import GAUGES, WINDOWS, Held, grown, live, more_of
from kernelwright.ops import rmsnorm
from tests.cheats.specimen import author_candidate, honest_source, problem_of
from tests.cheats.test_catalogue import H200
from tests.cpu.conftest import cpp
from tests.cpu.test_stages import HONEST

BITS = 22
"""How many bits an offset has in these tests: 2^31 elements would take minutes."""
WRAPPED = f"& ((int64_t(1) << {BITS}) - 1)"


pytestmark = pytest.mark.usefixtures("one_thread")


def put(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1
    return source.replace(old, new)


READS_WRAPPED = put(HONEST, "->data) + row * step", f"->data) + ((row * step) {WRAPPED})")
WRITES_WRAPPED = put(
    HONEST, "->data) + row * out->stride[0]", f"->data) + ((row * out->stride[0]) {WRAPPED})"
)


def beyond_the_bits(room: Judge, problem: Problem, source: str) -> Found:
    return check_big(room.bench(problem, cpp(source)), rmsnorm.big_case(DType.FP16, 1 << BITS))


@pytest.mark.parametrize(
    ("source", "status"), [(READS_WRAPPED, Status.WRONG), (WRITES_WRAPPED, Status.NOT_WRITTEN)]
)
def test_an_offset_that_loses_its_upper_bits_is_found(
    source: str, status: Status, room: Judge, problem: Problem
) -> None:
    _, failure = beyond_the_bits(room, problem, source)
    assert failure is not None
    assert failure.status is status, failure.reason


def test_the_honest_kernel_passes_beyond_the_bits(room: Judge, problem: Problem) -> None:
    big = rmsnorm.big_case(DType.FP16, 1 << BITS)
    bench = replace(room.bench(problem, cpp(HONEST)), rng=random.Random(0))
    starts = block_starts(
        replace(bench, rng=random.Random(0)), big
    )  # a random block over another one is left out
    assert check_big(bench, big) == (len(starts), None)
    assert len(starts) >= 3


@pytest.mark.parametrize(
    "op", ["softmax", "layernorm", "reduce", "rope", "cross_entropy", "matmul", "attention"]
)
def test_blocks_of_a_big_case_are_right_where_the_kernel_is(op: str, room: Judge) -> None:
    bench = room.bench(problem_of(op, cpu_device()), author_candidate(op, "cpp", honest_source(op)))
    checked, failure = check_big(bench, bench.op.big_case(DType.FP32, 1 << BITS))
    assert failure is None, failure
    assert checked >= 1


def test_a_loss_over_rows_far_apart_needs_every_one_of_them(room: Judge) -> None:
    # Rows behind the bits are read from the front: the ignored labels leave only those that are checked.
    read = "logits->data) + row * logits->stride[0]"
    source = put(
        honest_source("cross_entropy"), read, f"logits->data) + ((row * logits->stride[0]) {WRAPPED})"
    )
    bench = room.bench(
        problem_of("cross_entropy", cpu_device()), author_candidate("cross_entropy", "cpp", source)
    )
    for _ in range(3):  # every time: a checked row whose label is ignored would hide it
        _, failure = check_big(bench, bench.op.big_case(DType.FP32, 1 << BITS))
        assert failure is not None
        assert failure.status is Status.WRONG


@pytest.mark.parametrize("op", ["softmax", "rope", "cross_entropy", "matmul", "attention", "swiglu_mlp"])
def test_blocks_lie_at_both_ends_and_where_offsets_wrap_around(op: str, room: Judge) -> None:
    module = plugins.load("ops", op)
    problem = Problem(op=op, cases=module.public_cases()[:1], device=cpu_device())
    big = module.big_case(DType.FP16, ELEMENTS)
    starts, extent = block_starts(room.bench(problem, cpp(HONEST)), big), big.case.axes[big.axis]
    largest = max((*big.case.inputs, *big.case.outputs), key=lambda spec: spec.numel)
    assert largest.numel > ELEMENTS
    assert {0, extent - big.block} <= set(starts)
    ordered = sorted(starts)
    assert all(later - earlier >= big.block for earlier, later in pairwise(ordered))
    beyond = (ELEMENTS // 2) // (largest.numel // extent)
    assert any(start <= beyond < start + big.block for start in starts)


def test_a_stage_that_has_nothing_to_check_says_why(room: Judge, problem: Problem) -> None:
    small = problem.device.model_copy(update={"memory_bytes": 1 << 30})
    bench = room.bench(problem.model_copy(update={"device": small}), cpp(HONEST))
    for stage, word in (
        (Stage.BIG_INDEX, "GiB"),
        (Stage.STREAMS, "streams"),
        (Stage.GRAPH_CAPTURE, "graphs"),
    ):
        result, failure = run_stage(stage, bench)
        assert (failure, result.passed, result.checked, word in result.reason) == (None, True, 0, True)


def test_an_op_of_one_input_has_none_that_share_their_storage_and_it_is_said(room: Judge) -> None:
    softmax = plugins.load("ops", "softmax")
    problem = Problem(op="softmax", cases=softmax.public_cases()[:1], device=cpu_device())
    result, failure = run_stage(Stage.ALIASING, room.bench(problem, cpp(HONEST)))
    assert (failure, result.passed, result.checked) == (None, True, 0)
    assert "nothing of this kind" in result.reason


@pytest.mark.parametrize(("backend", "word"), [("python", "'python'"), ("triton", "interpreter")])
def test_what_no_sanitizer_looks_into_is_said(backend: str, word: str, room: Judge, problem: Problem) -> None:
    bench = room.bench(problem, author_candidate("rmsnorm", backend, ""))
    result, failure = run_stage(Stage.SANITIZER, bench)
    assert (failure, result.passed, result.checked, word in result.reason) == (None, True, 0, True)


def test_on_a_gpu_own_cases_are_asked_whose_kernels_ran_until_one_fails(
    room: Judge, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [rmsnorm.case({"rows": rows, "cols": 8}, DType.FP32) for rows in (1, 2, 3)]
    failure, seen = Failure(Status.DELEGATION, "a library's"), []

    def audited(bench: Bench, case: Case) -> Failure | None:
        seen.append(case)
        return failure if case is cases[1] else None

    monkeypatch.setattr(intake, "_audited", audited)
    host_code = author_candidate("rmsnorm", "python", "")
    on_a_gpu = room.bench(problem.model_copy(update={"device": H200}), host_code)
    assert (intake.whose_kernels(on_a_gpu, cases), seen) == ((2, failure), cases[:2])
    assert intake.whose_kernels(room.bench(problem, host_code), cases) == (0, None)


LEAKS = {
    "four kilobytes a call": ("static_cast<volatile char*>(std::malloc(4096))[0] = 1;", "memory"),
    "pages nobody touches": (
        "mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);",
        "address space",
    ),
    "a thread a call": (
        "pthread_t t; pthread_create(&t, nullptr, [](void*) -> void* { for (;;) pause(); }, nullptr);",
        "threads",
    ),
    "a descriptor a call": ("if (dup(1) < -1) return KW_OK;", "descriptors"),
}
HEADERS = "#include <pthread.h>\n#include <sys/mman.h>\n#include <unistd.h>\n"


def lived(room: Judge, problem: Problem, statement: str) -> tuple[int, Status | None, str]:
    source = put(put(HONEST, "/*before*/", statement), "/*outside*/", HEADERS)
    bench = replace(room.bench(problem, cpp(source)), guards_off=True)
    result, failure = run_stage(Stage.LONGEVITY, bench)
    return result.checked, failure.status if failure else None, result.reason


@pytest.mark.parametrize("name", LEAKS)
def test_what_grows_with_every_call_is_a_leak(name: str, room: Judge, problem: Problem) -> None:
    statement, word = LEAKS[name]
    _, status, reason = lived(room, problem, statement)
    assert (status, word in reason) == (Status.LEAK, True), reason


ONCE = "static std::vector<char> kept; if (kept.empty()) kept.assign(64 << 20, 1);"


def test_a_workspace_that_is_kept_once_is_no_leak(room: Judge, problem: Problem) -> None:
    checked, status, reason = lived(room, problem, ONCE)
    assert (status, reason) == (None, "")
    assert checked > 2000


def test_an_answer_that_goes_bad_after_thousands_of_calls_is_wrong(room: Judge, problem: Problem) -> None:
    late = "static int calls = 0; if (++calls > 2000 && x->shape[0]) std::memset(out->data, 0, 2);"
    source = put(HONEST, "/*after*/", late)
    _, failure = run_stage(Stage.LONGEVITY, room.bench(problem, cpp(source)))
    assert failure is not None
    assert failure.status is Status.WRONG, failure.reason


def looks(*private: int) -> list[Held]:
    return [Held((size, 0, 0), 1, 8) for size in private]


def test_only_steady_growth_is_one() -> None:
    step = 1 << 20
    steady, once = [n * step for n in range(7)], [0, *[8 * step] * 6]
    assert "bytes a call" in (grown(looks(*steady), 1000, GAUGES) or "")
    assert grown(looks(*once), 1000, GAUGES) is None
    assert grown(looks(*steady), 1_000_000, GAUGES) is None
    assert grown(looks(*steady), 1000, GAUGES[-1:]) is None


def test_a_few_threads_more_are_no_leak_and_many_are() -> None:
    before = Held((0, 0, 0), 4, 8)
    assert more_of(before, Held((0, 0, 0), 8, 12)) is None
    assert "threads grew from 4 to 12" in (more_of(before, Held((0, 0, 0), 12, 8)) or "")
    assert "descriptors" in (more_of(before, Held((0, 0, 0), 4, 16)) or "")


@pytest.mark.parametrize(
    ("steps", "status"), [((100, 0), None), ((100, 100), Status.LEAK)], ids=["a context", "a leak"]
)
def test_what_another_process_takes_of_a_gpu_once_is_no_leak(
    steps: tuple[int, int], status: Status | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, longevity = WINDOWS + 1, import_module("kernelwright.judge.stages.longevity")
    taken = accumulate(chain([0], *(repeat(step << 20, looks) for step in steps)))
    monkeypatch.setattr(longevity, "held", lambda *_: Held((0, 0, next(taken)), 1, 1))
    monkeypatch.setattr(longevity, "CONTEXT_SECONDS", 0.0)
    monkeypatch.setattr(longevity, "check_call", lambda *_: None)
    runner: Any = SimpleNamespace(pid=1, run=lambda *_: 0.0, collect=lambda *_: 0.0)
    arena: Any = SimpleNamespace(index=0, calls=range(8), cases=(None,), poison_outputs=lambda: None)
    bench: Any = SimpleNamespace(is_planned=True)
    _, failure = live(bench, runner, arena)
    assert (failure.status if failure else None) is status
