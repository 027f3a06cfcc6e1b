"""judge -> foundry: `StartBuilder`, `Reap`; judge -> builder: `BuildRequest`; back: `Enclosed`, then `BuildReply`."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kernelwright.core.candidate import ParamValue
from kernelwright.core.frozen import Frozen
from kernelwright.core.messages.runner import Reap
from kernelwright.core.plan import KernelUnit
from kernelwright.core.ports import BuildResult


class BuildRequest(Frozen):
    """Ask the builder for an artefact."""

    backend: str
    source: str
    folder: str
    values: dict[str, ParamValue] = Field(default_factory=dict)
    """Parameters bound at build time (tier B)."""
    units: tuple[KernelUnit, ...] = ()
    """Kernels to compile (tier A)."""
    target: str = ""
    """Architecture to compile for (tier A)."""
    guards_off: bool = False
    """Tests only: build what the static guards of a tier-A language would refuse."""


class Enclosed(Frozen):
    """How a builder is shut in, told before it looks at a source: nothing that is built can have a say in it."""

    sandbox: str
    """Names of the layers in force."""


class BuildReply(Frozen):
    """One result (tier B), or one per unit in order (tier A)."""

    results: tuple[BuildResult, ...]


BUILD_REQUEST: TypeAdapter[BuildRequest] = TypeAdapter(BuildRequest)


ENCLOSED: TypeAdapter[Enclosed] = TypeAdapter(Enclosed)


BUILD_REPLY: TypeAdapter[BuildReply] = TypeAdapter(BuildReply)


class StartBuilder(Frozen):
    """Ask the foundry for a fresh builder; its conversation and its log ride along as descriptors."""

    type: Literal["start_builder"] = "start_builder"
    backend: str = ""
    """Whose compilers it needs; empty for a builder that is only asked how it is shut in."""
    folder: str
    """Working folder of the builder, its own."""


FoundryOrder = Annotated[StartBuilder | Reap, Field(discriminator="type")]


FOUNDRY_ORDER: TypeAdapter[FoundryOrder] = TypeAdapter(FoundryOrder)
