"""How a user names a model and its inputs, as words: `path.py:factory`, `package.module:Class`, `hf:NAME`, `--input`.

Only text and nouns here; the model room turns them into modules and tensors.
"""

import ast
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from kernelwright.core.case import DType
from kernelwright.core.errors import BadInput, ModelNotLoadable
from kernelwright.core.frozen import Frozen

ALIASES = {
    "float32": DType.FP32,
    "float16": DType.FP16,
    "bfloat16": DType.BF16,
    "float64": DType.FP64,
}
FLOATS = (DType.FP32, DType.FP16, DType.BF16, DType.FP64)
SPEC_HELP = "Give `path.py:factory`, `package.module:Class` or `hf:NAME-or-folder`."
OUR_PACKAGE = "kernelwright"
SAVED_FACTORY, SAVED_FOLDER = f"{OUR_PACKAGE}.model.saved:build", "models"
"""What loads a live module that `kernelwright.optimize` was given, and the folder of the home it lies in."""
INPUT_HELP = "Write `1,512:int64`, or `tokens=1@batch,512@seq:int64`."


class ModelMode(StrEnum):
    """How the model is called."""

    INFERENCE = "inference"
    """Evaluation mode, nothing recorded for a backward pass."""
    EVAL = "eval"
    """Evaluation mode, gradients recorded."""
    TRAIN = "train"
    """Training mode, gradients recorded."""


def dtype_named(name: object) -> object:
    """Return the element type a word stands for; torch's own names are understood too."""
    if not isinstance(name, str) or isinstance(name, DType):
        return name
    known = {kind.value: kind for kind in DType} | ALIASES
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"{name!r} is no element type; {hint}known: {', '.join(kind.value for kind in DType)}"
        )
    return known[name]


def _is_float(kind: DType | None) -> DType | None:
    if kind is not None and kind not in FLOATS:
        raise ValueError(f"{kind.value!r} is no type of weights; known: {', '.join(FLOATS)}")
    return kind


Precision = Annotated[DType | None, BeforeValidator(dtype_named), AfterValidator(_is_float)]
"""Element type of weights, or None for the one the model was built in."""


def _mode_named(name: object) -> object:
    if isinstance(name, str) and name not in list(ModelMode):
        raise ValueError(f"{name!r} is no mode; known: {', '.join(ModelMode)}")
    return ModelMode(name) if isinstance(name, str) else name


Mode = Annotated[ModelMode, BeforeValidator(_mode_named)]
"""How the model is called, or its name."""


class InputSpec(Frozen):
    """One input tensor as the command line writes it."""

    name: str | None = None
    """Keyword of `forward`; None means the next positional argument."""
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    """Extent of each axis."""
    axes: tuple[str | None, ...]
    """Name of each axis that may change from call to call; None for a fixed one."""
    dtype: DType | None = None
    """Element type; None means that of the model's weights."""
    below: int | None = Field(default=None, ge=1)
    """Integers are drawn from zero up to this; None takes what the model's embeddings allow."""


AUTO_DEVICE = "auto"
"""The GPU if there is one; where the model was built if there is none, or if that is a GPU already."""


class ModelOptions(Frozen):
    """What goes with a model's name: its inputs, element type, device and mode."""

    inputs: tuple[InputSpec, ...] = ()
    """Inputs by shape; empty means a function of the model's file makes them."""
    input_function: str | None = None
    """Name of that function; None means `sample_inputs`."""
    dtype: Precision = None
    """Element type of the weights; None leaves them as built."""
    device: str | None = None
    """Where the model runs: `cpu`, `cuda`, `cuda:1`, `auto` (the GPU if there is one); None for where it was built."""
    mode: Mode = ModelMode.INFERENCE
    """How it is called."""
    download: bool = False
    """Whether a model of the Hugging Face hub that is not on this disk may be fetched."""
    hf_cache: str | None = None
    """Folder of models fetched from the hub; None means `.cache/huggingface/hub` in the user's home."""


