"""Kernelwright: finds where a PyTorch model spends its time and rewrites the kernels that matter.

`optimize(model, inputs)` searches kernels for a model. `apply(model, folder)` puts the kernels of a run into a model,
`remove(model)` takes them out, `spliced(model)` tells what became of them. `tune` decorates a function of tensors,
which then runs the kernels found for its calls.
"""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from torch.nn import Module

    from kernelwright.engine.api import Result

__all__ = ["apply", "optimize", "remove", "spliced", "tune"]
_HOME = "kernelwright.model.apply"
"""Imported with the first call: torch is not needed to read a journal."""


def apply(
    model: "Module", run_or_folder: "str | PathLike[str]", rest: str = "eager", launch: str = "plain"
) -> "Module":
    """Put the kernels of a run, or of a folder it wrote, into a model and return the same model.

    Where a kernel does not fit a call, the original code runs. The rest of the model runs operation by operation
    (`rest="eager"`), or compiled (`rest="inductor"`). On a GPU everything is launched kernel by kernel
    (`launch="plain"`), or replayed as one CUDA graph (`launch="graph"`).
    """
    return import_module(_HOME).apply(model, run_or_folder, rest, launch)


def remove(model: "Module") -> "Module":
    """Take the kernels out of a model again and return it: it is exactly what it was."""
    return import_module(_HOME).remove(model)


def spliced(model: "Module") -> Any:
    """Return what became of the kernels put into a model: `lines()` says it in words."""
    return import_module(_HOME).spliced(model)


def optimize(
    model: "Module | str",
    sample_inputs: Any = None,
    backend: str = "auto",
    target_gpu: str | None = None,
    target_speedup: float | None = None,
    budget_hours: float = 8,
    top: int = 5,
    strategy: str = "mcts",
    author: str = "auto",
    home: "str | PathLike[str] | None" = None,
    **settings: Any,
) -> "Result":
    """Search kernels for a model, prove them, and return what came of it; `result.model()` has them in place.

    `model` is a live module, or a name such as `model.py:build`. `sample_inputs` are a live module's inputs, or a
    function that makes them from a seed; for a name, shapes such as `("1,512:int64",)`, or None for the model's own.
    `settings` are those of `kernelwright.toml`. A `target_gpu` that is not here gives floors and static compiles.
    """
    api = import_module("kernelwright.engine.api")
    given = {"backend": backend, "target_speedup": target_speedup, "top": top, "strategy": strategy}
    given |= {"author": author, **settings}
    place, is_name = api.home_of(home), isinstance(model, str)
    given |= {"model": model, "input": sample_inputs} if is_name else {}
    config = api.settings(given, budget_hours)
    if is_name:
        config = config.on_a_gpu()
    else:
        spec = import_module("kernelwright.model.saved").save(model, sample_inputs, place)
        config = config.model_copy(update={"model": spec})

    def load() -> Any:
        name = import_module("kernelwright.model.load")
        return name.load(model, config.model_options()).module if is_name else model

    found: Result = api.optimize(config, place, target_gpu)
    return replace(found, load=load)


def tune(
    function: "Callable[..., Any] | None" = None,
    *,
    budget: str | None = None,
    backend: str | None = None,
    home: "str | PathLike[str] | None" = None,
) -> Any:
    """Decorate a function of tensors: calls that were tuned run their certified kernels, all others the function.

    `decorated.tune(*sample)` searches, once per shape; nothing is searched while calls are made. `home` is the folder
    winners are looked up in.
    """
    return import_module("kernelwright.model.tuning").tune(
        function, budget=budget, backend=backend, home=home
    )
