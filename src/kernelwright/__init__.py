"""Kernelwright: finds where a PyTorch model spends its time and rewrites the kernels that matter.

`apply(model, folder)` puts the kernels of a run into a model, `remove(model)` takes them out, `spliced(model)` tells
what became of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

    from torch.nn import Module

__all__ = ["apply", "remove", "spliced"]
_HOME = "kernelwright.model.apply"
"""Imported with the first call: torch is not needed to read a journal."""


def apply(model: "Module", run_or_folder: "str | PathLike[str]", rest: str = "eager") -> "Module":
    """Put the kernels of a run, or of a folder it wrote, into a model and return the same model.

    Where a kernel does not fit a call, the original code runs. The rest of the model runs operation by operation
    (`rest="eager"`), or compiled (`rest="inductor"`).
    """
    return import_module(_HOME).apply(model, run_or_folder, rest)


def remove(model: "Module") -> "Module":
    """Take the kernels out of a model again and return it: it is exactly what it was."""
    return import_module(_HOME).remove(model)


def spliced(model: "Module") -> Any:
    """Return what became of the kernels put into a model: `lines()` says it in words."""
    return import_module(_HOME).spliced(model)
