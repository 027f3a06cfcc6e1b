"""What the compiler told of a kernel reaches the verdict and the diagnosis; no GPU is needed to compile for one."""

import pytest

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.problem import Problem
from kernelwright.core.technique import Bottleneck
from kernelwright.core.tree import Node
from kernelwright.core.verdict import (
    REQUIRED_STAGES,
    CaseTiming,
    Evaluation,
    Profile,
    StageResult,
    Status,
    Timing,
)
from kernelwright.engine.diagnosing import diagnoses_of, metrics_of
from kernelwright.engine.seeds import seed
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.evaluate import Judge
from kernelwright.ops import softmax

H200 = Device(
    kind=DeviceKind.CUDA, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=141 << 30,
    cache_bytes=60 << 20, shared_bytes=227 << 10,
)  # fmt: skip
SPILLED = """
import triton
import triton.language as tl

PARAMS = {"elements": [65536]}


@triton.jit
def crowded(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf")).to(tl.float32)
    weight = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * cols + at, (weight / tl.sum(weight, 0)).to(out.dtype.element_ty), mask=at < cols)


def plan(case, params, device):
    launch = {
        "kernel": "crowded",
        "grid": (case.axes.rows,),
        "args": ["x", "out", case.axes.cols],
        "constants": {"BLOCK": params.elements},
        "num_warps": 8,
    }
    return {"launches": [launch]}
"""


def timed(problem: Problem, candidate: Candidate, resources: dict[str, dict[str, int]]) -> Node:
    """Return a node that took twice its floor and of which the compiler told this."""
    (case,) = problem.cases
    times = CaseTiming(
        case_hash=case.hash, label=case.label, median_us=500.0, mad_us=1.0, rounds=9, floor_us=250.0
    )
    stages = (StageResult(stage=stage, passed=True, seconds=0) for stage in REQUIRED_STAGES[Profile.KEEP])
    verdict = Evaluation(
        candidate_hash=candidate.hash,
        problem_hash=problem.hash,
        device_hash=problem.device.hash,
        profile=Profile.KEEP,
        status=Status.ACCEPTED,
        stages=tuple(stages),
        timing=Timing(clock="launcher-events", cases=(times,)),
        resources=resources,
    )
    return Node(candidate, problem.hash, 1, evaluations=[verdict])


@pytest.fixture(scope="module")
def on_h200() -> Problem:
    return Problem(
        op="softmax", cases=(softmax.case({"rows": 4096, "cols": 65536}, DType.FP16),), device=H200
    )


def test_a_seed_that_fits_its_registers_is_not_said_to_spill(room: Judge, on_h200: Problem) -> None:
    candidate = seed("softmax", "triton", Origin.AUTHOR)
    assert candidate is not None
    node = timed(on_h200, candidate, room.kept.resources(candidate, on_h200))
    found = {one.name: one.value for one in metrics_of(on_h200, node, on_h200.cases[0])}
    assert found["spill_bytes"] == 0
    assert 0 < found["registers"] <= 255
    assert found["resident_warps_pct"] >= 25
    assert found["blocks"] == 4096
    assert Bottleneck.SPILLS not in [one.category for one in diagnoses_of(on_h200, node, ())]


def test_a_kernel_that_holds_too_much_is_said_to_spill_with_the_compilers_own_number(
    room: Judge, on_h200: Problem
) -> None:
    candidate = seed("softmax", "triton", Origin.AUTHOR)
    assert candidate is not None
    values = {"elements": 65536}
    choice = candidate.choices[-1].model_copy(update={"values": values})
    crowded = candidate.model_copy(update={"source": SPILLED, "choices": (choice,)})
    resources = room.kept.resources(crowded, on_h200)
    ((_, told),) = resources.items()
    spilled = told["spill_store_bytes"] + told["spill_load_bytes"]
    assert spilled >= 1000
    found = {one.category: one for one in diagnoses_of(on_h200, timed(on_h200, crowded, resources), ())}
    assert found[Bottleneck.SPILLS].evidence[0].value == spilled
    assert found[Bottleneck.SPILLS].severity == pytest.approx(
        0.5
    )  # twice its floor: half of the time is above it
    assert found[Bottleneck.OCCUPANCY].evidence[0].value == 12.5  # 255 registers: one block of eight warps


def test_what_runs_on_the_host_has_no_kernels_to_tell_of(room: Judge, on_h200: Problem) -> None:
    candidate = seed("softmax", "cpp", Origin.AUTHOR)
    assert candidate is not None
    here = on_h200.model_copy(update={"device": cpu_device()})
    assert room.kept.resources(candidate, here) == {}
