"""Times that no device of that kind can reach: where a candidate is timed alone, and where it is raced."""

from kernelwright.core.case import Case
from kernelwright.core.verdict import Status
from kernelwright.hardware.peaks import least_seconds, peak
from kernelwright.judge.stages import Bench, Failure


def impossible(bench: Bench, case: Case, call_us: float) -> Failure | None:
    """Return why a time is none, if the maker's own figures for the device rule it out."""
    sheet, least = peak(bench.problem.device), least_seconds(bench.op.work(case), bench.problem.device)
    if sheet is None or least is None or call_us >= least * 1e6:
        return None
    reason = (
        f"{call_us:.2f} us a call, where the data sheet of {sheet.part} allows {least * 1e6:.2f} us at best"
    )
    return Failure(Status.IMPOSSIBLE, reason, case)
