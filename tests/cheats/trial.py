"""One specimen before the judge: what it earned, and whether that is a win for it."""

from dataclasses import dataclass
from pathlib import Path

from kernelwright.core.device import Device
from kernelwright.core.errors import ServiceDied
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.verdict import Outcome, Status
from kernelwright.engine.service import JudgeClient
from tests.cheats.specimen import Specimen

PLANTED = {
    Path("/tmp/kernelwright-planted-key"): "planted: nobody may read this\n",
    Path("/tmp/kernelwright-planted-answer"): "planted: nobody may read this either\n",
}
"""What stealing specimens look for, at names they know."""
SERVER = ("127.0.0.1", 47631)
"""Where a specimen looks for help."""


@dataclass(frozen=True)
class Earned:
    """What the judge said of a specimen."""

    status: Status | Outcome
    reason: str
    is_a_win: bool
    """Whether the judge was fooled."""

    def is_where(self, stage: str) -> bool:
        """Tell whether a stage said so; any does if none is named."""
        return not stage or self.reason.startswith(f"{stage}: ")


def judged(client: JudgeClient, specimen: Specimen, device: Device, way: str) -> Earned:
    """Return what a specimen earns by a verdict, or by a comparison with the honest kernel."""
    problem = specimen.problem(device)
    if way == "verdict":
        found = client.evaluate(problem, specimen.candidate(), specimen.profile)
        reason = f"{found.failure.stage}: {found.failure.reason}" if found.failure else ""
        return Earned(found.status, reason, found.status is Status.ACCEPTED or found.timing is not None)
    compared = client.compare(problem, specimen.honest(), specimen.candidate())
    if isinstance(compared, Disqualified):
        if compared.candidate_hash == specimen.honest().hash:  # then nothing is known of the specimen
            raise ServiceDied("judge", f"the honest kernel of {specimen.name} failed: {compared.reason}")
        return Earned(compared.status, compared.reason, compared.status is Status.ACCEPTED)
    is_a_win = compared.outcome is Outcome.FASTER or compared.ratio > specimen.most_gain
    return Earned(compared.outcome, f"x{compared.ratio:.2f} in {compared.pairs} heats", is_a_win)
