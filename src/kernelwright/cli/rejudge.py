"""`kernelwright rejudge`: certify a run's winners again, without searching."""

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
    from kernelwright.core.events import ModelVerified
    from kernelwright.core.manifest import Certificate
    from kernelwright.engine.rejudging import Rejudged


class Proof(Answer):
    """A ratio with its interval."""

    ratio: float
    """Baseline's time over the winner's time."""
    ci_low: float
    """Lower end of the 95 % interval."""
    ci_high: float
    """Upper end of the 95 % interval."""
    over: str
    """The baseline."""


class RejudgedWinner(Answer):
    """One winner, then and now."""

    case: str
    """Op, size and dtype."""
    candidate: str
    """Its hash."""
    backend: str
    """Its language."""
    held: bool
    """Whether it was proven again."""
    before: Proof | None
    """What the run had proven."""
    now: Proof | None
    """What is proven here; None if it did not hold."""
    reason: str
    """The gate's sentence."""


class RejudgeAnswer(Answer):
    """What `rejudge --json` prints."""

    run_id: str
    """The run whose winners were judged again."""
    folder: str
    """Folder of the new run, with its own journal and reports."""
    held: bool
    """Whether everything was proven again; the exit code says the same."""
    winners: list[RejudgedWinner]
    """One entry per problem that had a winner."""
    model_before: Proof | None
    """The whole model with its winners, as the run had it."""
    model_now: Proof | None
    """The same here; None if it was not verified."""
    notes: list[str]
    """What could not be done here."""


def rejudge(
    run: RunArgument = "last",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of a judged kernel; 0 for all cores. Default: as the run.")
    ] = None,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Certify a run's winners again on this machine; exit code 1 if one does not hold."""
    from kernelwright.cli.live import watching
    from kernelwright.cli.runs import open_run
    from kernelwright.engine.foreign_runs import FoundRun
    from kernelwright.engine.rejudging import rejudge as judge_again
    from kernelwright.report.write import write_reports
    from kernelwright.store.journal import Journal

    place = kernelwright_home(home)
    journal, folder = open_run(place, run)
    with watching() as (tell, watch):
        recorded = FoundRun(folder, place, trust)
        found = judge_again(journal.run_id, journal.tree(), recorded, tell, watch, threads)
    write_reports(found.folder, Journal.open(found.folder).tree())
    answer = _answer(journal.run_id, found)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK if answer.held else ExitCode.NEGATIVE


def _answer(run_id: str, found: "Rejudged") -> RejudgeAnswer:
    return RejudgeAnswer(
        run_id=run_id,
        folder=str(found.folder),
        held=found.held,
        winners=[
            RejudgedWinner(
                case=one.problem.cases[0].label,
                candidate=one.candidate.hash,
                backend=one.candidate.backend,
                held=one.held,
                before=_proof(one.before),
                now=_proof(one.now),
                reason=one.reason,
            )
            for one in found.winners
        ],
        model_before=_whole(found.model_before),
        model_now=_whole(found.model_now),
        notes=list(found.notes),
    )


def _proof(found: "Certificate | None") -> Proof | None:
    if found is None or found.ratio is None or found.ci_low is None or found.ci_high is None:
        return None
    return Proof(ratio=found.ratio, ci_low=found.ci_low, ci_high=found.ci_high, over=found.baseline)


def _whole(found: "ModelVerified | None") -> Proof | None:
    if found is None:
        return None
    return Proof(ratio=found.ratio, ci_low=found.ci_low, ci_high=found.ci_high, over="the captured graph")


def _print(answer: RejudgeAnswer) -> None:
    from rich.text import Text

    console = out()
    for row in answer.winners:
        console.print(Text.assemble((row.case, "bold"), f"  {row.backend} {row.candidate[:12]}"))
        console.print(f"  before: {_words(row.before)}", markup=False)
        now = _words(row.now) if row.held else f"does not hold: {row.reason}"
        console.print(f"  now:    {now}", markup=False)
    if answer.model_before or answer.model_now:
        console.print("the whole model", style="bold")
        console.print(f"  before: {_words(answer.model_before)}", markup=False)
        console.print(f"  now:    {_words(answer.model_now)}", markup=False)
    for note in answer.notes:
        console.print(note, markup=False)
    word = "every winner holds" if answer.held else "not every winner holds"
    console.print(f"{word}; run {answer.folder}", markup=False, soft_wrap=True)


def _words(found: Proof | None) -> str:
    if found is None:
        return "not verified"
    return f"x{found.ratio:.3f} [{found.ci_low:.3f}, {found.ci_high:.3f}] over {found.over}"
