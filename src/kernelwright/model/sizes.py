"""The same model at other sizes: twice the batch, half of every axis that is named as changing."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.model.arguments import Arguments, InputSet

BATCH = "batch"
APART = 7919
"""Between the seeds of two inputs that are put together into one batch."""


@dataclass(frozen=True)
class Resized:
    """A set of inputs at another size."""

    name: str
    """Such as `prefill, batch 2`."""
    make: Callable[[int], Arguments]


def other_sizes(module: torch.nn.Module, one: InputSet) -> tuple[list[Resized], str]:
    """Return the other sizes a set can be had in, and what cannot be varied, in words."""
    bound = _bound(module, one.make(0))
    tensors = {name: value for name, value in bound.arguments.items() if isinstance(value, torch.Tensor)}
    named = sorted({label for axes in one.dynamic.values() for label in axes.values()})
    found = [size for label in named if label != BATCH and (size := _halved(module, one, label))]
    places = _places(one, BATCH) or {name: {0} for name, value in tensors.items() if value.ndim}
    extents = {tensors[name].shape[axis] for name, axes in places.items() if name in tensors for axis in axes}
    if len(extents) == 1 and (extent := extents.pop()):
        found.append(_doubled(module, one, places, extent))
        return found, ""
    return found, f"set {one.name!r}: its tensors share no first axis, so the batch was not varied"


def _bound(module: torch.nn.Module, given: Arguments) -> inspect.BoundArguments:
    return inspect.signature(module.forward).bind(*given.args, **given.kwargs)


def _places(one: InputSet, label: str) -> dict[str, set[int]]:
    """Return the axes of each argument that have a name."""
    found = {
        name: {axis for axis, other in axes.items() if other == label} for name, axes in one.dynamic.items()
    }
    return {name: axes for name, axes in found.items() if axes}


def _changed(module: torch.nn.Module, given: Arguments, changes: dict[str, Any]) -> Arguments:
    bound = _bound(module, given)
    bound.arguments.update(changes)
    return Arguments(bound.args, bound.kwargs)


def _doubled(module: torch.nn.Module, one: InputSet, places: dict[str, set[int]], extent: int) -> Resized:
    def make(seed: int) -> Arguments:
        given = one.make(seed)
        own, other = (_bound(module, one.make(place)).arguments for place in (seed, seed + APART))
        changes = {}
        for name in places.keys() & own.keys():
            value = own[name]
            for axis in places[name]:
                value = torch.cat((value, other[name]), axis)
            changes[name] = value
        return _changed(module, given, changes)

    return Resized(f"{one.name}, batch {2 * extent}", make)


def _halved(module: torch.nn.Module, one: InputSet, label: str) -> Resized | None:
    """Return a set with a named axis half as long: a part of legal values is legal where more of them may not be."""
    places = _places(one, label)
    first = _bound(module, one.make(0)).arguments
    extents = {
        first[name].shape[axis]
        for name, axes in places.items()
        if isinstance(first.get(name), torch.Tensor)
        for axis in axes
    }
    if len(extents) != 1 or (extent := extents.pop()) < 2:
        return None

    def make(seed: int) -> Arguments:
        given = one.make(seed)
        own = _bound(module, given).arguments
        changes = {}
        for name in places.keys() & own.keys():
            value = own[name]
            for axis in places[name]:
                value = value.narrow(axis, 0, extent // 2)
            changes[name] = value.contiguous()
        return _changed(module, given, changes)

    return Resized(f"{one.name}, {label} {extent // 2}", make)
