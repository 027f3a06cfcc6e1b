"""A run as it goes: one changing picture on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import exp
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kernelwright.cli.screen import err
from kernelwright.core.candidate import Origin
from kernelwright.core.events import (
    Body,
    Decided,
    Noted,
    ProblemEnded,
    SearchEscalated,
    WinnerTried,
    problem_of,
)

if TYPE_CHECKING:
    from kernelwright.core.tree import Node, Tree
    from kernelwright.engine.run import Run

Tell = Callable[[str], None]
Watch = Callable[["Run", Sequence[Body]], None]
REFRESH = 4
"""Pictures a second at most."""
STANDING_S = 60.0
"""How often plain lines tell how a run stands, if it does not turn to another problem meanwhile."""


@contextmanager
def watching() -> Iterator[tuple[Tell, Watch]]:
    """Give two functions: one is told what is being done, the other of every event."""
    console = err()
    if not console.is_terminal:
        yield _plainly(console)
        return
    with Live(console=console, refresh_per_second=REFRESH, transient=True) as live:
        seen: list[Run] = []
        line, last = [""], [""]

        def draw() -> None:
            live.update(picture(seen[0], line[0], last[0]) if seen else Text(line[0]))

        def tell(text: str) -> None:
            line[0] = text
            draw()

        def watch(run: "Run", bodies: Sequence[Body]) -> None:
            seen[:], last[0] = [run], _about(bodies) or last[0]
            for text in news(run.tree, bodies):
                live.console.print(text, markup=False)
            draw()

        yield tell, watch


def _plainly(console: Console, every_s: float = STANDING_S) -> tuple[Tell, Watch]:
    last, now, told = [""], [""], [float("-inf")]

    def tell(text: str) -> None:
        if text != last[0]:  # what waits says so every second
            console.print(text, markup=False)
        last[0] = text

    def watch(run: "Run", bodies: Sequence[Body]) -> None:
        for text in news(run.tree, bodies):
            console.print(text, markup=False)
        key, at = current(run, _about(bodies) or now[0]), time.monotonic()
        if key and (key != now[0] or at - told[0] >= every_s):
            console.print(f"now {_label(run.tree, key)}: {_pace(run)}", markup=False)
            now[0], told[0] = key, at

    return tell, watch


def news(tree: "Tree", bodies: Sequence[Body]) -> Iterator[str]:
    """Yield a line for every event a person wants to know of."""
    for body in bodies:
        match body:
            case Decided(decision=decision):
                node = tree.nodes[decision.problem_hash, decision.candidate_hash]
                if node.candidate.origin is Origin.AUTHOR:
                    what = f"{_verdict(decision.kept)}, {decision.reason}"
                    yield f"{_label(tree, decision.problem_hash)}: {_who(node)}: {what}"
            case SearchEscalated(problem_hash=key, reason=reason):
                yield f"{_label(tree, key)}: {reason}"
            case ProblemEnded(problem_hash=key, reason=reason):
                yield f"{_label(tree, key)}: search ended, {reason}"
            case WinnerTried(problem_hash=key, kept=kept, reason=reason):
                yield f"{_label(tree, key)}: in the model {'it stays' if kept else 'it goes'}, {reason}"
            case Noted(text=text):
                yield text
            case _:
                pass


def _about(bodies: Sequence[Body]) -> str:
    """Return the problem the last event about one is about; empty if there is none."""
    return next((key for body in reversed(bodies) if (key := problem_of(body))), "")


def current(run: "Run", last: str) -> str:
    """Return the problem that is worked on: whose turn it is, else, when the search is over, the last one spoken of."""
    from kernelwright.engine.scheduler import next_problem

    return "" if run.tree.ended else next_problem(run.tree) or last


def _label(tree: "Tree", key: str) -> str:
    return tree.problems[key].cases[0].label


def _who(node: "Node") -> str:
    author = node.candidate.author
    return f"#{node.seq} {node.candidate.backend} by {author.name}{f' ({author.detail})' if author.detail else ''}"


def _verdict(kept: bool) -> str:
    return "kept" if kept else "reverted"


def picture(run: "Run", line: str, last: str = "") -> Group:
    """Return the state of a run: a row per problem, the current one marked, and what is being done now."""
    from kernelwright.core.search import speeds
    from kernelwright.engine.budget import floor_share

    tree, now = run.tree, current(run, last)
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("problem", "share", "tree", "kept", "reverted", "best", "of floor", "state"):
        table.add_column(name, justify="left" if name in ("problem", "state") else "right")
    for key, problem in tree.problems.items():
        own = [node for (owner, _), node in tree.nodes.items() if owner == key]
        judged = [node for node in own if node.decision and node.candidate.origin is Origin.AUTHOR]
        kept = sum(bool(node.decision and node.decision.kept) for node in judged)
        best = tree.best.get(key)
        speed = speeds(tree, key).certified(best) if best else None
        reached, quest = floor_share(tree, problem), tree.quests[key]
        table.add_row(
            f"{'>' if key == now else ' '} {problem.cases[0].label}",
            f"{100 * problem.share:.0f} %",
            str(len(own)),
            str(kept),
            str(len(judged) - kept),
            f"x{exp(speed):.2f}" if speed is not None else "",
            f"{100 * reached:.0f} %" if reached is not None else "",
            quest.ended.rule if quest.ended else f"searching, level {quest.level}" if quest.asked else "",
        )
    return Group(table, Text(_pace(run), style="dim"), Text(line))


def _pace(run: "Run") -> str:
    """Return how fast decisions are made, how much of the budget is left, and what language models cost."""
    decided = sum(node.decision is not None for node in run.tree.nodes.values())
    looks = sum(len(node.screenings) for node in run.tree.nodes.values())
    took = max(1.0, time.monotonic() - run.began)
    left = max(0.0, run.config.budget_s - run.spent.seconds)
    pace = f"{60 * decided / took:.1f} decisions and {60 * looks / took:.0f} looks a minute"
    return ", ".join([pace, f"{left:.0f} s of the budget left", *_purse(run)])


def _purse(run: "Run") -> Iterator[str]:
    """Yield money and tokens: what is left where there is a limit, what was spent where there is none."""
    from kernelwright.core.exchange import totals

    spent, config = totals(run.tree.exchanges), run.config
    if config.max_cost is not None:
        yield f"${max(0.0, config.max_cost - spent.cost):.4f} of ${config.max_cost:.4f} left"
    elif spent.calls:
        yield f"{spent.money} spent"
    if config.max_tokens is not None:
        yield f"{max(0, config.max_tokens - spent.tokens)} of {config.max_tokens} tokens left"
    elif spent.calls:
        yield f"{spent.tokens} tokens spent"
