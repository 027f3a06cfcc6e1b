"""The arguments of a model, and the named, weighted sets of them it is called with."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

Axes = dict[str, dict[int, str]]
"""Argument of `forward` to axis to name, for axes that change from call to call."""


@dataclass(frozen=True)
class Arguments:
    """One call's arguments. `Any`: a forward may take tensors, flags, or objects of its own."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, module: Callable[..., Any]) -> Any:
        """Return what the module answers."""
        return module(*self.args, **self.kwargs)

    def tensors(self) -> list[torch.Tensor]:
        """Return every tensor inside, in order."""
        leaves = tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Arguments":
        """Return the same arguments with every tensor changed."""

        def one(leaf: Any) -> Any:
            return change(leaf) if isinstance(leaf, torch.Tensor) else leaf

        return Arguments(tree_map(one, self.args), tree_map(one, self.kwargs))

    def named(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return the arguments by the names `forward` gives them; raises TypeError if they do not fit."""
        bound = inspect.signature(module.forward).bind(*self.args, **self.kwargs)
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            match bound.signature.parameters[name].kind:
                case inspect.Parameter.VAR_KEYWORD:
                    found |= value
                case inspect.Parameter.VAR_POSITIONAL:
                    found |= {f"{name}{place}": item for place, item in enumerate(value)}
                case _:
                    found[name] = value
        return found


@dataclass(frozen=True)
class InputSet:
    """One way a model is called."""

    name: str
    """Such as `prefill` or `batch8`."""
    weight: float
    """Its share of the calls; the shares of a model's sets add up to one."""
    make: Callable[[int], Arguments]
    """Makes the arguments for a seed: the same seed gives the same values."""
    dynamic: Axes = field(default_factory=dict)
    """Names of the axes that change from call to call."""
    is_drawn: bool = False
    """Whether the values are ours: such a set can be made without memory, a user's function must not see that."""


def normalised(sets: Sequence[InputSet]) -> tuple[InputSet, ...]:
    """Return the sets with weights that add up to one."""
    total = sum(one.weight for one in sets)
    return tuple(replace(one, weight=one.weight / total) for one in sets)


def positional(arguments: Arguments, module: torch.nn.Module) -> tuple[Any, ...]:
    """Return the arguments as a tuple for `module(*inputs)`; raises TypeError for a keyword-only one."""
    if not arguments.kwargs:
        return arguments.args
    bound = inspect.signature(module.forward).bind(*arguments.args, **arguments.kwargs)
    named = dict(bound.arguments)
    bound.apply_defaults()
    if only := sorted(set(bound.kwargs) & set(arguments.kwargs)):
        raise TypeError(f"{only[0]!r} can only be given by keyword")
    places = list(bound.arguments)
    return bound.args[: 1 + max(places.index(name) for name in named)]
