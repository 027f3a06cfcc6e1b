"""What a model is called with: named, weighted sets of arguments, made anew for every seed.

They come from shapes on the command line, from a function beside the model, or from the caller. A function returns one
of: a tensor, a tuple of positional arguments, a dict of keyword arguments, or a list of sets, each a dict with `name`,
`args` and/or `kwargs`, and if wanted `weight` (how often it is called, relative to the others) and `dynamic` (names of
axes that change: `{"tokens": ("batch", "seq")}`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelwright.core.case import DType
from kernelwright.core.errors import InputsDoNotFit
from kernelwright.core.model_spec import InputSpec
from kernelwright.model.arguments import Arguments, Axes, InputSet
from kernelwright.model.dry_run import USER_MISTAKES, dry_run, said
from kernelwright.model.memory import is_out_of_memory
from kernelwright.ops._draw import torch_dtype

INTEGERS = (DType.INT64, DType.INT32)
SET_KEYS = ("name", "weight", "args", "kwargs", "dynamic")
FORMS = (
    "sample_inputs(seed) returns a tuple, a dict of keyword arguments, or a list of sets (docs/loading.md)."
)


def _parsed(spec: str, value: Any, source: str) -> list[tuple[InputSet, Arguments]]:
    """Return the sets that a function's answer describes, with this answer's own arguments."""

    def one(arguments: Arguments) -> list[tuple[InputSet, Arguments]]:
        return [(InputSet("input", 1.0, lambda _: arguments), arguments)]

    if isinstance(value, torch.Tensor):
        return one(Arguments((value,)))
    if _is_set(value):
        value = [value]
    if isinstance(value, Mapping):
        return one(Arguments(kwargs=dict(value)))
    if isinstance(value, tuple | list) and value and all(_is_set(item) for item in value):
        found = [_parsed_set(spec, item, source) for item in value]
        names = [item.name for item, _ in found]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputsDoNotFit(spec, f"{source} returns two sets named {twice[0]!r}", "Rename one.")
        return found
    if isinstance(value, tuple | list):
        return one(Arguments(tuple(value)))
    raise InputsDoNotFit(spec, f"{source} returns a {type(value).__name__}", FORMS)


def _is_set(value: object) -> bool:
    return isinstance(value, Mapping) and "name" in value and ("args" in value or "kwargs" in value)


def _parsed_set(spec: str, value: Mapping[str, Any], source: str) -> tuple[InputSet, Arguments]:
    name, weight = str(value["name"]), value.get("weight", 1.0)
    if unknown := [key for key in value if key not in SET_KEYS]:
        raise InputsDoNotFit(
            spec,
            f"set {name!r} of {source} has an unknown key {unknown[0]!r}",
            f"Known: {', '.join(SET_KEYS)}.",
        )
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
        raise InputsDoNotFit(
            spec, f"set {name!r} of {source} has the weight {weight!r}", "Give a number above zero."
        )
    args = value.get("args", ())
    arguments = Arguments(
        tuple(args) if isinstance(args, tuple | list) else (args,), dict(value.get("kwargs", {}))
    )
    dynamic: Axes = {}
    for argument, axes in dict(value.get("dynamic", {})).items():
        pairs = axes.items() if isinstance(axes, Mapping) else enumerate(axes)
        dynamic[str(argument)] = {int(axis): str(label) for axis, label in pairs if label}
    return InputSet(name, float(weight), lambda _: arguments, dynamic), arguments


def from_function(spec: str, function: Callable[[int], Any], source: str) -> tuple[InputSet, ...]:
    """Return the sets a function of the seed makes; it is called once to see how many there are."""

    def parsed(seed: int) -> list[tuple[InputSet, Arguments]]:
        try:
            value = function(seed)
        except USER_MISTAKES as error:
            if is_out_of_memory(error):
                raise
            raise InputsDoNotFit(spec, f"{source}({seed}) raises {said(error)}", FORMS) from error
        return _parsed(spec, value, source)

    def made(place: int, name: str) -> Callable[[int], Arguments]:
        def make(seed: int) -> Arguments:
            sets = parsed(seed)
            if place >= len(sets) or sets[place][0].name != name:
                raise InputsDoNotFit(
                    spec, f"{source}({seed}) has no set {name!r}", "Return the same sets for every seed."
                )
            return sets[place][1]

        return make

    first = parsed(0)
    return tuple(replace(found, make=made(place, found.name)) for place, (found, _) in enumerate(first))


def from_specs(
    specs: Sequence[InputSpec], module: torch.nn.Module, floating: torch.dtype
) -> tuple[InputSet, ...]:
    """Return the one set that shapes on the command line describe."""
    # Positional ones first: the order in which a call sees its tensors.
    ordered = sorted(specs, key=lambda one: one.name is not None)
    bounds = _bounds(ordered, module, floating)

    def make(seed: int) -> Arguments:
        generator = torch.Generator().manual_seed(seed)
        return _arranged(
            ordered,
            [_drawn(one, below, floating, generator) for one, below in zip(ordered, bounds, strict=True)],
        )

    try:
        named = _arranged(ordered, ordered).named(module)
    except TypeError:
        named = {}  # the check of the whole model says in words what does not fit
    dynamic: Axes = {
        argument: {axis: label for axis, label in enumerate(one.axes) if label}
        for argument, one in named.items()
        if any(one.axes)
    }
    return (InputSet("input", 1.0, make, dynamic, is_drawn=True),)


def _arranged(specs: Sequence[InputSpec], values: Sequence[Any]) -> Arguments:
    pairs = list(zip(specs, values, strict=True))
    return Arguments(
        tuple(value for one, value in pairs if one.name is None),
        {one.name: value for one, value in pairs if one.name is not None},
    )


def _kind(one: InputSpec, floating: torch.dtype) -> torch.dtype:
    return floating if one.dtype is None else torch_dtype(one.dtype)


def _drawn(one: InputSpec, below: int, floating: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    kind = _kind(one, floating)
    if kind.is_floating_point:
        return torch.randn(one.shape, generator=generator).to(kind)
    return torch.randint(0, below, one.shape, generator=generator).to(kind)


def _bounds(specs: Sequence[InputSpec], module: torch.nn.Module, floating: torch.dtype) -> list[int]:
    """Return below what the integers of each input stay.

    An input that is looked up as it stands stays below the rows of its table; any other below the smallest table, and
    below 2 where there is none.
    """
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    smallest = min((one.num_embeddings for one in module.modules() if isinstance(one, tables)), default=2)
    rows: dict[int, int] = {}
    if any(one.dtype in INTEGERS and one.below is None for one in specs):
        device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))

        def zeros(mode: FakeTensorMode) -> Arguments:
            with mode:
                made = [torch.zeros(one.shape, dtype=_kind(one, floating), device=device) for one in specs]
            return _arranged(specs, made)

        with torch.no_grad():
            rows = dry_run(module, zeros).rows
    return [
        one.below or (2 if one.dtype is DType.BOOL else rows.get(place, smallest))
        for place, one in enumerate(specs)
    ]
