"""A GPU winner goes into the model as the very kernels the judge compiled; no GPU is needed to compile them."""

from pathlib import Path

import pytest

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import BadInput, BlobMissing
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    ModelVerified,
    ProblemFound,
    RunStarted,
)
from kernelwright.core.frozen import digest
from kernelwright.core.manifest import FOLDER
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Tree, fold
from kernelwright.core.verdict import (
    REQUIRED_STAGES,
    CaseTiming,
    Comparison,
    Evaluation,
    Outcome,
    Profile,
    StageResult,
    Status,
    Timing,
)
from kernelwright.engine import gate
from kernelwright.engine.seeds import seed
from kernelwright.engine.verifying import checked, copied, kernels_folder, rest_of
from kernelwright.engine.winners import expected_gain, winners, write_drop_in
from kernelwright.judge.evaluate import Judge
from kernelwright.ops import rmsnorm
from kernelwright.store.blobs import Blobs
from kernelwright.store.journal import Journal
from kernelwright.store.manifest import read_manifest

GPU = Device(
    kind=DeviceKind.CUDA, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=1 << 37,
    cache_bytes=50 << 20, shared_bytes=227 << 10,
)  # fmt: skip


def verdict(problem: Problem, candidate: Candidate, median_us: float, kept: dict[str, str]) -> Evaluation:
    times = CaseTiming(
        case_hash=problem.cases[0].hash, label="case", median_us=median_us, mad_us=0.1, rounds=20
    )
    return Evaluation(
        candidate_hash=candidate.hash,
        problem_hash=problem.hash,
        device_hash=problem.device.hash,
        profile=Profile.SHIP,
        status=Status.ACCEPTED,
        stages=tuple(
            StageResult(stage=stage, passed=True, seconds=0.1) for stage in REQUIRED_STAGES[Profile.SHIP]
        ),
        timing=Timing(clock="judge-slope", cases=(times,)),
        artefact_hashes=kept,
    )


def finished(problem: Problem, baseline: Candidate, best: Candidate, kept: dict[str, str]) -> Tree:
    """Return the tree of a run in which a candidate beat the baseline twofold."""
    return fold(story(problem, baseline, best, kept))


def story(problem: Problem, baseline: Candidate, best: Candidate, kept: dict[str, str]) -> list[Body]:
    """Return the events of that run."""
    first, second = verdict(problem, baseline, 20.0, {}), verdict(problem, best, 10.0, kept)
    proof = Comparison(
        incumbent_hash=baseline.hash, challenger_hash=best.hash, problem_hash=problem.hash,
        device_hash=problem.device.hash, outcome=Outcome.FASTER, ratio=2.0, ci_low=1.9, ci_high=2.1,
        e_faster=2000.0, e_not_faster=0.01, pairs=2, log_ratios=(0.69, 0.7), starts=3,
    )  # fmt: skip
    return [
        ProblemFound(problem=problem),
        CandidateProposed(problem_hash=problem.hash, candidate=baseline),
        Evaluated(evaluation=first),
        Decided(decision=gate.first_of_problem(first)),
        CandidateProposed(problem_hash=problem.hash, candidate=best),
        Evaluated(evaluation=second),
        Compared(comparison=proof),
        Decided(decision=gate.confirmed(second, proof)),
    ]


@pytest.fixture
def problem() -> Problem:
    case = rmsnorm.case({"rows": 512, "cols": 256}, DType.BF16)
    return Problem(op="rmsnorm", cases=(case,), device=GPU, share=0.2)


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_what_the_judge_compiled_is_what_is_spliced_and_shipped(
    room: Judge, problem: Problem, backend: str, tmp_path: Path
) -> None:
    baseline, best = seed("rmsnorm", "eager", Origin.BASELINE), seed("rmsnorm", backend, Origin.AUTHOR)
    tree = finished(problem, baseline, best, room.kept.keep(best, problem))
    ((winner,),) = winners(tree, room.blobs)
    assert expected_gain(tree, problem.hash) == pytest.approx(0.1)
    assert winner.plan is not None
    assert (len(winner.units), winner.device, winner.artefact) == (len(winner.plan.launches), GPU, "")
    for unit in winner.units:
        assert digest(Path(unit.binary).read_bytes()) == unit.binary_hash
        assert Path(unit.binary).read_bytes().startswith(b"\x7fELF")
        assert Path(unit.facts).read_text().startswith("{")
    folder = write_drop_in(tmp_path, tree, [winner])
    (entry,) = read_manifest(folder).entries
    assert folder == tmp_path / FOLDER
    assert (entry.certificate.ratio, entry.certificate.baseline) == (2.0, "PyTorch eager")
    assert entry.launched == tuple(unit.key for unit in winner.units)


def test_a_kernel_the_judge_did_not_keep_is_not_spliced(problem: Problem, tmp_path: Path) -> None:
    baseline, best = seed("rmsnorm", "eager", Origin.BASELINE), seed("rmsnorm", "triton", Origin.AUTHOR)
    with pytest.raises(BlobMissing, match="was not kept by the judge with both its files"):
        winners(finished(problem, baseline, best, {}), Blobs(tmp_path))


def test_a_baseline_that_kept_its_title_is_no_winner(problem: Problem, tmp_path: Path) -> None:
    baseline, best = seed("rmsnorm", "eager", Origin.BASELINE), seed("rmsnorm", "triton", Origin.AUTHOR)
    tree = finished(problem, baseline, best, {})
    tree.apply(Decided(decision=gate.rejected(tree.nodes[problem.hash, best.hash].evaluations[0])))
    assert winners(tree, Blobs(tmp_path)) == []


@pytest.mark.parametrize("shipped", [True, False])
def test_a_run_writes_its_kernels_anew_if_it_shipped_them_and_refuses_if_it_did_not(
    room: Judge, problem: Problem, tmp_path: Path, shipped: bool
) -> None:
    baseline, best = seed("rmsnorm", "eager", Origin.BASELINE), seed("rmsnorm", "cuda", Origin.AUTHOR)
    run = tmp_path / "runs" / "20260101-000000-abcdef"
    run.mkdir(parents=True)
    kept = room.kept.keep(best, problem)
    for content in kept.values():
        Blobs(run / "blobs").put(room.blobs.path(content).read_bytes())
    verified = ModelVerified(
        winners={problem.hash: best.hash}, ratio=1.1, ci_low=1.0, ci_high=1.2, eager_ratio=1.1, eager_ci_low=1.0,
        eager_ci_high=1.2, drift=1.0, fallbacks=0, shipped=shipped, reason="the interval reaches 1",
    )  # fmt: skip
    with Journal.create(run, run.name) as journal:
        started = RunStarted(config={"against": "compiled", "rest": None}, versions={}, device=GPU)
        journal.append([started, *story(problem, baseline, best, kept), verified])
    if not shipped:
        with pytest.raises(BadInput, match="this run shipped no kernels: the interval reaches 1"):
            kernels_folder(tmp_path, "last")
        return
    folder = kernels_folder(tmp_path, "last")
    assert (folder, rest_of(folder)) == (run / FOLDER, "inductor")
    assert rest_of(copied(folder, tmp_path / "elsewhere")) == "eager"
    assert [entry.problem_hash for entry in checked(folder).entries] == [problem.hash]
