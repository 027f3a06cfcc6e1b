"""`Run`: a run in progress, as every step of the engine sees it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kernelwright.core.config import RunConfig
from kernelwright.core.device import Ceilings, Device
from kernelwright.core.events import Body, Profiled
from kernelwright.core.expansion import Expansion
from kernelwright.core.ports import Agent
from kernelwright.core.thinking import Thinker
from kernelwright.core.tree import Node, Tree
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import JudgeClient, Show


@dataclass
class Spent:
    """Seconds a run has taken so far, those of its earlier sittings included."""

    seconds: float = 0.0
    by_problem: dict[str, float] = field(default_factory=dict)
    """Of them, spent on each problem."""
    longest: float = 0.0
    """Of one step."""

    def add(self, key: str, took: float) -> None:
        """Take in a step on a problem."""
        self.seconds += took
        self.by_problem[key] = self.by_problem.get(key, 0.0) + took
        self.longest = max(self.longest, took)


@dataclass(frozen=True)
class Member:
    """An author of the crew."""

    place: int
    """From 0."""
    name: str
    """As `--author` names it."""
    agent: Agent

    @property
    def label(self) -> str:
        """Return what tells it from another one of the same name."""
        return f"{self.name} #{self.place + 1}"

    @property
    def thinker(self) -> Thinker | None:
        """Return it as one that can be asked for more than kernels; None if it cannot."""
        return self.agent if isinstance(self.agent, Thinker) else None


class Recording(Protocol):
    """What a repeated run repeats."""

    @property
    def is_used_up(self) -> bool:
        """Tell whether every recorded reply was given."""
        ...

    def order(self, expansion: Expansion) -> int:
        """Return the place an expansion's answer had among those of the recorded run."""
        ...

    def profile(self, node: Node) -> Profiled | None:
        """Return the counters that were read of a candidate, where they are not to be read anew."""
        ...


@dataclass
class Run:
    """A run in progress: its settings, its journal and the tree folded from it."""

    config: RunConfig
    device: Device
    threads: int
    folder: Path
    record: Callable[[Sequence[Body]], None]
    """Append events durably, all or none, and fold them into the tree."""
    tree: Tree
    show: Show
    seeds: Seeds
    """What every search begins with, and the languages to try."""
    cache: Path | None = None
    """Where torch.compile keeps what it compiled, from one process to the next."""
    author: Agent | None = None
    """Who proposes candidates beyond the seeds; None for nobody."""
    crew: tuple[Member, ...] = ()
    """Everybody who does, if they are several."""
    recording: Recording | None = None
    """The run that this one repeats."""
    ceilings: Ceilings | None = None
    """What the device was measured to reach, where that is known."""
    judges: list[JudgeClient] = field(default_factory=list)
    """Judges beside the first one, each on an equal GPU of its own: they give verdicts, they time no comparison."""
    spent: Spent = field(default_factory=Spent)
    began: float = field(default_factory=time.monotonic)
    """When this sitting began."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Return who is asked: the crew, or the one author."""
        if self.crew or self.author is None:
            return self.crew
        return (Member(0, self.config.author, self.author),)

    def member(self, expansion: Expansion) -> Member:
        """Return who answers an expansion."""
        return self.members[expansion.worker % len(self.members)]
