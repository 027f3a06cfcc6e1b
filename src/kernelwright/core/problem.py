"""`Problem`: an op bound to the real cases of one model on one device."""

from pydantic import Field, model_validator

from kernelwright.core.captured import CapturedRegion
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.frozen import Noun


class Problem(Noun):
    """What is to be made faster, and the sizes that count."""

    op: str
    """The op, or `graph` for a region captured from a model."""
    cases: tuple[Case, ...] = Field(min_length=1)
    """The sizes really seen, weighted by time."""
    device: Device
    """Where it must be fast."""
    reference: str | None = None
    """`module:qualname`, `file:PATH#SHA256` or blob of the captured region if the reference is not the op's own."""
    captured: CapturedRegion | None = None
    """What it computes as text, for a region captured from a model; what it says beyond the reference rides along."""
    count: int = Field(default=1, ge=1)
    """How often the region occurs in the model; no part of the identity."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of the model's time under the baseline; no part of the identity."""

    def identity(self) -> object:
        """Return op, cases with their weights, device and reference."""
        cases = sorted((case.hash, case.weight) for case in self.cases)
        # A region is what its text says, wherever the file of it lies.
        reference = self.captured.reference_hash if self.captured else self.reference
        return [self.op, cases, self.device.hash, reference]

    @model_validator(mode="after")
    def _cases_belong(self) -> "Problem":
        strangers = {case.op for case in self.cases} - {self.op}
        if strangers:
            raise ValueError(f"problem of op {self.op!r} holds cases of {sorted(strangers)}")
        return self
