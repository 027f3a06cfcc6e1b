"""`kernelwright.optimize` without torch: from a model's name and settings to a `Result`."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.core.candidate import Origin
from kernelwright.core.config import RunConfig, resolve
from kernelwright.core.errors import UnknownName
from kernelwright.core.manifest import FOLDER
from kernelwright.core.tree import Tree
from kernelwright.engine.app import start
from kernelwright.engine.planning import Planned, gpu_named, is_here, plan
from kernelwright.engine.winners import certificates
from kernelwright.hardware.detect import devices
from kernelwright.report.usage import how_launched
from kernelwright.report.write import write_reports
from kernelwright.store.journal import Journal
from kernelwright.store.locate import home as default_home

if TYPE_CHECKING:
    from torch.nn import Module

WHERE = LOGGER = "kernelwright.optimize"
Interval = tuple[float, float]


@dataclass(frozen=True)
class Kernel:
    """One problem of the model, and what was found for it."""

    case: str
    """Op, size and dtype."""
    count: int
    """How often it occurs in the model."""
    share: float | None
    """Share of the model's time before; None if nothing was timed."""
    backend: str
    """Language of the best; a baseline's name if nothing beat it, empty if nothing was timed."""
    ratio: float | None
    """The faster baseline's time over its own, proven; None if nothing was."""
    ci: Interval | None
    """The 95 % interval of that."""
    stays: bool
    """Whether it is among the kernels that are put into the model."""
    reason: str
    """The gate's sentence, or what was found without a clock."""
    floor_us: float | None = None
    """Least time of one run by the data sheet of a GPU that is not here."""
    compiles: Mapping[str, bool] = field(default_factory=dict)
    """By language, whether the seed, or the kernel written from the captured region, compiles for that GPU."""


@dataclass(frozen=True)
class Result:
    """What came of optimising a model."""

    ratio: float | None
    """End to end: time of the same graph without the kernels over time with them; None if nothing was put in."""
    ci: Interval | None
    """The 95 % interval of that."""
    eager_ratio: float | None
    """Time of the model as it was over time with the kernels."""
    compiled_ratio: float | None
    """Time under torch.compile over time with the kernels."""
    shipped: bool
    """Whether kernels pay end to end and stay; otherwise the model is left as it is."""
    reason: str
    """How it ended, in words."""
    folder: Path | None
    """The run's folder with journal, reports and kernels; None if nothing was timed."""
    kernels: tuple[Kernel, ...]
    """One entry per problem."""
    timed: bool = True
    """Whether the device was here; otherwise there are floors and static compiles only."""
    rest: str = "eager"
    """Who runs the rest of the model beside the kernels."""
    launch: str = "plain"
    """How the kernels pay: launched one by one, or as one CUDA graph alone."""
    load: "Callable[[], Module] | None" = field(default=None, repr=False, compare=False)
    """Gives the model that was optimised."""

    def apply(self, model: "Module") -> "Module":
        """Put the kernels into a model and return it; left as it is if nothing pays."""
        if not self.shipped or self.folder is None:
            return model
        put_in = import_module("kernelwright").apply
        spliced: Module = put_in(model, self.folder / FOLDER, self.rest, self.launch)
        return spliced

    def model(self) -> "Module":
        """Return the model that was optimised, with the kernels in it."""
        assert self.load is not None, "whoever makes a result says where its model is"
        return self.apply(self.load())


def home_of(given: str | os.PathLike[str] | None) -> Path:
    """Return the folder of runs and caches."""
    return (Path(given) if given is not None else default_home(os.environ)).absolute()


def settings(given: Mapping[str, object], budget_hours: float) -> RunConfig:
    """Return the settings of a run from the arguments of the call; an unknown one is refused by name."""
    for name in given:
        if name not in RunConfig.model_fields:
            raise UnknownName("setting", name, tuple(RunConfig.model_fields))
    values = {"budget_s": budget_hours * 3600, **given}
    return resolve({}, {name: value for name, value in values.items() if value is not None}, WHERE)


def optimize(config: RunConfig, home: Path, target_gpu: str | None = None) -> Result:
    """Optimise a model by its name; on a GPU that is not here, say what is known without a clock."""
    log = logging.getLogger(LOGGER)
    if target_gpu is not None:
        row = gpu_named(target_gpu)
        if not is_here(row, devices()):
            return _untimed(row.part, plan(config, row, log.info))
    folder = start(config, home, log.info)
    journal = Journal.open(config.journal_url or folder, folder.name)
    tree = journal.tree()
    write_reports(folder, tree, journal.events())
    return _result(config, folder, tree)


def _untimed(part: str, planned: list[Planned]) -> Result:
    kernels = tuple(
        Kernel(
            case=one.problem.cases[0].label,
            count=one.problem.count,
            share=None,
            backend="",
            ratio=None,
            ci=None,
            stays=False,
            reason=one.words,
            floor_us=one.floor_us,
            compiles={seed.backend: seed.compiles for seed in one.seeds},
        )
        for one in planned
    )
    reason = f"{part} is not here: floors by its data sheet and static compiles, no times"
    return Result(None, None, None, None, False, reason, None, kernels, timed=False)


def _result(config: RunConfig, folder: Path, tree: Tree) -> Result:
    found = tree.verified
    return Result(
        ratio=found.ratio if found else None,
        ci=(found.ci_low, found.ci_high) if found else None,
        eager_ratio=found.eager_ratio if found else None,
        compiled_ratio=found.compiled_ratio if found else None,
        shipped=bool(found and found.shipped),
        reason=tree.ended.reason if tree.ended else "the run did not end",
        folder=folder,
        kernels=tuple(_kernel(tree, key) for key in tree.problems),
        rest=config.who_runs_the_rest(),
        launch=how_launched(tree),
    )


def _kernel(tree: Tree, key: str) -> Kernel:
    problem, best = tree.problems[key], tree.best.get(key)
    node = tree.nodes[key, best] if best else None
    is_winner = node is not None and node.candidate.origin is Origin.AUTHOR
    proof: Any = certificates(tree)[key] if is_winner else None
    is_proven = proof is not None and proof.ratio is not None
    return Kernel(
        case=problem.cases[0].label,
        count=problem.count,
        share=problem.share,
        backend=node.candidate.backend if node else "",
        ratio=proof.ratio if is_proven else None,
        ci=(proof.ci_low, proof.ci_high) if is_proven else None,
        stays=bool(tree.verified and tree.verified.shipped and key in tree.verified.winners),
        reason=node.decision.reason if node and node.decision else "no baseline was accepted",
    )
