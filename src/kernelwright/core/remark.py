"""`Remark`: what one author concluded from one attempt, failures too; the shared memory is made of them."""

from pydantic import Field

from kernelwright.core.brief import Ending
from kernelwright.core.frozen import Frozen
from kernelwright.core.thinking import Reflection
from kernelwright.core.verdict import Status


class Remark(Frozen):
    """An entry of the shared memory."""

    problem_hash: str
    """About which problem."""
    candidate_hash: str
    """About which attempt."""
    parent_hash: str = ""
    """What that was made from; empty for a first draft."""
    agent: str
    """Who tried it: the author as it was named, and its place in the crew."""
    worker: int = Field(default=0, ge=0)
    """That place, from 0."""
    outcome: Ending
    """How it ended."""
    status: Status
    """What the judge said."""
    bottleneck: str = ""
    """What it worked against; empty if that was left open."""
    reflection: Reflection | None = None
    """What its author made of it; None if it gave no usable answer."""
    reason: str = ""
    """Why there is no reflection."""
