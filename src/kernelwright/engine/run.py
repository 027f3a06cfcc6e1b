"""`Run`: a run in progress, as every step of the engine sees it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright.core.config import RunConfig
from kernelwright.core.device import Ceilings, Device
from kernelwright.core.events import Body
from kernelwright.core.ports import Agent
from kernelwright.core.tree import Tree
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import Show


@dataclass
class Spent:
    """Seconds a run has taken so far, those of its earlier sittings included."""

    seconds: float = 0.0
    by_problem: dict[str, float] = field(default_factory=dict)
    """Of them, spent on each problem."""


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
    ceilings: Ceilings | None = None
    """What the device was measured to reach, where that is known."""
    spent: Spent = field(default_factory=Spent)
    began: float = field(default_factory=time.monotonic)
    """When this sitting began."""
