"""Times that no device of that kind can reach: where a candidate is timed alone, and where it is raced."""

from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.device import DeviceKind
from kernelwright.core.verdict import Status
from kernelwright.hardware import cpu_peak, peaks
from kernelwright.judge.stages import Bench, Failure


def impossible(bench: Bench, case: Case, call_us: float) -> Failure | None:
    """Return why a time is none, if the maker's figures for a GPU or the instructions of a CPU rule it out."""
    known = _least(bench, case)
    if known is None or call_us >= known[0] * 1e6:
        return None
    least, whose = known
    reason = f"{call_us:.4g} us a call, where {whose} at best {least * 1e6:.4g} us"
    return Failure(Status.IMPOSSIBLE, reason, case)


def _least(bench: Bench, case: Case) -> tuple[float, str] | None:
    """Return the seconds a case takes at best and who allows them, where anybody does."""
    device, work = bench.problem.device, bench.op.work(case)
    if device.kind is DeviceKind.CPU:
        least = None if any(map(_repeats, case.inputs)) else cpu_peak.least_seconds(work)
        whose = f"the instructions of {device.name} allow"
    else:
        sheet, least = peaks.peak(device), peaks.least_seconds(work, device)
        whose = f"the data sheet of {sheet.part} allows" if sheet else ""
    return None if least is None else (least, whose)


def _repeats(spec: TensorSpec) -> bool:
    """Tell whether one row stands for several: what is counted for each of them need be computed only once."""
    extents = zip(spec.shape, spec.element_strides, strict=True)
    return any(extent > 1 and not stride for extent, stride in extents)
