"""`kernelwright submit`: a person or a program proposes a candidate to a run."""

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.cli.hints import home_words
from kernelwright.cli.runs import TrustFlag
from kernelwright.cli.screen import (
    Answer,
    ExitCode,
    HomeOption,
    JsonFlag,
    err,
    kernelwright_home,
    out,
    print_json,
)

if TYPE_CHECKING:
    from kernelwright.core.brief import Proposal
    from kernelwright.core.problem import Problem
    from kernelwright.core.tree import Tree
    from kernelwright.store.journal import Journal

POLL_SECONDS = 1.0
RunOption = Annotated[
    str, typer.Option("--run", help="The run: its id, the beginning of it, `last`, or its folder.")
]
ProblemOption = Annotated[
    str | None, typer.Option(help="Which problem of the run: its number from 1, its label, or a part of it.")
]


class Submitted(Answer):
    """One candidate that was submitted."""

    candidate: str
    """Its hash; the journal and the reports know it by that."""
    backend: str
    """Its language."""
    kept: bool | None
    """Whether it was kept; None while nothing is decided."""
    reason: str
    """The gate's sentence, why it was refused, or what it waits for."""
    ratio: float | None
    """Time of whom it was compared with over its own time."""
    ci_low: float | None
    """Lower end of the 95 % interval."""
    ci_high: float | None
    """Upper end of the 95 % interval."""


class SubmitAnswer(Answer):
    """What `submit --json` prints."""

    run_id: str
    """The run."""
    problem: str
    """Label of the problem."""
    submitted: list[Submitted]
    """One entry per candidate in the file."""


@dataclass(frozen=True)
class Handed:
    """What was handed in, and the run it was handed to."""

    journal: "Journal"
    tree: "Tree"
    folder: Path
    """Of the run."""
    problem: "Problem"
    proposals: "Sequence[Proposal]"
    dropped: dict[int, Path]
    """Files of the inbox, by place among the proposals; none for what the run holds already."""
    hint: str
    """What it waits for."""


def submit(
    file: Annotated[
        Path,
        typer.Argument(
            help="A source file, or a program's answer to a brief (JSON with source and backend)."
        ),
    ],
    run: RunOption = "last",
    problem: ProblemOption = None,
    note: Annotated[str, typer.Option(help="What is tried and why, in a sentence.")] = "",
    author: Annotated[str | None, typer.Option(help="Who proposes it. Default: the user's name.")] = None,
    parent: Annotated[
        str,
        typer.Option(help="Hash of the candidate it was made from. Default: the best, if it looks like it."),
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the decision: exit code 0 if kept, 1 if reverted.")
    ] = False,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Propose a candidate to a run; it is judged like any other, with the run's next step."""
    from kernelwright.engine.taking_part import Wording, proposals_in

    proposals = proposals_in(file, Wording(author or user_name(), note))
    handed = hand_in(kernelwright_home(home), run, problem, proposals, parent, trusted=trust)
    if wait and handed.dropped:
        err().print(f"waiting: {handed.hint}", markup=False)
    if wait:
        wait_for(handed)
    answer = answer_of(handed)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.NEGATIVE if any(row.kept is False for row in answer.submitted) else ExitCode.OK


def hand_in(
    home: Path,
    run: str,
    problem: str | None,
    proposals: "Sequence[Proposal]",
    parent: str = "",
    *,
    trusted: bool = False,
) -> Handed:
    """Put proposals into the inbox of a run; what the run would refuse or holds already is not put there."""
    from kernelwright.engine.foreign_runs import FoundRun
    from kernelwright.engine.inbox import drop
    from kernelwright.engine.taking_part import onlooking, problem_named, refuse_useless, twins

    journal, folder = opened(home, run)
    tree, found = journal.tree(), FoundRun(folder, home, trusted)
    chosen = problem_named(tree, problem)
    refuse_useless(onlooking(found, tree), chosen, proposals)
    dropped = {
        place: drop(folder, chosen.hash, one, parent)
        for place, (one, twin) in enumerate(zip(proposals, twins(tree, chosen, proposals), strict=True))
        if twin is None
    }
    name = shlex.quote(name_of(folder, home)) + ("" if found.is_own else " --trust") + home_words(home)
    hint = f"judged with the run's next step; if it is not running, `kernelwright resume {name}` goes on"
    if tree.ended is not None and dropped:
        hint = f"the run has ended: `kernelwright resume {name}` judges it"
    return Handed(journal, tree, folder, chosen, proposals, dropped, hint)


def answer_of(handed: Handed) -> SubmitAnswer:
    """Return what is known by now of what was handed in."""
    label = handed.problem.cases[0].label
    return SubmitAnswer(run_id=handed.journal.run_id, problem=label, submitted=_rows(handed))


def wait_for(handed: Handed, most_s: float = math.inf) -> None:
    """Read on in the journal until all are decided on or refused, so many seconds at most."""
    until = time.monotonic() + most_s
    while any(row.kept is None for row in _rows(handed)) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        for body in handed.journal.bodies(handed.tree.events):
            handed.tree.apply(body)


def opened(home: Path, run: str) -> "tuple[Journal, Path]":
    """Return the journal of a run and its folder, which must be on this machine."""
    from kernelwright.cli.runs import open_run
    from kernelwright.core.errors import NotFound

    journal, folder = open_run(home, run)
    if folder is None:
        raise NotFound("Run folder", run, "Take part on the machine the run is on.")
    return journal, folder


def name_of(folder: Path, home: Path) -> str:
    """Return how other verbs are told which run is meant."""
    from kernelwright.store.locate import is_own

    return folder.name if is_own(folder, home) else str(folder.resolve())


def user_name() -> str:
    """Return who is at work here."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return "somebody"


def _rows(handed: Handed) -> list[Submitted]:
    from kernelwright.engine.inbox import refusal
    from kernelwright.engine.taking_part import twins

    rows, dropped = [], handed.dropped
    found_now = twins(handed.tree, handed.problem, handed.proposals)
    for place, (one, node) in enumerate(zip(handed.proposals, found_now, strict=True)):
        decision = node.decision if node else None
        refused = refusal(handed.folder, dropped[place].name) if place in dropped else None
        found = node.comparisons[-1] if node and node.comparisons else None
        known = "in the run already: " if place not in dropped else ""
        reason = decision.reason if decision else f"refused: {refused}" if refused else handed.hint
        rows.append(
            Submitted(
                candidate=node.candidate.hash if node else one.candidate(handed.problem).hash,
                backend=one.backend,
                kept=decision.kept if decision else False if refused else None,
                reason=known + reason,
                ratio=found.ratio if found else None,
                ci_low=found.ci_low if found else None,
                ci_high=found.ci_high if found else None,
            )
        )
    return rows


def _print(answer: SubmitAnswer) -> None:
    words = {True: "kept", False: "reverted", None: "submitted"}
    for row in answer.submitted:
        line = f"{answer.problem}: {row.candidate[:12]} {words[row.kept]}; {row.reason}"
        out().print(line, markup=False, soft_wrap=True)
