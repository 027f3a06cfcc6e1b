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
from kernelwright.core.events import Body, Decided, Noted, ProblemEnded, SearchEscalated, WinnerTried

if TYPE_CHECKING:
    from kernelwright.core.tree import Node, Tree
    from kernelwright.engine.run import Run

Tell = Callable[[str], None]
Watch = Callable[["Run", Sequence[Body]], None]
REFRESH = 4
"""Pictures a second at most."""


@contextmanager
def watching() -> Iterator[tuple[Tell, Watch]]:
    """Give two functions: one is told what is being done, the other of every event."""
    console = err()
    if not console.is_terminal:
        yield _plainly(console)
        return
    with Live(console=console, refresh_per_second=REFRESH, transient=True) as live:
        seen: list[Run] = []
        line = [""]

        def draw() -> None:
            live.update(picture(seen[0], line[0]) if seen else Text(line[0]))

        def tell(text: str) -> None:
            line[0] = text
            draw()

        def watch(run: "Run", bodies: Sequence[Body]) -> None:
            seen[:] = [run]
            for text in news(run.tree, bodies):
                live.console.print(text, markup=False)
            draw()

        yield tell, watch


def _plainly(console: Console) -> tuple[Tell, Watch]:
    last = [""]

    def tell(text: str) -> None:
        if text != last[0]:  # what waits says so every second
            console.print(text, markup=False)
        last[0] = text

    def watch(run: "Run", bodies: Sequence[Body]) -> None:
        for text in news(run.tree, bodies):
            console.print(text, markup=False)

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


def _label(tree: "Tree", key: str) -> str:
    return tree.problems[key].cases[0].label


def _who(node: "Node") -> str:
    author = node.candidate.author
    return f"#{node.seq} {node.candidate.backend} by {author.name}{f' ({author.detail})' if author.detail else ''}"


def _verdict(kept: bool) -> str:
    return "kept" if kept else "reverted"


def picture(run: "Run", line: str) -> Group:
    """Return the state of a run: a row per problem, and what is being done now."""
    from kernelwright.core.search import speeds
    from kernelwright.engine.budget import floor_share

    tree = run.tree
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
            problem.cases[0].label,
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
    """Return how fast decisions are made and how much of the budget is left."""
    decided = sum(node.decision is not None for node in run.tree.nodes.values())
    looks = sum(len(node.screenings) for node in run.tree.nodes.values())
    took = max(1.0, time.monotonic() - run.began)
    left = max(0.0, run.config.budget_s - run.spent.seconds)
    pace = f"{60 * decided / took:.1f} decisions and {60 * looks / took:.0f} looks a minute"
    return f"{pace}, {left:.0f} s of the budget left"
