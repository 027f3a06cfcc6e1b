"""Does the model run on its inputs, and does a call fit into the memory there is? Asked before anything is measured.

A call that is too large is found by a dry run, and the same dry runs tell the largest size that fits.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelwright.core.errors import InputsDoNotFit, OutOfMemory
from kernelwright.core.model_spec import ModelMode
from kernelwright.model.arguments import Arguments, InputSet
from kernelwright.model.dry_run import USER_MISTAKES, dry_run, said, without_memory
from kernelwright.model.load import Loaded
from kernelwright.model.memory import free_bytes, is_out_of_memory, limited_to, size, weight_bytes

USABLE = 0.9
"""Share of the free memory a call may take: allocators keep some, and work spaces are not seen by a dry run."""
BATCH = "batch"
DRY_RUNS = 12
"""Bound of the search for the largest size; a size linear in its axis is found in three."""
Free = Callable[[torch.device], int]
Resized = Callable[[int, FakeTensorMode], Arguments]


def check(loaded: Loaded, free: Free = free_bytes) -> None:
    """Call the model once on every set of inputs; raise in one line what does not fit, and what would."""
    for one in loaded.sets:
        budget = int(USABLE * free(loaded.device))
        need = _need(loaded, functools.partial(without_memory, one))
        if need is not None and need > budget:
            raise out_of_memory(loaded, one, budget)
        # A CPU's memory is limited, so that what a dry run cannot tell ends in an exception; a GPU's raises by itself.
        limit = limited_to(free_bytes(loaded.device)) if loaded.device.type == "cpu" else nullcontext()
        try:
            with limit:
                _call(loaded, one)
        except (MemoryError, RuntimeError) as error:
            raise out_of_memory(loaded, one, budget) from error


def _call(loaded: Loaded, one: InputSet) -> None:
    """Call the model; raises InputsDoNotFit, or what an allocator raises."""
    arguments = one.make(0)
    try:
        arguments.named(loaded.module)
        with loaded.calling():
            arguments.call(loaded.module)
    except USER_MISTAKES as error:
        if is_out_of_memory(error):
            raise
        takes = ", ".join(inspect.signature(loaded.module.forward).parameters)
        shapes = [f"{tuple(item.shape)} {item.dtype}".replace("torch.", "") for item in arguments.tensors()]
        raise InputsDoNotFit(
            loaded.spec,
            f"forward({takes}) raises {said(error)} on set {one.name!r}: {', '.join(shapes)}",
            "Mend sample_inputs, or pass --input, with a name if need be: --input NAME=1,512:int64.",
        ) from error


def _need(loaded: Loaded, make: Callable[[FakeTensorMode], Arguments]) -> int | None:
    """Return the bytes a call takes beside the weights; None if a dry run cannot tell."""
    with loaded.calling():
        found = dry_run(loaded.module, make)
    if found.error is not None:
        return None
    gradients = weight_bytes(loaded.module) if loaded.mode is ModelMode.TRAIN else 0
    return found.peak_bytes + gradients


def out_of_memory(loaded: Loaded, one: InputSet, budget: int) -> OutOfMemory:
    """Return the error for a call that does not fit, with the largest size that does."""
    need = _need(loaded, functools.partial(without_memory, one))
    beside = f"beside {size(weight_bytes(loaded.module))} of weights"
    needs = (
        f"set {one.name!r} needs {size(need)} {beside}" if need else f"set {one.name!r} does not fit {beside}"
    )
    remedy = "Make its inputs smaller, pass --dtype bf16, or use a larger device."
    for axis in _axes(one):
        if found := largest(loaded, one, axis, budget):
            remedy = f"The largest {axis} that fits is {found}."
            break
    return OutOfMemory(loaded.spec, needs, f"{size(budget)} can be used on {loaded.device}", remedy)


def _axes(one: InputSet) -> list[str]:
    """Return the axes that can be made shorter, the batch first."""
    named = {label for axes in one.dynamic.values() for label in axes.values()}
    return [BATCH, *sorted(named - {BATCH})]


def _resizing(loaded: Loaded, one: InputSet, axis: str) -> tuple[int, Resized] | None:
    """Return an axis's extent, and what makes arguments with another; None if the inputs have no such axis."""
    try:
        named = without_memory(one, FakeTensorMode()).named(loaded.module)
    except USER_MISTAKES:
        return None
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    places = {
        name: {place for place, label in axes.items() if label == axis}
        for name, axes in one.dynamic.items()
        if name in tensors
    }
    if axis == BATCH and not any(places.values()):
        # Nobody named it: the first axis, if all tensors agree on it.
        places = {name: {0} for name, value in tensors.items() if value.ndim}
    extents = {tensors[name].shape[place] for name, found in places.items() for place in found}
    if len(extents) != 1:
        return None

    def resized(extent: int, mode: FakeTensorMode) -> Arguments:
        values = dict(named)
        for name, tensor in tensors.items():
            shape = [
                extent if place in places.get(name, ()) else old for place, old in enumerate(tensor.shape)
            ]
            with mode:
                values[name] = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        return Arguments(kwargs=values)

    return extents.pop(), resized


def largest(loaded: Loaded, one: InputSet, axis: str, budget: int) -> int:
    """Return the largest extent of an axis at which a call fits; zero if none does or nobody can tell."""
    found = _resizing(loaded, one, axis)
    if found is None:
        return 0
    extent, resized = found

    def need(value: int) -> int | None:
        return _need(loaded, functools.partial(resized, value))

    low, high = 1, extent
    low_need, high_need = need(low), need(high)
    if low_need is None or high_need is None or low_need > budget:
        return 0
    if high_need <= budget:
        return high
    for _ in range(DRY_RUNS):
        if high - low <= 1:
            break
        # Where the line through both ends meets the budget: memory is linear in a batch.
        guess = low + int((high - low) * (budget - low_need) / (high_need - low_need))
        guess = min(max(guess, low + 1), high - 1)
        middle = need(guess)
        if middle is None:
            return low
        if middle <= budget:
            low, low_need = guess, middle
        else:
            high, high_need = guess, middle
    return low
