"""Null models: every op says which apply to it, its cases refuse them, and a problem that cannot is untestable."""

from pathlib import Path

import pytest
import torch

from kernelwright.core import plugins
from kernelwright.core.case import Case, Compute, Distribution, DType
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import NullModel, Profile, Stage, Status
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.null_models import Evidence, answer_of, coarse, kills, without_terms
from kernelwright.judge.oracle import Answer
from kernelwright.judge.stages import Bench, run_stage, testable
from kernelwright.ops import matmul, rmsnorm, softmax
from tests.cpu.conftest import cpp
from tests.cpu.fusions import fusion, problem_of
from tests.cpu.test_stages import HONEST

OPS = [name for name in plugins.names("ops") if plugins.load("ops", name).public_cases()]


pytestmark = pytest.mark.usefixtures("one_thread")


def answers(op_name: str, case: Case, inputs: dict[str, torch.Tensor]) -> list[Answer]:
    op = plugins.load("ops", op_name)
    wide = {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}
    columns = (
        f(x, case.scalars) for f, x in ((op.reference, wide), (op.reference, inputs), (op.error_scale, wide))
    )
    return [Answer(*parts) for parts in zip(*columns, strict=True)]


def evidence(op_name: str, case: Case, seed: int = 1) -> Evidence:
    op = plugins.load("ops", op_name)
    first, second = (op.make_inputs(case, Distribution.SIGNED, seed + number) for number in range(2))
    found = [answers(op_name, case, inputs) for inputs in (first, second, without_terms(first))]
    return Evidence(first, *found, case.compute)


@pytest.mark.parametrize("name", OPS)
def test_every_null_model_has_an_answer_to_the_op_or_a_reason_why_not(name: str) -> None:
    op = plugins.load("ops", name)
    known = evidence(name, op.public_cases()[3])
    for model in NullModel:
        is_excepted = model in op.NULL_EXCEPTIONS
        has_answer = kills(model, known, None) is not None
        assert has_answer or is_excepted, f"{model} neither answers nor is excepted"
        # A factor of a product has its shape by chance, where the other factor is square.
        assert not (has_answer and is_excepted) or (name == "matmul" and model is NullModel.PASSED_THROUGH)


def bench_of(room: Judge, problem: Problem) -> Bench:
    return room.bench(problem, cpp(HONEST).model_copy(update={"op": problem.op}))


@pytest.mark.parametrize("name", OPS)
def test_the_smallest_problem_of_an_op_is_testable(name: str, room: Judge) -> None:
    op = plugins.load("ops", name)
    for case in {case.dtype: case for case in reversed(op.public_cases()[:12])}.values():
        bench = bench_of(room, Problem(op=name, cases=(case,), device=cpu_device()))
        result, failure = run_stage(Stage.NULL_MODELS, bench)
        assert failure is None, failure
        assert result.checked == len(NullModel) - len(op.NULL_EXCEPTIONS)


BAD = {
    # Divided by a million billion, every answer in fp16 is zero.
    "vanishing answers": (
        "rmsnorm",
        rmsnorm.case({"rows": 16, "cols": 64}, DType.FP16, {"eps": 1e30}),
        "zeros",
    ),
    # Over one column every answer is one.
    "answers that are all one": ("softmax", softmax.case({"rows": 64, "cols": 1}, DType.FP32), "constant"),
    # Nothing is summed up: zeros are the answer.
    "sums of nothing": ("matmul", matmul.case({"m": 8, "n": 8, "k": 0}, DType.FP32), "zeros"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_problem_that_lets_a_null_model_pass_is_untestable(name: str, room: Judge) -> None:
    op_name, case, model = BAD[name]
    bench = bench_of(room, Problem(op=op_name, cases=(case,), device=cpu_device()))
    _, failure = run_stage(Stage.NULL_MODELS, bench)
    assert failure is not None
    assert (failure.status, repr(model) in failure.reason) == (Status.UNTESTABLE, True), failure.reason


def test_an_untestable_problem_ends_the_evaluation_of_an_honest_kernel(room: Judge) -> None:
    _, case, _ = BAD["vanishing answers"]
    problem = Problem(op="rmsnorm", cases=(case,), device=cpu_device())
    found = room.evaluate(problem, cpp(HONEST), Profile.KEEP)
    assert (found.status, found.timing) == (Status.UNTESTABLE, None)
    assert found.failure is not None
    assert found.failure.stage is Stage.NULL_MODELS


def test_what_is_found_of_a_problem_is_kept_for_the_next_candidate(room: Judge) -> None:
    problem = Problem(op="rmsnorm", cases=(rmsnorm.public_cases()[0],), device=cpu_device())
    bench = bench_of(room, problem)
    bench.testability[problem.hash] = "the null model 'zeros' was kept"
    _, failure = run_stage(Stage.NULL_MODELS, bench)
    assert failure is not None
    assert failure.reason.endswith("kept")


class Summed(torch.nn.Module):
    """No input has the shape of its output."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y + x).mean(-1)


def test_a_null_model_that_has_no_answer_is_not_asked_for_one_again(
    room: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(fusion(Summed(), (64, 96), (64, 96)), tmp_path)
    looks, look = [], testable._evidence
    monkeypatch.setattr(testable, "_evidence", lambda *known: looks.append(known) or look(*known))
    _, failure = run_stage(Stage.NULL_MODELS, bench_of(room, problem))
    assert failure is None
    assert len(looks) == len(testable.PLAIN), "one look at the only case with either kind of numbers decides"


@pytest.mark.parametrize(("cols", "passes"), [(1, True), (96, False)])
def test_one_size_with_two_kinds_of_numbers_is_one_case_where_there_are_more(
    room: Judge, monkeypatch: pytest.MonkeyPatch, cols: int, passes: bool
) -> None:
    own, other = (softmax.case({"rows": 64, "cols": count}, DType.FP32) for count in (128, cols))
    problem = Problem(op="softmax", cases=(own,), device=cpu_device())
    pairs = [((case, kind), case is own) for kind in testable.PLAIN for case in (own, other)]
    monkeypatch.setattr(testable, "_pairs", lambda _: pairs)
    found = testable.survivor(bench_of(room, problem))
    assert ("'constant'" in (found or "")) is passes, found


def test_a_right_answer_is_no_null_model() -> None:
    case = rmsnorm.public_cases()[3]
    known = evidence("rmsnorm", case)
    right = Evidence(known.inputs, known.answers, known.answers, known.answers, case.compute)
    assert kills(NullModel.PREVIOUS, right, None) is False
    assert kills(NullModel.PREVIOUS, known, None) is True


def test_the_next_lower_precision_of_tf32_is_bf16() -> None:
    exact = torch.randn(64, dtype=torch.float64)
    assert torch.equal(coarse(exact, 53), exact)
    answer = Answer(exact, exact.float(), exact.abs())
    for compute, bits in ((Compute.STRICT_FP32, 11), (Compute.TF32_OK, 8)):
        known = Evidence({}, [answer], [answer], [answer], compute)
        found = answer_of(NullModel.LOWER_PRECISION, known, 0)
        assert found is not None
        worst = float(((found.double() - exact) / exact).abs().max())
        assert 2.0 ** -(bits + 1) < worst <= 2.0**-bits
