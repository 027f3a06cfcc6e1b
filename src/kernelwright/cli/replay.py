"""`kernelwright replay`: repeat a run from its recorded replies, with no key."""

from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.cli.runs import RunArgument, TrustFlag
from kernelwright.cli.screen import (
    Answer,
    ExitCode,
    HomeOption,
    JsonFlag,
    kernelwright_home,
    out,
    print_json,
)

if TYPE_CHECKING:
    from kernelwright.engine.replaying import Replayed


class ReplayedCandidate(Answer):
    """A candidate that ended otherwise than in the recorded run."""

    case: str
    """Op, size and dtype of its problem."""
    candidate: str
    """Its hash."""
    note: str
    """What was tried."""
    before: str
    """How it ended then: the judge's status, and whether it was kept."""
    now: str
    """How it ended now; `not proposed` if the search took another way."""


class ReplayAnswer(Answer):
    """What `replay --json` prints."""

    run_id: str
    """The recorded run."""
    folder: str
    """Folder of the new run, with its own journal and reports."""
    verdicts: str
    """`live`, or `recorded`."""
    replies: int
    """Recorded replies that were given again."""
    left: int
    """Recorded replies nobody asked for."""
    differing: int
    """Replies given to a prompt with other words than then: times are measured anew."""
    candidates: int
    """Candidates of the recorded run."""
    differences: list[ReplayedCandidate]
    """Those that ended otherwise."""
    ended: str
    """Why it stopped."""


def replay(
    run: RunArgument = "last",
    recorded_verdicts: Annotated[
        bool, typer.Option("--recorded-verdicts", help="Give the judge's recorded verdicts again, too.")
    ] = False,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Repeat a run's search from the recorded replies of its language models; no key, no network."""
    from kernelwright.cli.live import watching
    from kernelwright.cli.runs import open_run
    from kernelwright.engine.foreign_runs import FoundRun
    from kernelwright.engine.replaying import replay as repeat
    from kernelwright.report.write import write_reports
    from kernelwright.store.journal import Journal

    place = kernelwright_home(home)
    journal, folder = open_run(place, run)
    with watching() as (tell, watch):
        recorded = FoundRun(folder, place, trust)
        found = repeat(journal, recorded, tell, watch, recorded_verdicts=recorded_verdicts)
    write_reports(found.folder, Journal.open(found.folder).tree())
    answer = _answer(journal.run_id, found, "recorded" if recorded_verdicts else "live")
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK


def _answer(run_id: str, found: "Replayed", verdicts: str) -> ReplayAnswer:
    from kernelwright.engine.replaying import ended

    return ReplayAnswer(
        run_id=run_id,
        folder=str(found.folder),
        verdicts=verdicts,
        replies=found.replies,
        left=found.left,
        differing=found.differing,
        candidates=len(found.candidates),
        differences=[
            ReplayedCandidate(
                case=one.problem.cases[0].label,
                candidate=one.before.candidate.hash,
                note=one.before.candidate.note,
                before=ended(one.before),
                now=ended(one.now) if one.now else "not proposed",
            )
            for one in found.candidates
            if not one.is_same
        ],
        ended=found.ended,
    )


def _print(answer: ReplayAnswer) -> None:
    console = out()
    same = answer.candidates - len(answer.differences)
    console.print(
        f"{answer.replies} replies given again, {answer.left} left over, {answer.differing} to other words",
        markup=False,
    )
    console.print(f"{same} of {answer.candidates} candidates ended as they did", markup=False)
    for row in answer.differences:
        console.print(f"  {row.candidate[:12]}  {row.note}", markup=False)
        console.print(f"    then {row.before}; now {row.now}", markup=False)
    console.print(f"ended: {answer.ended}", markup=False)
    console.print(f"run {answer.folder}, verdicts {answer.verdicts}", markup=False, soft_wrap=True)
