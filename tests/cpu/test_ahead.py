"""What is compiled before it is asked for, and what is tried first: nothing is done for a kernel that is wrong."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Case, DType
from kernelwright.core.plan import KernelUnit
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Stage, Status
from kernelwright.engine.seeds import seed
from kernelwright.judge.ahead import compile_early, compile_late
from kernelwright.judge.stages import Bench, Failure, numbers
from kernelwright.judge.stages.bench import of_each_kind
from kernelwright.ops import reduce, rmsnorm
from tests.devices import H200


class Queue:
    """Notes which kernels are begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def get_ahead(self, candidate: Candidate, units: Sequence[KernelUnit], target: str, most: int) -> None:
        self.begun += [unit.hash for unit in units]


@pytest.fixture
def bench() -> Bench:
    found = seed("rmsnorm", "triton", Origin.AUTHOR)
    assert found is not None
    nobody: Any = None
    queue: Any = Queue()
    return Bench(
        problem=Problem(
            op="rmsnorm", cases=(rmsnorm.case({"rows": 64, "cols": 256}, DType.FP16),), device=H200
        ),
        candidate=found,
        builds=queue,
        nursery=nobody,
        reference=nobody,
        home=Path(),
        lock=nobody,
        rng=random.Random(0),
        hidden_shapes=8,
        progress=lambda _: None,
    )


def begun(bench: Bench) -> list[str]:
    queue: Any = bench.builds
    return list(queue.begun)


def test_before_anything_ran_only_small_cases_are_compiled(bench: Bench) -> None:
    compile_early(bench)
    assert 0 < len(begun(bench)) <= len(bench.small_cases())


def test_a_verdict_that_ends_with_the_smoke_compiles_no_more(bench: Bench) -> None:
    compile_late(bench, ())
    assert begun(bench) == []


def test_layouts_are_compiled_where_they_are_asked_for(bench: Bench) -> None:
    compile_late(bench, [Stage.EXACTNESS])
    without = len(begun(bench))
    compile_late(bench, [Stage.EXACTNESS, Stage.LAYOUT])
    assert 0 < without < len(begun(bench)) - without


def test_sums_and_maxima_both_smoke_in_every_type() -> None:
    kinds = {(case.dtype, case.scalars["is_max"]) for case in of_each_kind(reduce.public_cases())}
    assert kinds == {(dtype, is_max) for dtype in reduce.DTYPES for is_max in (False, True)}
    rows = [case.axes["rows"] for case in of_each_kind(rmsnorm.public_cases())]
    assert set(rows) == {min(case.axes["rows"] for case in rmsnorm.public_cases())}


@pytest.mark.parametrize("is_wrong", [True, False])
def test_hidden_shapes_wait_until_known_ones_are_right(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, is_wrong: bool
) -> None:
    asked: list[list[Case]] = []

    def run(_: Bench, trials: Sequence[Any]) -> tuple[int, Failure | None]:
        asked.append([trial.case for trial in trials])
        return len(trials), Failure(Status.WRONG, "it is") if is_wrong else None

    monkeypatch.setattr(numbers, "run_trials", run)
    count, failure = numbers.exactness(bench)
    assert count == sum(map(len, asked))
    assert (failure is not None, len(asked)) == (is_wrong, 1 if is_wrong else 2)
    known = {case.hash for case in (*bench.problem.cases, *bench.small_cases())}
    assert {case.hash for case in asked[0]} <= known