def parse_input(text: str) -> InputSpec:
    """Return the input a word such as `tokens=1@batch,512@seq:int64:32000` describes."""
    name, equals, rest = text.rpartition("=")
    shape_text, *parts = rest.split(":")
    if len(parts) > 2 or (equals and not name.isidentifier()):
        raise BadInput("--input", f"{text!r} is no input", INPUT_HELP)
    shape, axes = [], []
    for word in shape_text.split(",") if shape_text else []:
        extent, at, axis = word.strip().partition("@")
        if not extent.isdecimal() or (at and not axis.isidentifier()):
            raise BadInput("--input", f"{word!r} in {text!r} is no dimension", INPUT_HELP)
        shape.append(int(extent))
        axes.append(axis or None)
    try:
        dtype = dtype_named(parts[0]) if parts else None
    except ValueError as error:
        raise BadInput("--input", str(error), INPUT_HELP) from error
    if len(parts) == 2 and not (parts[1].isdecimal() and int(parts[1]) > 0):
        raise BadInput(
            "--input", f"{parts[1]!r} in {text!r} is no bound of integers", "Write `1,512:int64:32000`."
        )
    below = int(parts[1]) if len(parts) == 2 else None
    assert dtype is None or isinstance(dtype, DType)
    return InputSpec(name=name or None, shape=tuple(shape), axes=tuple(axes), dtype=dtype, below=below)


class Source(StrEnum):
    """Where a model comes from."""

    FILE = "file"
    """A Python file."""
    PACKAGE = "package"
    """An importable module."""
    HUB = "hub"
    """transformers."""


@dataclass(frozen=True)
class Address:
    """A model's name, taken apart."""

    source: Source
    place: str
    """Path of the file, dotted name of the module, or name of the model for transformers."""
    factory: str = ""
    """Function or class, dotted if it is inside another; none for transformers."""
    args: tuple[Any, ...] = ()
    """Literals, hence `Any`: numbers, strings, lists."""
    kwargs: dict[str, Any] = field(default_factory=dict)


def parse_spec(spec: str) -> Address:
    """Return what a model's name says; arguments such as `build(layers=2)` are literals only."""
    found = re.fullmatch(r"(?P<name>[^()]+)(?P<call>\(.*\))?", spec.strip(), re.S)
    if found is None:
        raise ModelNotLoadable(spec, "it is not a name, or a name with arguments", SPEC_HELP)
    name, call = found["name"], found["call"] or "()"
    args, kwargs = _literals(spec, call)
    if name.startswith("hf:"):
        if not (place := name.removeprefix("hf:")):
            raise ModelNotLoadable(spec, "it names no model", "For example hf:llama, or hf:./folder.")
        if args:
            raise ModelNotLoadable(
                spec, "settings of a config need names", "For example hf:llama(vocab_size=512)."
            )
        return Address(Source.HUB, place, kwargs=kwargs)
    place, colon, factory = name.rpartition(":")
    if not colon or not place or not all(word.isidentifier() for word in factory.split(".")):
        raise ModelNotLoadable(spec, "it names no factory", SPEC_HELP)
    if place.endswith(".py"):
        return Address(Source.FILE, place, factory, args, kwargs)
    if not all(word.isidentifier() for word in place.split(".")):
        raise ModelNotLoadable(spec, f"{place!r} is neither a .py file nor a module", SPEC_HELP)
    return Address(Source.PACKAGE, place, factory, args, kwargs)


def refuse_foreign(spec: str, home: Path) -> None:
    """Raise for a saved module that lies outside the home: reading it would run whatever it was made of.

    The name is taken apart as who loads it does, and nothing else of ours is a model: the same function has other
    names, such as `kernelwright.model:saved.build`.
    """
    if not spec:  # a run of one op has none
        return
    address = parse_spec(spec)
    if address.source is not Source.PACKAGE or address.place.partition(".")[0] != OUR_PACKAGE:
        return
    place = Path(str(next(iter(address.args), ""))).resolve()
    if f"{address.place}:{address.factory}" != SAVED_FACTORY or place.parent != home.resolve() / SAVED_FOLDER:
        remedy = "Optimise the module here, or name one such as `path.py:factory`."
        raise ModelNotLoadable(spec, "it was saved by another machine or user", remedy)


def _literals(spec: str, call: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        node = ast.parse(f"f{call}", mode="eval").body
        if not isinstance(node, ast.Call) or any(word.arg is None for word in node.keywords):
            raise ValueError("not a call")
        args = tuple(ast.literal_eval(value) for value in node.args)
        return args, {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    except (SyntaxError, ValueError, TypeError) as error:
        raise ModelNotLoadable(
            spec, f"{call} are no arguments", "Give numbers, strings and lists: build(layers=2)."
        ) from error
