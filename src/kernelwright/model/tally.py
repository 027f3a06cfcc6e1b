"""What became of spliced kernels: how often each ran, how often the original ran in its place, and why."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelwright.core.case import Case

if TYPE_CHECKING:  # 2 s of imports that a kernel found in a manifest does not need
    from kernelwright.model.capture import Captured


@dataclass
class Count:
    """What became of one winner."""

    label: str
    """Its case, in words."""
    sites: list[str] = field(default_factory=list)
    """Where it was put, in all captured graphs: file and line of the model's code."""
    calls: int = 0
    """How often it ran. In a graph of a GPU's stream it is counted when it is captured, not when it is replayed."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """How often the original ran in its place, by what did not hold: shape, dtype, device, stride, alignment, ..."""


@dataclass
class Tally:
    """What became of all winners put into a model."""

    winners: dict[str, Count] = field(default_factory=dict)
    """By hash of the case."""
    regions: int = 0
    """Calls of regions that were replaced by their own text."""
    aside: int = 0
    """Calls of whole graphs that ran as the framework has them, because gradients were asked for."""
    unserved: int = 0
    """Calls of whole graphs of a size that no winner was made for."""
    graphs: int = 0
    """Calls of graphs, whatever ran in them, where the model was applied."""
    replays: int = 0
    """Calls of whole graphs that were replayed from a CUDA graph."""
    launched_one_by_one: Counter[str] = field(default_factory=Counter)
    """Calls of whole graphs that could not be replayed though it was asked for, by the reason."""
    unseen: int = 0
    """Calls of the model in which no captured graph ran at all: dynamo gave up on it."""

    @property
    def spliced(self) -> int:
        """Return how often anything spliced ran."""
        return self.regions + sum(one.calls for one in self.winners.values())

    @property
    def fallbacks(self) -> int:
        """Return how often a guard sent a call to the original code."""
        return sum(one.fallbacks.total() for one in self.winners.values())

    @property
    def sites(self) -> int:
        """Return in how many places anything was put."""
        return sum(len(one.sites) for one in self.winners.values())

    def of(self, case: Case) -> Count:
        """Return the count of a case's winner."""
        return self.winners.setdefault(case.hash, Count(case.label))

    def left_aside(self, captured: "Captured") -> Callable[..., Any]:
        """Return a graph that counts its calls."""

        def run(*given: Any) -> Any:
            self.aside += 1
            return captured.graph(*given)

        return run

    def lines(self) -> list[str]:
        """Return what became of each winner, in words."""
        told = []
        for one in self.winners.values():
            why = ", ".join(f"{reason} {number}" for reason, number in one.fallbacks.most_common())
            told.append(
                f"{one.label}: {len(one.sites)} sites, {one.calls} calls, "
                f"{one.fallbacks.total()} fallbacks{f' ({why})' if why else ''}"
            )
        if self.aside:
            told.append(f"{self.aside} calls ran the original because gradients were asked for")
        if self.unserved:
            told.append(f"{self.unserved} calls ran the original because no winner has their size")
        if self.replays:
            told.append(f"{self.replays} calls of graphs were replayed from a CUDA graph")
        told += [
            f"{number} calls of graphs were launched kernel by kernel: {reason}"
            for reason, number in self.launched_one_by_one.most_common()
        ]
        if self.unseen:
            told.append(f"{self.unseen} calls ran the original because torch.compile gave up on the model")
        return told
