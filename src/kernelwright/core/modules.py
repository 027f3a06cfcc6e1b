"""A user's torch module as a case: what its tensors are called, so that every room reads the same roles from a name.

`input:0` is the first argument of `forward`, `state:conv.weight` an entry of the state dict; a third word says how its
values are drawn: `index` (integers below the extent in the axes), `positive` or `unit`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from kernelwright.core.case import Case

OP = "module"
INIT_INPUTS = "init_inputs"
"""Parameter value of a candidate: the arguments of `ModelNew`, as Python writes them."""


class Role(StrEnum):
    """How the values of a tensor are drawn."""

    SIGNED = ""
    """By the distribution, both signs."""
    POSITIVE = "positive"
    """By the distribution, magnitudes only."""
    UNIT = "unit"
    """Between zero and one."""
    INDEX = "index"
    """Integers from zero up to an extent."""


class Named(NamedTuple):
    """What a tensor's name says."""

    is_state: bool
    key: str
    """Position among the arguments, or key in the state dict."""
    role: Role


def spelled(name: Named) -> str:
    """Return the name of a tensor."""
    words = ["state" if name.is_state else "input", name.key, name.role.value]
    return ":".join(word for word in words if word)


def read(name: str) -> Named:
    """Return what a name says."""
    kind, key, *rest = name.split(":")
    return Named(kind == "state", key, Role(rest[0] if rest else ""))


def index_axis(name: str) -> str:
    """Return the axis that holds the extent an index tensor stays below."""
    return f"{name}:values"


def arguments(case: Case, tensors: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of `forward` in order and the state by key. `Any`: tensors, which core does not know."""
    placed: dict[int, Any] = {int(read(name).key): value for name, value in case.scalars.items()}
    state: dict[str, Any] = {}
    for name, tensor in tensors.items():
        found = read(name)
        if found.is_state:
            state[found.key] = tensor
        else:
            placed[int(found.key)] = tensor
    return [placed[place] for place in sorted(placed)], state
