"""`kernelwright show`."""

from typing import Annotated

import typer

from kernelwright.cli.optimize import end_to_end
from kernelwright.cli.screen import Answer, HomeOption, JsonFlag, kernelwright_home, out, print_json
from kernelwright.core.ledger import Ledger
from kernelwright.store.summary import Summary


class ShowAnswer(Answer):
    """What `show --json` prints."""

    folder: str
    """The run folder; the place of the journal if the run is another machine's."""
    summary: Summary
    """The run at a glance."""
    ledger: Ledger | None = None
    """What language models cost, per call and per kept gain; None if none was asked."""


def show(
    run: Annotated[
        str, typer.Argument(help="Run id, unique prefix, path of a run folder, or `last`.")
    ] = "last",
    node: Annotated[
        int | None, typer.Option("--node", help="Show this candidate of the run, with everything said of it.")
    ] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Show a run at a glance, answered from its stored summary, or one candidate of it."""
    from kernelwright.cli.runs import open_run

    journal, folder = open_run(kernelwright_home(home), run)
    if node is not None:
        from kernelwright.cli.node import node_answer, print_node

        found = node_answer(journal.tree(), journal.bodies(), folder, node)
        print_json(found) if as_json else print_node(found)
        return
    summary = journal.summary()
    ledger = None
    if summary.kinds.get("llm_asked"):  # the events are walked for this alone
        from kernelwright.core.ledger import ledger_of

        ledger = ledger_of(journal.tree())
    answer = ShowAnswer(folder=str(folder or journal.name), summary=summary, ledger=ledger)
    if as_json:
        print_json(answer)
        return
    _print(answer.summary, answer.folder, answer.ledger)


def _print(summary: Summary, folder: str, ledger: Ledger | None) -> None:
    from rich.text import Text

    console = out()
    told = f"  {summary.model or ''}  on {summary.device or 'unknown device'}"
    console.print(Text.assemble((summary.run_id, "bold"), told))
    # A candidate is decided on more than once: against the best, against rivals, and to confirm it.
    decided = f"{summary.kept} decisions for one and {summary.reverted} against"
    console.print(f"{summary.events} events, {summary.candidates} candidates, {decided}")
    for problem in summary.problems.values():
        gain = (
            f"x{problem.best.ratio:.3f} over its baseline"
            if problem.best and problem.best.ratio
            else "baseline"
        )
        console.print(f"  {', '.join(problem.cases)}  {100 * problem.share:.1f} % of the time  best: {gain}")
    if summary.verified:
        for line in end_to_end(summary.verified):
            console.print(line, markup=False)
    if ledger:
        spent = ledger.total.spent
        tokens = f"{spent.tokens_in:,} + {spent.tokens_out:,} tokens"
        each = spent.seconds / max(1, spent.calls)
        words = f"llm: {spent.calls} calls, {tokens}, {spent.money}, {each:.1f} s per call; {ledger.per_gain}"
        console.print(words, markup=False)
    console.print(f"ended: {summary.ended}" if summary.ended else "not ended")
    console.print(folder, style="dim", soft_wrap=True)
