"""Recording kernels without a GPU: seeds compiled for sm_90 with records, through the judge's own builder."""

import json
from pathlib import Path

import pytest

from kernelwright.backends import triton
from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import DType
from kernelwright.core.plan import Launch, kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Status
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.timeline import scope_names
from kernelwright.judge.recorded import LEAST, MOST, record_bytes
from kernelwright.ops import rmsnorm, softmax
from kernelwright.store.blobs import Blobs
from tests.devices import H200

SEEDS = Path(plugins.__file__).parents[1] / "seeds"
EXPECTED = {
    "softmax": {"kernel", "load", "loop", "reduce", "store"},
    "matmul": {"kernel", "tma load", "wait", "dot", "loop", "store"},
    "attention": {"kernel", "dot", "reduce", "wait", "loop"},
    "rmsnorm": {"kernel", "load", "reduce", "store"},
}


def compiled(source: str, op: str, folder: Path, **meta: int) -> tuple[dict, Launch]:
    """Return the facts of the first kernel of a plan at the op's largest size, compiled for an H200."""
    case = [one for one in plugins.load("ops", op).public_cases() if one.dtype is DType.FP16][-1]
    launch = run_plan(parse_plan(source), case, first_values(source), H200).launches[0]
    launch = launch.model_copy(update={"meta": launch.meta | meta})
    unit = kernel_unit(launch, case)
    result = triton.compile_unit(source, unit, "sm_90", folder)
    assert result.status is Status.ACCEPTED, result.log
    return json.loads((folder / f"{unit.hash[:16]}.json").read_text()), launch


@pytest.mark.parametrize("op", EXPECTED)
def test_a_recording_kernel_compiles_and_names_the_steps_of_its_source(op: str, tmp_path: Path) -> None:
    source = (SEEDS / op / "triton.py").read_text()
    plain, _ = compiled(source, op, tmp_path)
    facts, launch = compiled(source, op, tmp_path, **{triton.TIMELINE: 2048})
    warps = launch.meta["num_warps"]
    needed = 40 + 4 * warps + 2048 * warps
    assert facts["profile_scratch_size"] == -(-needed // 128) * 128
    assert facts["num_warps"] == warps
    assert (plain["profile_scratch_size"], "scopes" in plain) == (0, False)
    # Records lie in global memory: the kernel keeps its blocks per multiprocessor.
    assert facts["shared_bytes"] == plain["shared_bytes"]
    assert facts["trailing_pointers"] == plain["trailing_pointers"] == 2
    names = scope_names(facts)
    assert {kind for kind, _ in names.values()} >= EXPECTED[op]
    lines = source.splitlines()
    loads = {line for kind, line in names.values() if kind == "load"}
    assert all("load" in " ".join(lines[line - 2 : line + 1]) for line in loads if line)


def test_gluon_kernels_record_too(tmp_path: Path) -> None:
    source = (SEEDS / "rmsnorm" / "gluon.py").read_text()
    facts, _ = compiled(source, "rmsnorm", tmp_path, **{triton.TIMELINE: 1024})
    assert {"load", "reduce", "store"} <= {kind for kind, _ in scope_names(facts).values()}


def test_an_author_cannot_ask_for_records_and_nothing_is_recorded_unasked(tmp_path: Path) -> None:
    source = (SEEDS / "rmsnorm" / "triton.py").read_text()
    assert triton.check(source) is None
    assert "no option of a plan" in (triton.check(f"{source}\n# {triton.TIMELINE}\n") or "")


def test_the_judge_builds_recording_copies_of_a_plan_apart_from_the_judged_kernels(
    judge: JudgeClient,
) -> None:
    case = softmax.case({"rows": 4096, "cols": 4096}, DType.FP16)
    problem = Problem(op="softmax", cases=(case,), device=H200)
    candidate = seed("softmax", "triton", Origin.AUTHOR)
    assert isinstance(candidate, Candidate)
    found = judge.record(problem, candidate, case.hash)
    assert found.reason == ""
    assert found.plan is not None
    plain = run_plan(parse_plan(candidate.source), case, candidate.values_for(case.hash), H200)
    for launch, judged in zip(found.plan.launches, plain.launches, strict=True):
        assert launch.meta == judged.meta | {triton.TIMELINE: record_bytes(judged)}
        key = kernel_unit(launch, case).hash[:16]
        assert key != kernel_unit(judged, case).hash[:16]
        kept = Blobs(Path(judge.settings.blob_folder)).path(found.artefacts[f"{key}.json"])
        facts = json.loads(kept.read_text())
        assert facts["scopes"]["0"] == "kernel"


def test_what_cannot_record_is_said_in_one_line(judge: JudgeClient) -> None:
    case = rmsnorm.case({"rows": 64, "cols": 128}, DType.FP16)
    problem = Problem(op="rmsnorm", cases=(case,), device=H200)
    cuda = seed("rmsnorm", "cuda", Origin.AUTHOR)
    found = judge.record(problem, cuda, case.hash)
    assert (found.plan, found.reason) == (None, "cuda kernels have no timeline; Triton's have.")


def test_records_of_a_launch_stay_within_a_gibibyte() -> None:
    for blocks, warps in ((1, 4), (4096, 32), (132, 8), (1 << 20, 4), (1 << 24, 8), (1 << 31, 32)):
        room = record_bytes(Launch(kernel="k", grid=(blocks, 1, 1), meta={"num_warps": warps}))
        assert room * blocks * warps <= 1 << 30
        assert room <= MOST
        assert room & (room - 1) == 0
        assert (room >= LEAST) == (blocks * warps * LEAST <= 1 << 30)
