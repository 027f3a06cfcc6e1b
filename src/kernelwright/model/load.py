"""From a model's name to a module on its device, in its mode, with the inputs it is called with.

1. The name is taken apart: a file, an importable module, or transformers (`model/hf`).
2. The factory is called; one with a parameter named `device` or `dtype` is told, any other is moved afterwards.
3. Inputs come from `--input`, a function named by the user, or `sample_inputs` beside the factory.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelwright.core.errors import DeviceMissing, InputsDoNotFit, ModelNotLoadable, OutOfMemory
from kernelwright.core.frozen import digest
from kernelwright.core.model_spec import (
    AUTO_DEVICE,
    SPEC_HELP,
    Address,
    ModelMode,
    ModelOptions,
    Source,
    parse_spec,
)
from kernelwright.model.arguments import Arguments, InputSet, normalised, positional
from kernelwright.model.dry_run import USER_MISTAKES, said
from kernelwright.model.hf import hub_inputs, hub_model
from kernelwright.model.inputs import from_function, from_specs
from kernelwright.model.memory import device_of, free_bytes, is_out_of_memory, limited_to, named_device, size
from kernelwright.ops._draw import torch_dtype

GPU = "cuda"
INPUTS_HELP = "Write sample_inputs(seed) beside the factory, or pass --input 1,512:int64."


@dataclass(frozen=True)
class Loaded:
    """A module, how it is called, and what with."""

    spec: str
    module: torch.nn.Module
    sample_inputs: Callable[[int], tuple[Any, ...]]
    """Makes the positional arguments of the heaviest set; `sets` has them all, keywords too."""
    sets: tuple[InputSet, ...] = ()
    """Every way the model is called, heaviest first, weights adding up to one."""
    mode: ModelMode = ModelMode.INFERENCE
    weights: str = "as built"
    """Where the weights come from, in words."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if not self.sets:
            make = self.sample_inputs
            only = InputSet("input", 1.0, lambda seed: Arguments(tuple(make(seed))))
            object.__setattr__(self, "sets", (only,))

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Enter the grad mode in which the model is called."""
        with torch.inference_mode(self.mode is ModelMode.INFERENCE):
            yield


def load(spec: str, options: ModelOptions | None = None) -> Loaded:
    """Return the user's model on its device, in its mode, with its inputs."""
    wish = options or ModelOptions()
    options = decided(wish)
    device = named_device(options.device or "cpu")  # one that is not here is refused before anything is built
    address = parse_spec(spec)
    namespace, weights, doing = None, "as built", "its weights do not fit"
    # A GPU's driver reserves addresses without end and cannot be limited; its allocator raises by itself.
    limit = nullcontext() if torch.cuda.is_available() else limited_to(free_bytes(device))
    try:
        with limit:
            if address.source is Source.HUB:
                module, weights = hub_model(spec, address, options)
            else:
                namespace = namespace_of(spec, address)
                module = _built(spec, namespace, address, options)
            if wish.device == AUTO_DEVICE and device_of(module, torch.device("cpu")).type == GPU:
                options = options.model_copy(update={"device": None})  # whichever GPU that is
            module = _placed(module, options)
            doing = "its inputs do not fit"
            sets = _input_sets(spec, module, address, namespace, options)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise ModelNotLoadable(spec, said(error), "Mend it.") from error
        raise OutOfMemory(
            spec,
            f"{doing} ({said(error)})",
            f"{size(free_bytes(device))} are free on {device}",
            "Make it smaller; a factory with a `dtype` parameter is told what --dtype bf16 says.",
        ) from error
    return _loaded(spec, module, sets, options, weights)


def decided(options: ModelOptions) -> ModelOptions:
    """Return the options with `auto` made into the GPU there is, or into none."""
    if options.device != AUTO_DEVICE:
        return options
    return options.model_copy(update={"device": GPU if torch.cuda.is_available() else None})


def loaded_from(
    module: torch.nn.Module,
    inputs: Any,  # whatever `sample_inputs` may return, the function itself, or a list of InputSet
    options: ModelOptions | None = None,
) -> Loaded:
    """Return a live module with its inputs; the module itself is used, and without options left as it is."""
    spec = type(module).__name__
    if options is None:
        options = ModelOptions(mode=ModelMode.TRAIN if module.training else ModelMode.INFERENCE)
    if isinstance(inputs, Sequence) and inputs and all(isinstance(one, InputSet) for one in inputs):
        sets = tuple(inputs)
    else:
        make = inputs if callable(inputs) else lambda _: inputs
        sets = from_function(spec, make, getattr(make, "__name__", "inputs"))
    return _loaded(spec, _placed(module, options), sets, options, "the caller's")


def _loaded(
    spec: str, module: torch.nn.Module, sets: Sequence[InputSet], options: ModelOptions, weights: str
) -> Loaded:
    device = device_of(module, named_device(options.device or "cpu"))
    # An input whose type was written down keeps it.
    kind = torch_dtype(options.dtype) if options.dtype and not options.inputs else None

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, kind if kind is not None and tensor.is_floating_point() else tensor.dtype)

    def made(one: InputSet) -> Callable[[int], Arguments]:
        return lambda seed: one.make(seed).mapped(moved)

    placed = [replace(one, make=made(one)) for one in normalised(sets)]
    placed.sort(key=lambda one: -one.weight)
    first = placed[0]

    def sample_inputs(seed: int) -> tuple[Any, ...]:
        try:
            return positional(first.make(seed), module)
        except TypeError as error:
            raise InputsDoNotFit(
                spec, f"set {first.name!r}: {error}", "`sets` has the keywords too."
            ) from error

    return Loaded(spec, module, sample_inputs, tuple(placed), options.mode, weights, device)


