"""Listings of real artefacts: what the judge compiled for an H200 and for this machine, read and never run."""

from pathlib import Path

import pytest

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import BadInput
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node
from kernelwright.core.verdict import REQUIRED_STAGES, Evaluation, Profile, StageResult, Status
from kernelwright.engine.disassembling import Extent, disassembly
from kernelwright.engine.seeds import seed
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.evaluate import Judge
from kernelwright.ops import softmax
from kernelwright.store.blobs import Blobs

H200 = Device(
    kind=DeviceKind.CUDA, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=141 << 30,
    cache_bytes=60 << 20, shared_bytes=227 << 10,
)  # fmt: skip


def judged(room: Judge, backend: str, device: Device, folder: Path) -> Node:
    """Return a candidate as a run holds it after its verdict, with its artefacts in the run's blobs."""
    case = softmax.case({"rows": 64, "cols": 256}, DType.FP32)
    problem = Problem(op="softmax", cases=(case,), device=device)
    candidate = seed("softmax", backend, Origin.AUTHOR)
    assert candidate is not None
    blobs = Blobs(folder / "blobs")
    kept = room.kept.keep(candidate, problem)
    for blob_hash in kept.values():
        blobs.put(room.blobs.get(blob_hash))
    return Node(candidate, problem.hash, 1, evaluations=[accepted(candidate, problem, kept, room)])


def accepted(candidate: Candidate, problem: Problem, kept: dict[str, str], room: Judge) -> Evaluation:
    stages = (StageResult(stage=stage, passed=True, seconds=0) for stage in REQUIRED_STAGES[Profile.KEEP])
    return Evaluation(
        candidate_hash=candidate.hash,
        problem_hash=problem.hash,
        device_hash=problem.device.hash,
        profile=Profile.KEEP,
        status=Status.ACCEPTED,
        stages=tuple(stages),
        artefact_hashes=kept,
        resources=room.kept.resources(candidate, problem),
    )


def test_a_gpu_kernel_is_listed_with_what_the_compiler_told_of_it(room: Judge, tmp_path: Path) -> None:
    node = judged(room, "triton", H200, tmp_path)
    found = disassembly(tmp_path, node, Extent(lines=100_000))
    sass = next(one for one in found if one.kind == "sass")
    assert "EXIT" in sass.text
    assert 0 < sass.counts["registers"] <= 255
    assert {"spill_store_bytes", "spill_load_bytes"} <= sass.counts.keys()
    assert sass.cut == 0
    short = disassembly(tmp_path, node, Extent(lines=5))[found.index(sass)]
    assert (len(short.text.splitlines()), short.cut) == (5, len(sass.text.splitlines()) - 5)


def test_a_cpu_kernel_is_listed_by_function(room: Judge, tmp_path: Path) -> None:
    (found,) = disassembly(
        tmp_path, judged(room, "cpp", cpu_device(), tmp_path), Extent(function="kernel_fn")
    )
    assert (found.kind, "<kernel_fn>:" in found.text.splitlines()[0]) == ("cpu", True)
    assert found.text.count(">:") == 1
    assert found.counts["instructions"] == sum(one["instructions"] for one in found.functions.values())
    assert len(found.functions) > 1


def test_what_has_no_machine_code_is_refused_with_the_reason(room: Judge, tmp_path: Path) -> None:
    node = judged(room, "cpp", cpu_device(), tmp_path)
    nothing = node.evaluations[0].model_copy(update={"artefact_hashes": {}})
    with pytest.raises(BadInput, match="has no artefact"):
        disassembly(tmp_path, Node(node.candidate, node.problem_hash, 1, evaluations=[nothing]), Extent())
    text = node.evaluations[0].model_copy(
        update={"artefact_hashes": {"x": Blobs(tmp_path / "blobs").put(b"def f")}}
    )
    with pytest.raises(BadInput, match="is no machine code"):
        disassembly(tmp_path, Node(node.candidate, node.problem_hash, 1, evaluations=[text]), Extent())
