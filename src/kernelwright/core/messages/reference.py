"""judge -> reference: `ReferenceRequest`, `Describe`; reference -> judge: `ReferenceDone`, `Described`."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.frozen import Frozen
from kernelwright.core.messages.judge import Describe, Described
from kernelwright.core.messages.runner import Region

RESULT_ALIGNMENT = 16


def result_offsets(specs: tuple[TensorSpec, ...]) -> tuple[int, ...]:
    """Return where each result lies in its slab, and behind the last one the size of the whole."""
    ends = [0]
    for spec in specs:
        ends.append(ends[-1] + -(-spec.nbytes // RESULT_ALIGNMENT) * RESULT_ALIGNMENT)
    return tuple(ends)


class ReferenceRequest(Frozen):
    """Ask the reference for one call's answers; input and result slabs ride along as descriptors."""

    type: Literal["answer"] = "answer"
    op: str
    reference: str | None
    case: Case
    regions: dict[str, Region]
    device: str = "cpu"
    """Where the framework's own answer is computed: the device the problem is about."""
    results: tuple[TensorSpec, ...]
    """Per output: the float64 answer, the framework's answer, the error scale, in the slab at `result_offsets`."""
    input_bytes: int = Field(default=0, ge=0)
    result_bytes: int = Field(default=0, ge=0)
    """Sizes of the two, where they lie in the memory of a GPU."""


class ReferenceDone(Frozen):
    """The answers are in the slab."""

    error: str | None = None
    """What the reference raised, if it did."""


ReferenceOrder = Annotated[ReferenceRequest | Describe, Field(discriminator="type")]


REFERENCE_ORDER: TypeAdapter[ReferenceOrder] = TypeAdapter(ReferenceOrder)


REFERENCE_DONE: TypeAdapter[ReferenceDone] = TypeAdapter(ReferenceDone)


DESCRIBED: TypeAdapter[Described] = TypeAdapter(Described)
