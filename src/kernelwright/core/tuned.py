"""A function and one way of calling it, as data: what `kernelwright.tune` looks winners up by, and what it then runs.

1. A call is its arguments without their values: shapes, types and strides of tensors, everything else as it is written.
2. The key is made of the function's own code, the call and the device. It names a folder, `tuned/KEY` in the home.
3. `tuned.json` in it holds the function as steps: certified kernels, and the text of what lies between them.
"""

import re
from enum import StrEnum
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from kernelwright.core.case import TensorSpec
from kernelwright.core.errors import BadInput
from kernelwright.core.frozen import Frozen, canonical_json, digest
from kernelwright.core.region import MadeInput

FORMAT = 1
"""Bumped when an older reader would misunderstand a newer file."""
FOLDER, NAME, CALL = "tuned", "tuned.json", "call.json"
KEY_DIGITS = 32
HELP = "Remove the folder, or write it anew with `kernelwright tune --again`."


class ArgumentKind(StrEnum):
    """What an argument is."""

    TENSOR = "tensor"
    """Known by shape, type and strides."""
    LITERAL = "literal"
    """A number, a string or None, as Python writes it."""
    DTYPE = "dtype"
    """An element type of torch, by name."""
    DEVICE = "device"
    """A device of torch, by name."""
    TUPLE = "tuple"
    """A tuple of arguments."""
    LIST = "list"
    """A list of arguments."""
    DICT = "dict"
    """Arguments by name."""


class Argument(Frozen):
    """One argument of a call, or a part of one."""

    kind: ArgumentKind
    tensor: TensorSpec | None = None
    low: int = 0
    """Smallest value an integer tensor is drawn with."""
    below: int = 2
    """Integers are drawn below this."""
    positive: bool = False
    """Whether a floating-point tensor is drawn above zero."""
    text: str = ""
    """A literal, or the name of an element type or device."""
    items: tuple["Argument", ...] = ()
    names: tuple[str, ...] = ()
    """For a dict, the names of its items."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> "Argument":
        if (self.kind is ArgumentKind.TENSOR) != (self.tensor is not None):
            raise ValueError("a tensor, and only a tensor, has a shape")
        if self.kind is ArgumentKind.DICT and len(self.names) != len(self.items):
            raise ValueError(f"{len(self.items)} items have {len(self.names)} names")
        return self

    def identity(self) -> object:
        """Return what decides which kernels serve it: not how samples of it are drawn."""
        told = self.tensor.model_dump(mode="json", exclude={"name", "offset"}) if self.tensor else None
        return [self.kind.value, told, self.text, [one.identity() for one in self.items], self.names]

    def label(self) -> str:
        """Return it in a few words, such as `8x16 fp32`."""
        if self.tensor is not None:
            strided = "" if self.tensor.is_contiguous else " strided"
            return f"{'x'.join(map(str, self.tensor.shape)) or 'scalar'} {self.tensor.dtype.value}{strided}"
        if self.items or self.kind in (ArgumentKind.TUPLE, ArgumentKind.LIST, ArgumentKind.DICT):
            return f"({', '.join(one.label() for one in self.items)})"
        return self.text


class FunctionCall(Frozen):
    """One way a function is called; defaults are filled in, so that one call has one spelling."""

    args: tuple[Argument, ...] = ()
    kwargs: dict[str, Argument] = Field(default_factory=dict)

    def identity(self) -> object:
        """Return what decides which kernels serve it."""
        return [[one.identity() for one in self.args], {k: v.identity() for k, v in self.kwargs.items()}]

    def label(self) -> str:
        """Return the arguments in a few words."""
        named = [f"{name}={one.label()}" for name, one in self.kwargs.items()]
        return ", ".join([one.label() for one in self.args] + named)


class CallFile(Frozen):
    """`call.json`: which function is called, and how; what a run on it is started with."""

    spec: str
    """`path.py:function` or `package.module:function`."""
    call: FunctionCall
    device: str = "cpu"
    """Where its tensors lie, as torch names it."""


class TextStep(Frozen):
    """Operations that stay as they are."""

    kind: Literal["text"] = "text"
    source: str
    """A class `Model` whose `forward` takes the inputs and returns the outputs."""
    inputs: tuple[int, ...]
    """Numbers of values; the function's tensors come first."""
    outputs: tuple[int, ...]


class KernelStep(Frozen):
    """A certified kernel."""

    kind: Literal["kernel"] = "kernel"
    entry: int = Field(ge=0)
    """Place in the manifest beside it."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    given: tuple[TensorSpec, ...]
    """What the inputs must be."""
    made: tuple[MadeInput, ...]
    """How the kernel's inputs are made from them."""
    returned: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]
    """Per output of the kernel, the steps from it to what the function has there."""


class LayoutStep(Frozen):
    """A value put into the strides that a caller counts on."""

    kind: Literal["layout"] = "layout"
    strides: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


Step = TextStep | KernelStep | LayoutStep


class Program(Frozen):
    """A whole call as steps in order."""

    tensors: int = Field(ge=1)
    """How many tensors it takes."""
    steps: tuple[Step, ...]
    outputs: tuple[int, ...] = Field(min_length=1)
    """Values that are returned."""
    form: Literal["tensor", "tuple", "list"] = "tensor"
    """What the function returns them as."""


class TunedCall(Frozen):
    """`tuned.json`: what a search found for one call of a function."""

    format: int = FORMAT
    key: str
    function: str
    """File and name of the function."""
    call: FunctionCall
    device: str
    """Where it was tuned, as torch names it."""
    run: str
    """The run that searched; its journal has every evaluation."""
    reason: str
    """How the search ended, in words."""
    manifest_hash: str = ""
    """SHA-256 of the manifest of its kernels."""
    program: Program | None = None
    """None if nothing was proven faster: then the original is the winner."""


def call_key(function: str, fingerprint: str, call: FunctionCall, place: str) -> str:
    """Return the key of a call: the same in every process with the same code, shapes, strides, types and device."""
    return digest(canonical_json([FORMAT, function, fingerprint, call.identity(), place]))[:KEY_DIGITS]


def parse_tuned(text: str, where: str) -> TunedCall:
    """Return what a `tuned.json` holds, refusing a newer or damaged one."""
    found = re.search(r'"format":\s*(\d+)', text)
    if found and int(found[1]) > FORMAT:
        problem = f"it has format {found[1]}, this version reads up to {FORMAT}"
        raise BadInput(where, problem, "Upgrade kernelwright.")
    try:
        return TunedCall.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(
            where, f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}", HELP
        ) from error