def _placed(module: torch.nn.Module, options: ModelOptions) -> torch.nn.Module:
    """Put a module where and as it is wanted."""
    if options.dtype is not None:
        module = module.to(torch_dtype(options.dtype))
    if options.device is not None:
        module = module.to(named_device(options.device))
    return module.train(options.mode is ModelMode.TRAIN)


def namespace_of(spec: str, address: Address) -> ModuleType:
    """Import the file or module that holds the factory."""
    path = Path(address.place)
    if address.source is Source.FILE and not path.is_file():
        raise ModelNotLoadable(spec, f"{path} does not exist", SPEC_HELP)
    # As Python itself does for a script or with -m: modules beside the user's own must be found, now and later.
    folder = str(path.resolve().parent if address.source is Source.FILE else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _import_file(path) if address.source is Source.FILE else importlib.import_module(address.place)
    except USER_MISTAKES as error:
        if isinstance(error, ModuleNotFoundError) and error.name and address.place.startswith(error.name):
            raise ModelNotLoadable(
                spec, f"there is no module {error.name!r}", "Install it, or run where it can be imported."
            ) from error
        problem = f"{address.place} raises {said(error)}"
        raise ModelNotLoadable(spec, problem, "Mend the file.") from error


def _import_file(path: Path) -> ModuleType:
    # A name of its own: dataclasses and dynamo look the module up by name, and `torch.py` must not be torch.
    name = f"user_model_{digest(str(path.resolve()))[:12]}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    with ExitStack() as undone:
        sys.modules[name] = module
        undone.callback(sys.modules.pop, name, None)
        found.loader.exec_module(module)
        undone.pop_all()
    return module


def _built(spec: str, namespace: ModuleType, address: Address, options: ModelOptions) -> torch.nn.Module:
    """Call the factory."""
    factory: Any = namespace
    for word in address.factory.split("."):
        factory = getattr(factory, word, None)
    if isinstance(factory, torch.nn.Module):
        return factory
    if not callable(factory):
        known = [key for key, value in vars(namespace).items() if callable(value) and key[0] != "_"]
        own = [
            key for key in known if getattr(getattr(namespace, key), "__module__", None) == namespace.__name__
        ]
        near = get_close_matches(address.factory, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(own[:8]) or 'none'}."
        raise ModelNotLoadable(spec, f"{address.place} has no function or class {address.factory!r}", hint)
    kwargs = _told(factory, options) | address.kwargs
    try:
        built = factory(*address.args, **kwargs)
    except USER_MISTAKES as error:
        if is_out_of_memory(error):
            raise
        if not torch.cuda.is_available() and ("CUDA" in str(error) or "NVIDIA" in str(error)):
            raise DeviceMissing(
                "cuda", f"{address.factory}() finds no GPU", "Pass --device cpu, or build it on the CPU."
            ) from error
        problem = f"{address.factory}() raises {said(error)}"
        raise ModelNotLoadable(spec, problem, "Mend it, or give arguments: factory(layers=2).") from error
    if not isinstance(built, torch.nn.Module):
        raise ModelNotLoadable(
            spec, f"{address.factory}() returned a {type(built).__name__}, not a torch.nn.Module", SPEC_HELP
        )
    return built


def _told(factory: Callable[..., Any], options: ModelOptions) -> dict[str, Any]:
    """Return what a factory that asks for it is told: where and in which type to build."""
    try:
        names: Mapping[str, Any] = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a class written in C tells no signature
        return {}
    told: dict[str, Any] = {}
    if options.device is not None and "device" in names:
        told["device"] = named_device(options.device)
    if options.dtype is not None and "dtype" in names:
        told["dtype"] = torch_dtype(options.dtype)
    return told


def _input_sets(
    spec: str, module: torch.nn.Module, address: Address, namespace: ModuleType | None, options: ModelOptions
) -> tuple[InputSet, ...]:
    """Return the inputs, from the most to the least explicit source."""
    if options.inputs:
        floating = next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.float32)
        return from_specs(options.inputs, module, floating)
    if options.input_function is not None:
        function = getattr(namespace, options.input_function, None)
        if not callable(function):
            raise InputsDoNotFit(
                spec, f"{address.place} has no function {options.input_function!r}", INPUTS_HELP
            )
        return from_function(spec, function, options.input_function)
    if namespace is None:
        return hub_inputs(spec, module)
    # `build_decode` goes with `sample_inputs_decode`, if there is one.
    own = f"sample_inputs{address.factory.removeprefix('build')}"
    for place, name in ((namespace, own), (namespace, "sample_inputs"), (module, "sample_inputs")):
        if callable(function := getattr(place, name, None)):
            return from_function(spec, function, name)
    raise InputsDoNotFit(spec, f"{address.place} has no sample_inputs(seed)", INPUTS_HELP)
