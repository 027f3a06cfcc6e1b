"""How many calls a timed graph holds on a GPU; told by sizes alone, so that no GPU is needed."""

import pytest

from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.judge.device_heat import LEAST_CALLS, MOST_CALLS, calls_for
from kernelwright.judge.passes import spared_of

H200 = Device(
    kind=DeviceKind.CUDA,
    name="NVIDIA H200",
    arch="sm_90",
    units=132,
    memory_bytes=140 << 30,
    cache_bytes=60 << 20,
)
UNKNOWN = H200.model_copy(update={"name": "Unheard Of"})


@pytest.mark.parametrize("device", [H200, UNKNOWN], ids=["H200", "unknown"])
@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("softmax", {"rows": 4096, "cols": 50257}),
        ("softmax", {"rows": 8, "cols": 64}),
        ("rmsnorm", {"rows": 3000, "cols": 5000}),
        ("matmul", {"m": 4096, "n": 4096, "k": 4096}),
    ],
)
def test_a_graph_leaves_nothing_in_the_cache(op: str, sizes: dict[str, int], device: Device) -> None:
    case = plugins.load("ops", op).case(sizes, DType.FP16)
    calls = calls_for(case, device)
    made = calls - spared_of(calls)
    moved = made * sum(spec.nbytes for spec in (*case.inputs, *case.outputs))
    assert LEAST_CALLS <= calls <= MOST_CALLS
    assert calls == MOST_CALLS or moved >= 4 * device.cache_bytes


def test_long_calls_are_few_where_the_data_sheet_tells_their_length() -> None:
    long = plugins.load("ops", "matmul").case({"m": 4096, "n": 4096, "k": 4096}, DType.FP32)
    assert calls_for(long, H200) == LEAST_CALLS  # 2 ms each
    assert calls_for(long, UNKNOWN) == 22
