"""A region of a model's graph as text: what a problem of op `graph` computes, and the kernels written from it."""

from pydantic import Field

from kernelwright.core.frozen import Frozen, digest


class CapturedRegion(Frozen):
    """The text of a region, and plain kernels of it."""

    source: str
    """The region as Python: `Model`, `get_inputs`, `get_init_inputs`. It is the reference."""
    kernels: dict[str, str] = Field(default_factory=dict)
    """Sources written from the captured graph, by language; where a search begins. No part of what is computed."""
    not_plain: str = ""
    """Why a language is missing: what no plain loops are known for."""

    @property
    def reference_hash(self) -> str:
        """Return what tells one region from another: the hash of its text."""
        return digest(self.source)
