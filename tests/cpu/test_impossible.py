"""Times beyond the maker's own figures for a device are refused, whoever measured them."""

from types import SimpleNamespace

import pytest

from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.verdict import Status
from kernelwright.hardware.peaks import least_seconds
from kernelwright.judge.heat import TimingFailed
from kernelwright.judge.timing import refuse_impossible

H200 = Device(kind=DeviceKind.CUDA, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=140 << 30)
BANDWIDTH, FP16 = 4.8e12, 989e12
"""What NVIDIA promises of it: bytes and dense products a second."""


def asked(op: str, sizes: dict[str, int], device: Device, call_us: float) -> None:
    """Have a time of one call looked at."""
    loaded = plugins.load("ops", op)
    problem = SimpleNamespace(device=device)
    refuse_impossible(
        SimpleNamespace(op=loaded, problem=problem),
        loaded.case(sizes, DType.FP16),
        call_us,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("op", "sizes", "least_us"),
    [
        ("softmax", {"rows": 4096, "cols": 50257}, 4 * 4096 * 50257 / BANDWIDTH * 1e6),
        ("matmul", {"m": 8192, "n": 8192, "k": 8192}, 2 * 8192**3 / FP16 * 1e6),
    ],
)
def test_a_call_faster_than_the_data_sheet_allows_is_impossible(
    op: str, sizes: dict[str, int], least_us: float
) -> None:
    asked(op, sizes, H200, 1.02 * least_us)
    with pytest.raises(TimingFailed) as failed:
        asked(op, sizes, H200, 0.98 * least_us)
    assert failed.value.failure.status is Status.IMPOSSIBLE
    assert "data sheet of H200 SXM" in failed.value.failure.reason


def test_a_device_without_a_data_sheet_rules_nothing_out() -> None:
    unknown, softmax = H200.model_copy(update={"name": "Unheard Of"}), plugins.load("ops", "softmax")
    sizes = {"rows": 4096, "cols": 50257}
    work = softmax.work(softmax.case(sizes, DType.FP16))
    assert least_seconds(work, H200) == pytest.approx(4 * 4096 * 50257 / BANDWIDTH, rel=0.01)
    assert least_seconds(work, unknown) is None
    asked("softmax", sizes, unknown, 0.001)
