"""Arguments of a call as data, and data as arguments again: shapes, types and strides without the values."""

import ast
import inspect
import platform
from collections.abc import Callable
from typing import Any

import torch

from kernelwright.backends._bare_table import processor_name
from kernelwright.core.case import DType
from kernelwright.core.errors import BadInput
from kernelwright.core.tuned import Argument, ArgumentKind, FunctionCall
from kernelwright.model.graph import DTYPES, spec_of
from kernelwright.ops._draw import torch_dtype

LITERALS = (int, float, bool, str, type(None))
TENSORS = (torch.Tensor, torch.nn.Parameter)
INTEGERS = (DType.INT64, DType.INT32)
REMEDY = "Pass tensors, numbers, strings, None, and tuples, lists or dicts of them."


def bound(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in their one spelling, defaults filled in; raises TypeError if they do not fit."""
    found = inspect.signature(function).bind(*args, **kwargs)
    found.apply_defaults()
    return found.args, found.kwargs


def described(args: tuple[Any, ...], kwargs: dict[str, Any], *, with_values: bool = False) -> FunctionCall:
    """Return a call as data; `with_values` looks at integers and signs, so that samples can be drawn like them."""
    return FunctionCall(
        args=tuple(_argument(one, with_values) for one in args),
        kwargs={name: _argument(one, with_values) for name, one in kwargs.items()},
    )


def _argument(value: Any, with_values: bool) -> Argument:
    if isinstance(value, torch.Tensor):
        return _tensor(value, with_values)
    if type(value) in LITERALS:
        text = repr(value)
        if text in ("nan", "inf", "-inf"):
            raise BadInput("a call", f"an argument is {text}", "Pass finite numbers.")
        return Argument(kind=ArgumentKind.LITERAL, text=text)
    if isinstance(value, torch.dtype):
        return Argument(kind=ArgumentKind.DTYPE, text=str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return Argument(kind=ArgumentKind.DEVICE, text=str(value))
    if type(value) in (tuple, list, torch.Size):
        kind = ArgumentKind.LIST if type(value) is list else ArgumentKind.TUPLE
        return Argument(kind=kind, items=tuple(_argument(one, with_values) for one in value))
    if type(value) is dict and all(isinstance(key, str) for key in value):
        items = tuple(_argument(one, with_values) for one in value.values())
        return Argument(kind=ArgumentKind.DICT, items=items, names=tuple(value))
    raise BadInput("a call", f"an argument is a {type(value).__name__}", REMEDY)


def _tensor(value: torch.Tensor, with_values: bool) -> Argument:
    if type(value) not in TENSORS or value.layout is not torch.strided:
        raise BadInput("a call", f"an argument is a {type(value).__name__} of its own kind", REMEDY)
    if value.dtype not in DTYPES:
        known = ", ".join(kind.value for kind in DTYPES.values())
        raise BadInput("a call", f"an argument is of {value.dtype}", f"Known: {known}.")
    # A copy in the same layout starts where it likes; the guards of a kernel look at where each call's tensors start.
    spec = spec_of("", value).model_copy(update={"offset": 0})
    facts: dict[str, Any] = {}
    if with_values and value.numel():
        if spec.dtype in INTEGERS:
            facts = {"low": int(value.min()), "below": int(value.max()) + 1}
        elif value.is_floating_point():
            facts = {"positive": bool((value > 0).all())}
    return Argument(kind=ArgumentKind.TENSOR, tensor=spec, **facts)


def tensors_of(call: FunctionCall) -> list[Argument]:
    """Return the tensors of a call in order."""
    found: list[Argument] = []
    waiting = [*call.args, *call.kwargs.values()]
    while waiting:
        one = waiting.pop(0)
        waiting[:0] = one.items
        if one.tensor is not None:
            found.append(one)
    return found


def drawn(call: FunctionCall, seed: int, device: str) -> list[torch.Tensor]:
    """Return fresh tensors for a call: the same seed gives the same values."""
    generator = torch.Generator().manual_seed(seed)
    return [_drawn(one, generator).to(torch.device(device)) for one in tensors_of(call)]


def _drawn(one: Argument, generator: torch.Generator) -> torch.Tensor:
    assert one.tensor is not None
    spec, kind = one.tensor, torch_dtype(one.tensor.dtype)
    if spec.dtype in INTEGERS:
        values = torch.randint(one.low, max(one.low + 1, one.below), spec.shape, generator=generator)
    elif spec.dtype is DType.BOOL:
        values = torch.rand(spec.shape, generator=generator) < 0.5
    else:
        values = torch.randn(spec.shape, generator=generator)
        values = values.abs() + 2.0**-10 if one.positive else values
    if spec.is_contiguous:
        return values.to(kind)
    # An axis of stride zero holds one value for all.
    made = torch.empty_strided(spec.shape, spec.element_strides, dtype=kind)
    for axis, stride in enumerate(spec.element_strides):
        if not stride and spec.shape[axis]:
            made, values = made.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
    return made.copy_(values).expand(spec.shape)


def filled(call: FunctionCall, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with these tensors in their places."""
    left = list(tensors)
    args = tuple(_filled(one, left) for one in call.args)
    return args, {name: _filled(one, left) for name, one in call.kwargs.items()}


def _filled(one: Argument, left: list[torch.Tensor]) -> Any:
    match one.kind:
        case ArgumentKind.TENSOR:
            return left.pop(0)
        case ArgumentKind.LITERAL:
            return ast.literal_eval(one.text)
        case ArgumentKind.DTYPE:
            return getattr(torch, one.text)
        case ArgumentKind.DEVICE:
            return torch.device(one.text)
        case ArgumentKind.DICT:
            return {name: _filled(item, left) for name, item in zip(one.names, one.items, strict=True)}
        case ArgumentKind.TUPLE:
            return tuple(_filled(item, left) for item in one.items)
    return [_filled(item, left) for item in one.items]


def place_name(device: torch.device) -> str:
    """Return what a device is, and what else decides a function's answer: torch's default type."""
    if device.type == "cpu":
        here = f"{processor_name()} {platform.machine()}"
    else:
        here = f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
    return f"{device.type}: {here}, {torch.get_default_dtype()}"
