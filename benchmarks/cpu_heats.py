"""Kernels side by side in one thread of one process, for landscapes of a CPU that others use too.

Processor time of the thread, not wall time: a thread that is put aside for another does not age. All arms take turns of
about a millisecond in a random order, and a heat's number is the median over its turns. Correctness is not looked at
here; whoever is timed has passed the judge's quick profile before.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from kernelwright.backends import cpp
from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution

TURN_NS = 1_000_000
TURNS = 15
WARM_UP = 3

Call = Callable[[], Any]


def tensors_of(case: Case) -> dict[str, torch.Tensor]:
    """Return inputs and outputs of a case, dense and aligned."""
    drawn = plugins.load("ops", case.op).make_inputs(case, Distribution.SIGNED, 1)
    kinds = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int64": torch.int64}
    outputs = {spec.name: torch.empty(spec.shape, dtype=kinds[spec.dtype.value]) for spec in case.outputs}
    return drawn | outputs


def native(artefact: Path, case: Case, tensors: Mapping[str, torch.Tensor]) -> Call:
    """Return one call of a built C++ kernel."""
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    (call,) = cpp.bind(artefact, [case], [(0, addresses)])
    if (code := call()) != 0:
        raise ValueError(f"{artefact} declined {case.label}: code {code}")
    return call


def eager(source: str, case: Case, tensors: Mapping[str, torch.Tensor]) -> Call:
    """Return one call of a baseline's own Python."""
    names: dict[str, Any] = {}
    exec(compile(source, "baseline", "exec"), names)
    arguments = [*(tensors[spec.name] for spec in case.inputs), *case.scalars.values()]
    return lambda: names["kernel_fn"](*arguments)


def heats(calls: Sequence[Call], count: int, rng: random.Random) -> list[list[float]]:
    """Return, per heat, the time of a call of every arm in microseconds."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        sizes = [_size(call) for call in calls]
        return [_heat(calls, sizes, rng) for _ in range(count)]


def _heat(calls: Sequence[Call], sizes: Sequence[int], rng: random.Random) -> list[float]:
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for place in rng.sample(range(len(calls)), len(calls)):
            calls[place]()  # what the arm before left in the cache is nobody's gain
            times[place].append(_turn(calls[place], sizes[place]) / sizes[place] / 1e3)
    return [median(found) for found in times]


def _turn(call: Call, size: int) -> int:
    started = time.thread_time_ns()
    for _ in range(size):
        call()
    return time.thread_time_ns() - started


def _size(call: Call) -> int:
    """Return how many calls fill a turn."""
    for _ in range(WARM_UP):
        call()
    return max(1, TURN_NS // max(1, min(_turn(call, 1) for _ in range(WARM_UP))))
