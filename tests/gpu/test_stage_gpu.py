"""The stages of streams, graphs, big tensors and long lives on a GPU. Needs one NVIDIA GPU, 40 GiB of it free.

Each stage is run alone on an honest kernel, which passes, and on one that only this stage can find.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.verdict import Stage, StageResult, Status
from kernelwright.hardware.detect import devices
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.stages import run_stage
from tests.cheats.specimen import HERE, Specimen, author_candidate, honest_source, problem_of, read

pytestmark = pytest.mark.gpu
LAST = (Stage.BIG_INDEX, Stage.STREAMS, Stage.GRAPH_CAPTURE, Stage.LONGEVITY)


@pytest.fixture(scope="module")
def gpu() -> Device:
    found = next((device for device in devices() if device.kind is DeviceKind.CUDA), None)
    if found is None:
        pytest.skip("no NVIDIA GPU here")
    return found


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    home = tmp_path_factory.mktemp("judge")
    settings = JudgeSettings(
        threads=2,
        max_pairs=1,
        alpha=0.001,
        hidden_shapes=2,
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
    )
    found = Judge(settings, lambda _: None)
    yield found
    found.close()


def alone(room: Judge, gpu: Device, stage: Stage, specimen: Specimen) -> tuple[StageResult, Status | None]:
    bench = replace(room.bench(specimen.problem(gpu), specimen.candidate()), guards_off=True)
    result, failure = run_stage(stage, bench)
    return result, failure.status if failure else None


@pytest.mark.parametrize("backend", ["cuda", "python"])
@pytest.mark.parametrize("stage", LAST)
def test_an_honest_kernel_passes(stage: Stage, backend: str, room: Judge, gpu: Device) -> None:
    candidate = author_candidate("softmax", backend, honest_source("softmax", backend))
    result, failure = run_stage(stage, room.bench(problem_of("softmax", gpu), candidate))
    assert failure is None, failure
    assert result.checked > 0, result.reason


FOUND = {
    Stage.BIG_INDEX: ("MS4_counts_in_32_bits.cu", {Status.CRASHED, Status.NOT_WRITTEN, Status.WRONG}),
    Stage.STREAMS: ("MS9_scratch_shared_by_all_streams.cu", {Status.WRONG}),
    Stage.GRAPH_CAPTURE: ("MS11_dirty_counter.cu", {Status.WRONG, Status.NOT_WRITTEN}),
    Stage.LONGEVITY: ("MS13_keeps_every_output.py", {Status.LEAK}),
}


@pytest.mark.parametrize("stage", FOUND)
def test_a_stage_finds_what_it_is_there_for(stage: Stage, room: Judge, gpu: Device) -> None:
    name, statuses = FOUND[stage]
    result, status = alone(room, gpu, stage, read(HERE / "specimens" / name))
    assert status in statuses, result.reason


def test_work_on_the_legacy_default_stream_is_found(room: Judge, gpu: Device) -> None:
    specimen = read(HERE / "specimens" / "ND5_legacy_default_stream.py")
    result, status = alone(room, gpu, Stage.STREAMS, specimen)
    assert status in {Status.WRONG, Status.NOT_WRITTEN, Status.WRONG_STREAM}, result.reason


WAITS = """
    torch.cuda.default_stream().synchronize()
    return out
"""


def test_host_code_that_waits_for_the_legacy_default_stream_is_found(room: Judge, gpu: Device) -> None:
    source = honest_source("softmax", "python")
    assert source.count("\n    return out\n") == 1
    candidate = author_candidate("softmax", "python", source.replace("\n    return out\n", WAITS))
    bench = replace(room.bench(problem_of("softmax", gpu), candidate), guards_off=True)
    result, failure = run_stage(Stage.STREAMS, bench)
    assert failure is not None
    assert failure.status is Status.WRONG_STREAM, result.reason


def test_host_code_that_cannot_be_captured_is_recorded_and_not_refused(room: Judge, gpu: Device) -> None:
    source = honest_source("softmax", "python")
    waits = "\n    torch.cuda.current_stream().synchronize()\n    return out\n"
    candidate = author_candidate("softmax", "python", source.replace("\n    return out\n", waits))
    bench = replace(room.bench(problem_of("softmax", gpu), candidate), guards_off=True)
    result, failure = run_stage(Stage.GRAPH_CAPTURE, bench)
    assert (failure, result.checked, "captured" in result.reason) == (None, 0, True), result.reason


STORED = "out[blockIdx.x * out_stride + col] = kw::from_float<T>("
TOOLS = {
    "memcheck": read(HERE / "specimens" / "MS1_reads_behind_the_end.cu").source(),
    "racecheck": read(HERE / "specimens" / "MS6_forgets_syncthreads.cu").source(),
    "initcheck": honest_source("softmax", "cuda").replace(
        STORED, f"{STORED}0 * kw::to_float(out[blockIdx.x * out_stride + col]) + "
    ),
}
"""What each sanitizer is there for; the last one reads an output nobody has written."""


@pytest.mark.parametrize("tool", TOOLS)
def test_each_sanitizer_finds_what_it_is_there_for(tool: str, room: Judge, gpu: Device) -> None:
    assert TOOLS["initcheck"] != honest_source("softmax", "cuda")
    op = "softmax" if tool == "initcheck" else "rmsnorm"
    candidate = author_candidate(op, "cuda", TOOLS[tool])
    result, failure = run_stage(Stage.SANITIZER, room.bench(problem_of(op, gpu), candidate))
    assert failure is not None, result.reason
    assert (failure.status, failure.reason.partition(":")[0]) == (Status.SANITIZER, tool), failure.reason
