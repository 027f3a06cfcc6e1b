"""From `path.py:factory` to a module in evaluation mode and its sample inputs."""

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from kernelwright.core.errors import ModelNotLoadable

HELP = "Give `path.py:factory`, where factory() returns the module and sample_inputs(seed) stands in the same file."


@dataclass(frozen=True)
class Loaded:
    """A module and how to make inputs for it."""

    spec: str
    module: torch.nn.Module
    sample_inputs: Callable[[int], tuple[torch.Tensor, ...]]


def _import_file(spec: str, path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise ModelNotLoadable(spec, f"{path} is not a Python file", HELP)
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except (
        ImportError,
        SyntaxError,
        NameError,
        AttributeError,
        ValueError,
        TypeError,
        RuntimeError,
    ) as error:
        raise ModelNotLoadable(
            spec, f"{path} raises {type(error).__name__}: {error}", "Mend the file."
        ) from error
    return module


def load(spec: str) -> Loaded:
    """Return the user's model in evaluation mode."""
    path_text, colon, name = spec.rpartition(":")
    if not colon or not path_text.endswith(".py"):
        raise ModelNotLoadable(spec, "it names no file and factory", HELP)
    path = Path(path_text)
    if not path.is_file():
        raise ModelNotLoadable(spec, f"{path} does not exist", HELP)
    module = _import_file(spec, path)
    factory, inputs = getattr(module, name, None), getattr(module, "sample_inputs", None)
    if not callable(factory):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ModelNotLoadable(spec, f"{path} has no function {name!r}", f"It has: {', '.join(known)}.")
    if not callable(inputs):
        raise ModelNotLoadable(spec, f"{path} has no sample_inputs(seed)", HELP)
    try:
        built = factory()
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
        raise ModelNotLoadable(
            spec, f"{name}() raises {type(error).__name__}: {error}", "Mend it."
        ) from error
    if not isinstance(built, torch.nn.Module):
        raise ModelNotLoadable(
            spec, f"{name}() returned a {type(built).__name__}, not a torch.nn.Module", HELP
        )
    return Loaded(spec, built.eval(), inputs)
