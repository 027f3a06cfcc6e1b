"""Certifying a run's winners again, here and now: a new run that begins with them and searches for nothing.

1. Every problem that had a winner is put to this machine's device of the same kind.
2. Baselines and winners are judged as in any run: the keep, the full profile, both baselines, a confirmation in
   separate starts. Nothing that was measured before counts.
3. The whole model is verified if it loads here; if not, the journal says why.

The winners are proposed with the first append and the package's own seeds are left out by the settings, so that a run
that was killed is taken up by `resume` like any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import (
    BadInput,
    DeviceMissing,
    InputsDoNotFit,
    ModelNotLoadable,
    OutOfMemory,
    PackageMissing,
)
from kernelwright.core.events import Body, CandidateProposed, ModelVerified, Noted, ProblemFound
from kernelwright.core.manifest import Certificate
from kernelwright.core.messages.model import ExtractModel
from kernelwright.core.model_spec import refuse_foreign
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Tree
from kernelwright.engine.app import Beginning, Watch, begin, unwatched
from kernelwright.engine.foreign_runs import FoundRun
from kernelwright.engine.offering import languages
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import Show, ask_model
from kernelwright.engine.winners import certificates
from kernelwright.hardware.detect import cpu_device, devices, usable_cores
from kernelwright.store.disk import disk_errors, make_folder
from kernelwright.store.journal import Journal
from kernelwright.store.locate import runs_folder

ELSEWHERE = (DeviceMissing, InputsDoNotFit, ModelNotLoadable, OutOfMemory, PackageMissing)
"""Why a model may not load on another machine."""


@dataclass(frozen=True)
class Again:
    """A winner, then and now."""

    problem: Problem
    """As it is here."""
    candidate: Candidate
    before: Certificate
    now: Certificate | None
    """What was proven of it here; None if it did not hold."""
    reason: str
    """The gate's sentence here."""

    @property
    def held(self) -> bool:
        """Tell whether it was proven again."""
        return self.now is not None


@dataclass(frozen=True)
class Rejudged:
    """What became of a run's winners."""

    folder: Path
    """Of the new run."""
    winners: tuple[Again, ...]
    model_before: ModelVerified | None
    model_now: ModelVerified | None
    notes: tuple[str, ...]
    """What could not be done here."""

    @property
    def held(self) -> bool:
        """Tell whether every winner was proven again, and the whole model where it had been and loads here."""
        pays = self.model_now is None or not self.model_before or not self.model_before.shipped
        return all(one.held for one in self.winners) and (
            pays or bool(self.model_now and self.model_now.shipped)
        )


def rejudge(
    run_id: str,
    before: Tree,
    found: FoundRun,
    show: Show,
    watch: Watch = unwatched,
    threads: int | None = None,
) -> Rejudged:
    """Certify the winners of a run again in a new one, and return both findings."""
    question, home = asked_again(run_id, before, found, show, threads), found.home
    with disk_errors(runs_folder(home)):
        make_folder(runs_folder(home))
    folder = begin(question.config, home, question.beginning(), show, watch)
    after = Journal.open(folder).tree()
    proofs = certificates(before)
    winners = tuple(
        _again(after, problem, question.winners[key], proofs[key]) for key, problem in question.here.items()
    )
    return Rejudged(folder, winners, before.verified, after.verified, question.notes)


@dataclass(frozen=True)
class Question:
    """What is judged again."""

    at: datetime
    """When it was asked."""
    config: RunConfig
    device: Device
    here: Mapping[str, Problem]
    """The problems as they are here, by their hash in the other run."""
    winners: Mapping[str, Candidate]
    """By the same hash."""
    notes: tuple[str, ...]

    def beginning(self) -> Beginning:
        """Return what the new run begins with: its problems, and the winners as its only candidates."""
        seeds = Seeds(languages(self.config, self.device), self.config.threads or usable_cores())
        events: list[Body] = [Noted(text=note) for note in self.notes]
        for key, problem in self.here.items():
            proposed = CandidateProposed(problem_hash=problem.hash, candidate=self.winners[key])
            events += [ProblemFound(problem=problem), proposed]
        return Beginning(self.at, self.device, seeds, tuple(events))


def asked_again(
    run_id: str, before: Tree, found: FoundRun, show: Show, threads: int | None = None
) -> Question:
    """Return what judging the winners of a run again means on this machine."""
    begun = datetime.now(UTC)
    chosen = winners_of(before)
    if before.started is None or not chosen:
        remedy = f"`kernelwright show {run_id}` says what it found."
        raise BadInput(run_id, "this run has no winner", remedy)
    if before.started.config.get("source"):
        remedy = "`kernelwright judge WINNER --op OP --against FILE` compares its winner with that file here."
        raise BadInput(run_id, "this run was held against a file, not against the baselines", remedy)
    config = _settings(before.started.config, threads)
    found.refuse_running(config)
    plugins.use(config.plugins)
    device = device_like(before.started.device)
    config, notes = _with_model(config, run_id, found.home, show)
    here = {key: before.problems[key].model_copy(update={"device": device}) for key in chosen}
    # Parents are of the other run's tree.
    own = {key: one.model_copy(update={"parents": ()}) for key, one in chosen.items()}
    return Question(begun, config, device, here, own, tuple(notes))


def winners_of(tree: Tree) -> dict[str, Candidate]:
    """Return every problem's best that is no baseline, by problem."""
    best = {key: tree.nodes[key, own].candidate for key, own in tree.best.items()}
    return {key: one for key, one in best.items() if one.origin is Origin.AUTHOR}


def device_like(device: Device) -> Device:
    """Return this machine's device of the same kind: of the same name if there is one, else the first."""
    if device.kind is DeviceKind.CPU:
        return cpu_device()
    here = [one for one in devices() if one.kind is device.kind]
    if not here:
        remedy = "`kernelwright doctor` shows what is here."
        raise DeviceMissing(device.name, f"there is no {device.kind.value} device here", remedy)
    return next((one for one in here if one.name == device.name), here[0])


def _settings(given: Mapping[str, object], threads: int | None) -> RunConfig:
    """Return a run's settings without its search, and with the journal in the run's own folder."""
    config = RunConfig.model_validate(given)
    changes: dict[str, object] = {
        "author": "none",
        "max_expansions": 0,
        "target_speedup": None,
        "source": None,
    }
    changes |= {
        "lessons": False,
        "seeds": False,
        "beside": (),
    }  # certificates are asked for, nothing is searched
    changes |= {"journal_url": None, "threads": config.threads if threads is None else threads}
    return config.model_copy(update=changes)


def _with_model(config: RunConfig, run_id: str, home: Path, show: Show) -> tuple[RunConfig, list[str]]:
    """Return the settings, without the model if it cannot be run here, and what is to be noted."""
    notes = [f"judges the winners of {run_id} again"]
    if config.model is None:
        return config, notes
    show(f"loading {config.model}")
    request = ExtractModel(
        spec=config.model, options=config.model_options(), threads=config.threads or usable_cores()
    )
    try:
        refuse_foreign(config.model, home)
        ask_model(request, show)
    except ELSEWHERE as error:
        notes.append(f"the whole model is not verified: {error}")
        return config.model_copy(update={"model": None}), notes
    return config, notes


def _again(tree: Tree, problem: Problem, candidate: Candidate, before: Certificate) -> Again:
    node = tree.nodes.get((problem.hash, candidate.hash))
    reason = node.decision.reason if node and node.decision else "it was not judged: no baseline was accepted"
    is_best = tree.best.get(problem.hash) == candidate.hash
    return Again(problem, candidate, before, certificates(tree)[problem.hash] if is_best else None, reason)
