"""Kernels of a run in a model of the user's own: `apply` puts them in, `remove` takes them out again.

The module stays the same object of the same class with the same parameters. Only what a call of it does is exchanged,
in the place torch itself has for that (`Module.compile` uses it), so that removing leaves nothing behind.
"""

import os
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch.fx import GraphModule

from kernelwright.core.errors import BadInput, DeviceMissing
from kernelwright.core.manifest import FOLDER, NAME
from kernelwright.core.messages.model import Winner
from kernelwright.model.dynamo import Backend
from kernelwright.model.one_launch import Launch
from kernelwright.model.splice import Rest, Splicer
from kernelwright.model.tally import Tally
from kernelwright.model.winner_files import winners_of as winners_of
from kernelwright.store.locate import find_run, home

SLOT = "_compiled_call_impl"
"""Where torch's modules keep what is called instead of their own code."""


def folder_of(run_or_folder: str | Path) -> Path:
    """Return the folder of kernels: given itself, inside a run's folder, or by the name of a run such as `last`."""
    given = Path(run_or_folder)
    if (given / NAME).is_file():
        return given
    return find_run(home(os.environ), str(run_or_folder)) / FOLDER


class SplicedCall:
    """What is called in the place of a module's own code."""

    def __init__(self, module: torch.nn.Module, splicer: Splicer, before: Callable[..., Any] | None) -> None:
        self.splicer, self.before = splicer, before
        # Dynamo counts what it compiled per code object and gives up after a few: each module gets one of its own.
        own = types.FunctionType(_call.__code__.replace(), globals(), "spliced_call", None, None)
        self.compiled = torch.compile(own, backend=Backend(splicer))
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with the kernels in place."""
        tally = self.splicer.tally
        before = tally.graphs
        answer = self.compiled(self.module, args, kwargs)
        tally.unseen += tally.graphs == before
        return answer


def _call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module's own code, hooks included."""
    return module._call_impl(*args, **kwargs)


def apply(
    model: torch.nn.Module,
    run_or_folder: str | Path | tuple[Winner, ...],
    rest: Rest = "eager",
    launch: Launch = "plain",
) -> torch.nn.Module:
    """Put the kernels of a run into a model and return the same model.

    Where a kernel does not fit a call, the original code runs; `spliced(model)` tells how often and why. The rest of
    the model runs operation by operation (`rest="eager"`), or compiled (`rest="inductor"`). On a GPU everything is
    launched kernel by kernel (`launch="plain"`), or replayed as one CUDA graph (`launch="graph"`).
    """
    splicer = _splicer(run_or_folder, rest, launch, Tally())
    remove(model)
    before = vars(model).get(SLOT)
    setattr(model, SLOT, SplicedCall(model, splicer, before))
    return model


def _splicer(
    run_or_folder: str | Path | tuple[Winner, ...], rest: Rest, launch: Launch, tally: Tally
) -> Splicer:
    if rest not in get_args(Rest):
        raise BadInput(f"rest={rest!r}", "it is neither 'eager' nor 'inductor'", "Pass one of them.")
    if launch not in get_args(Launch):
        raise BadInput(f"launch={launch!r}", "it is neither 'plain' nor 'graph'", "Pass one of them.")
    if launch == "graph" and not torch.cuda.is_available():
        raise DeviceMissing("launch='graph'", "no GPU is visible that could replay one", "Leave it out.")
    winners = run_or_folder if isinstance(run_or_folder, tuple) else winners_of(folder_of(run_or_folder))
    return Splicer(winners, tally, rest, launch)


def remove(model: torch.nn.Module) -> torch.nn.Module:
    """Take the kernels out of a model again and return it: it is exactly what it was."""
    found = vars(model).get(SLOT)
    if isinstance(found, SplicedCall):
        delattr(model, SLOT)
        found.splicer.forget()
        if found.before is not None:
            setattr(model, SLOT, found.before)
    return model


def spliced(model: torch.nn.Module) -> Tally:
    """Return what became of the kernels put into a model: calls, and calls of the original with the reason."""
    found = vars(model).get(SLOT)
    if not isinstance(found, SplicedCall):
        raise BadInput(type(model).__name__, "no kernels were put into it", "Call kernelwright.apply first.")
    return found.splicer.tally


def dynamo_backend(
    graph: GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None, **_: Any
) -> Callable[..., Any]:
    """Splice one graph: the entry point `kernelwright` of torch.compile's backends.

    `options["kernels"]` is a folder or a run, the last run if it is not given; `options["rest"]` is who runs the rest,
    `options["launch"]` how. What becomes of the winners is in `options["tally"]`.
    """
    options = {} if options is None else options
    if "splicer" not in options:
        kernels, rest = options.get("kernels", "last"), options.get("rest", "eager")
        tally = options.setdefault("tally", Tally())
        options["splicer"] = _splicer(kernels, rest, options.get("launch", "plain"), tally)
    return Backend(options["splicer"])(graph, inputs)
