"""The ledger: what language models cost in tokens, money and seconds, per call, per role and per gain that was kept."""

from collections.abc import Sequence

from kernelwright.core.exchange import Exchange, Totals, totals
from kernelwright.core.frozen import Frozen
from kernelwright.core.tree import Tree


class Line(Frozen):
    """What some calls sum up to."""

    what: str
    """The role, or the gain."""
    spent: Totals

    @property
    def cells(self) -> list[str]:
        """Return it as a row of a table."""
        calls = max(1, self.spent.calls)
        return [
            self.what,
            str(self.spent.calls),
            f"{self.spent.tokens_in:,} + {self.spent.tokens_out:,}",
            self.spent.money,
            f"{self.spent.seconds:.1f}",
            f"{self.spent.seconds / calls:.1f}",
        ]


class Ledger(Frozen):
    """What a run spent on language models."""

    total: Line
    roles: tuple[Line, ...]
    """By what they were asked as."""
    gains: tuple[Line, ...]
    """For every kept kernel of an llm, everything asked for its problem since the one before: failures too."""
    since: Line
    """Everything asked that no gain followed yet."""

    @property
    def per_gain(self) -> str:
        """Return in words what a kept gain cost on the average."""
        if not self.gains:
            return "nothing was kept for it"
        count, spent = len(self.gains), self.total.spent
        tokens = (spent.tokens_in + spent.tokens_out) / count
        money = f"${spent.cost / count:.4f}" if not spent.unpriced else "at an unknown price"
        return f"per kept gain: {tokens:,.0f} tokens, {money}, {spent.seconds / count:.1f} s of asking"


HEAD = ("what", "calls", "tokens in + out", "cost", "seconds", "seconds per call")


def ledger_of(tree: Tree) -> Ledger | None:
    """Return the ledger of a run; None if it asked no language model."""
    if not tree.exchanges:
        return None
    roles: dict[str, list[Exchange]] = {}
    for one in tree.exchanges:
        roles.setdefault(one.role, []).append(one)
    rest = [one for quest in tree.quests.values() for one in quest.exchanges]
    return Ledger(
        total=_line("all", tree.exchanges),
        roles=tuple(_line(role, every) for role, every in roles.items()),
        gains=tuple(_line(_name(tree, problem, own), exchanges) for problem, own, exchanges in tree.gains),
        since=_line("since the last gain", rest),
    )


def _name(tree: Tree, problem: str, own: str) -> str:
    """Return a gain in words: which candidate, and by how much it beat the best before it."""
    node = tree.nodes[problem, own]
    ratio = f" ×{node.comparisons[0].ratio:.3f}" if node.comparisons else ""
    return f"#{node.seq}{ratio} on {tree.problems[problem].cases[0].label}"


def _line(what: str, exchanges: Sequence[Exchange]) -> Line:
    return Line(what=what, spent=totals(exchanges))
