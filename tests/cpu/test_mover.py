"""Moved seeds under the real judge, the Triton interpreter and the CUDA compiler: a move changes speed, not answers."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from benchmarks.moves import Spot

from kernelwright.agents import mover
from kernelwright.backends import cuda
from kernelwright.backends._cuda_compile import nvrtc_version
from kernelwright.core import plugins
from kernelwright.core.brief import Brief
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import DType
from kernelwright.core.normal import key_of
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import cpu_device
from tests.cpu.interpreter import Interpreter
from tests.cpu.test_triton_seeds import H200, check, job

CPP = {
    "loop_order": Spot("attention", (1, 2, 1, 70, 70, 24), scalars=(("causal", True), ("scale", 0.3))),
    "native_rounding": Spot("softmax", (37, 501), DType.BF16),
    "no_staging": Spot("rope", (2, 3, 17, 74)),
    "non_temporal_stores": Spot("layernorm", (37, 200)),
    "online_softmax": Spot("softmax", (3, 20001)),
    "openmp_schedule": Spot("reduce", (70, 300)),
    "pipeline_depth": Spot("softmax", (9, 130)),
    "plain_maximum": Spot("cross_entropy", (33, 500)),
    "plain_sums": Spot("softmax", (37, 501)),
    "scaled_exponent": Spot("swiglu_mlp", (9, 40, 72)),
    "split_k": Spot("matmul", (9, 17, 1500)),
    "tile_shapes": Spot("matmul", (65, 72, 40)),
    "two_pass": Spot("layernorm", (5, 333)),
    "unrolling": Spot("layernorm", (5, 333)),
    "vector_width": Spot("cross_entropy", (21, 77)),
}
"""Moves on C++ and an awkward size on which each is tried."""


def proposed(move: str, spot: Spot, backend: str, device=None) -> tuple[Problem, Candidate]:
    """Return what the mover makes of a seed."""
    problem = Problem(op=spot.op, cases=(spot.case(),), device=device or cpu_device())
    parent = seed(spot.op, backend, Origin.AUTHOR)
    assert parent is not None
    answer = mover.author(move).propose(Brief(problem=problem, parents=(parent,), evaluations=()))
    assert answer.proposals, answer.reason
    return problem, answer.proposals[0].candidate(problem, (parent.hash,))


@pytest.mark.parametrize("move", sorted(CPP))
def test_moved_seed_is_accepted(move: str, judge: JudgeClient) -> None:
    problem, candidate = proposed(move, CPP[move], "cpp")
    verdict = judge.evaluate(problem, candidate, Profile.QUICK)
    assert verdict.status is Status.ACCEPTED, verdict.failure


def test_every_move_on_cpp_is_tried() -> None:
    assert set(CPP) == {
        name for name in plugins.names("moves") if "cpp" in plugins.load("moves", name).BACKENDS
    }


def test_maximum_that_loses_a_nan_is_refused(judge: JudgeClient) -> None:
    problem, candidate = proposed(
        "plain_maximum", Spot("reduce", (8, 300), scalars=(("is_max", True),)), "cpp"
    )
    verdict = judge.evaluate(problem, candidate, Profile.KEEP)
    assert verdict.status is Status.WRONG
    assert "NaN" in str(verdict.failure)


def test_moves_pile_up_on_one_source(judge: JudgeClient) -> None:
    problem = Problem(op="softmax", cases=(Spot("softmax", (37, 501)).case(),), device=cpu_device())
    candidate = seed("softmax", "cpp", Origin.AUTHOR)
    assert candidate is not None
    names = ("plain_sums", "scaled_exponent", "vector_width", "non_temporal_stores", "openmp_schedule")
    for name in names:
        brief = Brief(problem=problem, parents=(candidate,), evaluations=(), known=(key_of(candidate),))
        (proposal,) = mover.author(name).propose(brief).proposals
        candidate = proposal.candidate(problem, (candidate.hash,))
    assert judge.evaluate(problem, candidate, Profile.QUICK).status is Status.ACCEPTED


TRITON = {
    "cache_hints": "layernorm",
    "multi_row_blocks": "rmsnorm",
    "persistent_grid": "cross_entropy",
    "pipeline_depth": "softmax",
    "unrolling": "reduce",
    "vector_width": "softmax",
}


def test_moved_triton_seeds_agree_with_float64_in_the_interpreter(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    jobs = []
    for move, op in TRITON.items():
        parent = seed(op, "triton", Origin.AUTHOR)
        assert parent is not None
        for number, axes in enumerate(((5, 700), (3, 2501))):
            case = Spot(op, axes, DType.FP16).case()
            found = proposed(move, Spot(op, axes, DType.FP16), "triton", H200)[1]
            path = tmp_path / f"{move}_{number}.py"
            path.write_text(found.source)
            jobs.append({**job(op, case, **found.choices[-1].values), "seed": str(path)})
    for entry, answer in zip(jobs, interpreter.find(jobs), strict=True):
        check(entry, answer)


def test_programs_that_stay_do_all_rows_of_a_larger_grid(tmp_path: Path, interpreter: Interpreter) -> None:
    few = H200.model_copy(update={"units": 1})
    case = Spot("softmax", (23, 2501), DType.FP16).case()
    _, found = proposed("persistent_grid", Spot("softmax", (23, 2501), DType.FP16), "triton", few)
    plan = run_plan(parse_plan(found.source), case, found.choices[-1].values, few)
    assert plan.launches[0].grid[0] == 4
    path = tmp_path / "staying.py"
    path.write_text(found.source)
    entry = {**job("softmax", case, few, **found.choices[-1].values), "seed": str(path)}
    check(entry, interpreter.find([entry])[0])


@pytest.mark.skipif(nvrtc_version() is None, reason="the CUDA compiler is not installed")
@pytest.mark.parametrize(
    ("move", "spot"),
    [
        ("l2_swizzle", Spot("matmul", (300, 300, 64))),
        ("unrolling", Spot("softmax", (64, 50257), DType.FP16)),
        ("pipeline_depth", Spot("softmax", (64, 8192), DType.FP16)),
    ],
)
def test_moved_cuda_seed_compiles_for_hopper(move: str, spot: Spot) -> None:
    problem, found = proposed(move, spot, "cuda", H200)
    plan = run_plan(parse_plan(found.source), problem.cases[0], found.choices[-1].values, H200)
    for launch in plan.launches:
        with TemporaryDirectory() as folder:
            result = cuda.compile_unit(
                found.source, kernel_unit(launch, problem.cases[0]), "sm_90", Path(folder)
            )
        assert result.status is Status.ACCEPTED, result.log
