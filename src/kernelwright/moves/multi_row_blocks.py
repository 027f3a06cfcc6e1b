"""More or fewer rows per program: what rows share is loaded once, and short rows fill a block."""

from collections.abc import Sequence

from kernelwright.core.plan_language import PlanFault
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._params import widened, words_of

SUMMARY = "more or fewer rows in a tile than listed"
BACKENDS = ("triton", "cuda")
AGAINST = (Bottleneck.OCCUPANCY, Bottleneck.LAUNCH_OVERHEAD, Bottleneck.MEMORY_LATENCY)
WORDS = ({"tile", "elements"}, {"tile", "heads"}, {"tile", "rows"}, {"rows"}, {"heads"})
"""Words in the name of a parameter that says how many rows a block takes."""


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return one source per number of rows beyond those listed."""
    try:
        found = [
            moved
            for _, _, moved in widened(
                subject.source,
                subject.backend,
                lambda name: any(one <= words_of(name) for one in WORDS),
                (2, 0.5),
            )
        ]
    except PlanFault as error:
        return str(error)
    return found or "no parameter says how many rows a block takes"
