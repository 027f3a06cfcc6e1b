"""The ways of running a model with and without winners, timed side by side: plainly, and from CUDA graphs."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kernelwright.core.messages.model import ModeTimes, VerifyModel
from kernelwright.model.arguments import Arguments
from kernelwright.model.dry_run import USER_MISTAKES, said
from kernelwright.model.load import Loaded
from kernelwright.model.outputs import Leaves, leaves
from kernelwright.model.precise import State
from kernelwright.model.tally import Tally

WARM_UP = 3
VALUES = 4
"""Different inputs of one set that are timed."""
Call = Callable[..., Any]


@dataclass
class Arms:
    """The ways of running one model."""

    loaded: Loaded
    eager: Call
    captured: Call
    compiled: Call | None
    spliced: list[Call]
    sized: list[Call]
    """The same for other sizes, the rest never compiled: Inductor would take its time anew for each of them."""
    tallies: list[Tally]
    state: State
    notes: list[str] = field(default_factory=list)
    raising: set[int] = field(default_factory=set)
    """Places of spliced arms that raised on a set of inputs: the failed check refuses them, nobody calls them again."""

    @property
    def named(self) -> dict[str, Call]:
        """Return all arms that can be timed; spliced ones by their place."""
        found = {"eager": self.eager, "captured": self.captured}
        if self.compiled is not None:
            found["compiled"] = self.compiled
        alive = {f"{place}": call for place, call in enumerate(self.spliced) if place not in self.raising}
        return found | alive

    def wait(self) -> None:
        """Wait for the device."""
        if self.loaded.device.type == "cuda":
            torch.cuda.synchronize(self.loaded.device)

    def answer(self, call: Call, given: Arguments) -> Leaves:
        """Return what an arm answers and the buffers it changes, started from the state all arms start from."""
        self.state.restore()
        found = leaves(given.mapped(torch.clone).call(call))
        self.wait()
        # Cloned: an arm that replays memory of its own would change this answer with its next one.
        kept = {path: one.clone() if isinstance(one, torch.Tensor) else one for path, one in found.items()}
        return kept | {f"buffer {name}": value for name, value in self.state.changed().items()}


class Replay:
    """An arm as a CUDA graph: inputs are copied in, the graph is replayed."""

    def __init__(self, call: Call, given: Arguments) -> None:
        self.given = given.mapped(torch.clone)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # what is made once, such as a handle or a work space, is made before
            for _ in range(WARM_UP):
                self.given.call(call)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.answer = self.given.call(call)

    def run(self, given: Arguments) -> Any:
        """Replay it on other inputs."""
        for mine, other in zip(self.given.tensors(), given.tensors(), strict=True):
            mine.copy_(other)
        self.graph.replay()
        return self.answer


Run = Callable[[Arguments], Any]


def timed(arms: Arms, request: VerifyModel) -> list[ModeTimes]:
    """Return the times of every arm in every mode of launching, each set by its weight."""
    plain: list[dict[str, Run]] = [
        {name: _called(call) for name, call in arms.named.items()} for _ in arms.loaded.sets
    ]
    found = [_mode_times("plain", arms, plain, request)]
    if arms.loaded.device.type == "cuda":
        try:
            replays: list[dict[str, Run]] = [
                {name: Replay(call, one.make(0)).run for name, call in arms.named.items()}
                for one in arms.loaded.sets
            ]
        except USER_MISTAKES as error:
            arms.notes.append(f"no CUDA graph of this model: {said(error)}")
        else:
            found.append(_mode_times("graph", arms, replays, request))
    return found


def _called(call: Call) -> Run:
    return lambda given: given.call(call)


def _is_plain(leaf: object) -> bool:
    """Tell whether a call cannot change an argument behind our back; a tensor it changes is as good as before."""
    return leaf is None or isinstance(leaf, torch.Tensor | bool | int | float | str)


def _mode_times(mode: Any, arms: Arms, ways: Sequence[dict[str, Run]], request: VerifyModel) -> ModeTimes:
    rng, names = random.Random(request.seed), list(arms.named)
    values = [[one.make(number) for number in range(VALUES)] for one in arms.loaded.sets]
    arms.state.restore()
    for runs, given in zip(ways, values, strict=True):
        for name in names:
            runs[name](given[0])
    is_stateful = bool(arms.state.changed())
    has_objects = [not all(map(_is_plain, tree_leaves((one[0].args, one[0].kwargs)))) for one in values]
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(WARM_UP + request.rounds):
        spent = dict.fromkeys(names, 0.0)
        for place, (one, runs, given) in enumerate(zip(arms.loaded.sets, ways, values, strict=True)):
            order, quickest = rng.sample(names, len(names)), dict[str, float]()
            for name in (*order, *reversed(order)):
                if is_stateful:
                    arms.state.restore()
                if has_objects[place]:
                    given[number % VALUES] = one.make(number % VALUES)
                arms.wait()
                started = time.perf_counter_ns()
                runs[name](given[number % VALUES])
                arms.wait()
                elapsed = (time.perf_counter_ns() - started) / 1e3
                # Of the two calls the quicker one: the other was rather disturbed than this one.
                quickest[name] = min(quickest.get(name, elapsed), elapsed)
            for name, elapsed in quickest.items():
                spent[name] += one.weight * elapsed
        if number >= WARM_UP:
            for name in names:
                times[name].append(spent[name])
    arms.state.restore()
    return ModeTimes(
        mode=mode,
        eager_us=tuple(times["eager"]),
        captured_us=tuple(times["captured"]),
        compiled_us=tuple(times.get("compiled", ())),
        spliced_us=tuple(
            tuple(times.get(f"{place}", times["captured"])) for place in range(len(arms.spliced))
        ),
    )
