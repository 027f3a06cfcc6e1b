"""A Triton candidate's file as a module, and the kernels in it."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any


def imported(path: Path) -> ModuleType:
    """Import a candidate's file under a name of its own: jitted functions must live in a real file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path.name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel_named(module: ModuleType, name: str) -> Any:
    """Return the jitted function or raise LookupError naming those there are. `Any`: Triton is imported lazily."""
    kernels = sorted(
        key for key, value in vars(module).items() if hasattr(value, "arg_names") and hasattr(value, "fn")
    )
    if name not in kernels:
        raise LookupError(f"no kernel named {name!r}; there are {', '.join(kernels)}")
    return getattr(module, name)
