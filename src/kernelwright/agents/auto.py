"""The keyless author: structure by the mover, values by the tuner, whichever has more to say about the parent.

A source nobody has looked at is tuned first, so that what is changed next starts from good values; after that its
structure is changed, and every new structure is tuned in turn.
"""

from dataclasses import dataclass

from kernelwright.core import plugins
from kernelwright.core.brief import Answer, Brief
from kernelwright.core.ports import Agent
from kernelwright.core.verdict import Status

SUMMARY = "moves and tuned values in turn; needs no key"
AUTHORS = ("tuner", "mover")


def author(detail: str = "") -> Agent:
    """Return the author; `detail` names the authors to take turns, all of them if it is empty."""
    known = plugins.names("agents")
    names = detail.split("+") if detail else [name for name in AUTHORS if name in known]
    return Panel(tuple(plugins.load("agents", name).author() for name in names))


@dataclass(frozen=True)
class Panel:
    """Several authors, of whom the first one with something to say answers."""

    authors: tuple[Agent, ...]

    def propose(self, brief: Brief) -> Answer:
        """Return the first answer with a proposal or a wish for looks."""
        if brief.evaluations and brief.evaluations[0].status is not Status.ACCEPTED:
            return Answer(reason="nobody here mends what the judge refused")
        reasons = []
        for one in self._order(brief):
            answer = one.propose(brief)
            if answer.proposals or answer.trials:
                return answer
            reasons.append(answer.reason)
        return Answer(reason="; ".join(reasons) or "there is no author")

    def _order(self, brief: Brief) -> tuple[Agent, ...]:
        """Return who is asked first: the tuner if this source was never looked at, or every other time."""
        is_new = not brief.screenings
        return self.authors if is_new or brief.diagnosis % 2 else self.authors[::-1]
