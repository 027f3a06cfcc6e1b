"""What the baselines share: the framework's own code in a file with `kernel_fn`, of a trusted origin."""

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from kernelwright.backends._tensors import tensors_at
from kernelwright.core.case import Case
from kernelwright.core.ports import Availability

Calls = Sequence[tuple[int, Mapping[str, int]]]


def torch_availability() -> Availability:
    """Tell whether torch is installed, without importing it."""
    if find_spec("torch") is None:
        return Availability(False, "torch is not installed", "pip install torch")
    return Availability(True, f"torch {version('torch')}")


def missing_entry(source: str) -> str | None:
    """Return why a source is no baseline, or None."""
    return None if "def kernel_fn(" in source else "no `kernel_fn` of its own"


def function_of(source: str) -> Callable[..., Any]:
    """Return `kernel_fn` of a source."""
    module = types.ModuleType("baseline")
    sys.modules["baseline"] = module  # where dynamo looks up the globals of what it compiles
    exec(compile(source, "baseline.py", "exec"), module.__dict__)
    function: Callable[..., Any] = module.kernel_fn
    return function


def compiled_function(source: str, mode: str) -> Callable[..., Any]:
    """Return `kernel_fn` of a source under torch.compile; graphs are captured by whoever times it."""
    import torch

    known = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}
    compiled: Callable[..., Any] = torch.compile(
        function_of(source), mode=known.get(mode, mode), dynamic=False
    )
    return compiled


def input_tensors(case: Case, addresses: Mapping[str, int], device: str) -> list[Any]:
    """Return the input tensors of a call in the order of the op's signature."""
    return list(tensors_at(case.inputs, addresses, device).values())


def closures(
    function: Callable[..., Any], cases: Sequence[Case], calls: Calls, device: str
) -> list[Callable[[], Any]]:
    """Return one closure per call of a function over inputs and scalars."""
    return [
        partial(function, *input_tensors(cases[index], addresses, device), *cases[index].scalars.values())
        for index, addresses in calls
    ]
