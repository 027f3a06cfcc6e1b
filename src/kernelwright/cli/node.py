"""`kernelwright show RUN --node N`: one candidate of a run, with everything that was said and found of it."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.cli.screen import Answer, out
from kernelwright.core.candidate import Candidate
from kernelwright.core.errors import BadInput
from kernelwright.core.exchange import Exchange
from kernelwright.core.verdict import Comparison, Decision, Evaluation, Status

if TYPE_CHECKING:
    from kernelwright.core.events import Body, LlmAsked
    from kernelwright.core.tree import Node, Tree


class Said(Answer):
    """A question put to a language model, and its answer."""

    exchange: Exchange
    """Who was asked, at what price."""
    prompt: str
    """Everything that was sent."""
    reply: str
    """What came back; empty if nothing did."""


class NodeAnswer(Answer):
    """What `show RUN --node N --json` prints."""

    number: int
    """Its number in the run."""
    problem: str
    """Op, size and dtype."""
    candidate: Candidate
    """Source, values, author and parents."""
    evaluations: list[Evaluation]
    """The judge's verdicts."""
    comparisons: list[Comparison]
    """Races in which it was the challenger."""
    decision: Decision | None
    """Whether it was kept, and why."""
    looks: int
    """Cheap looks taken at it."""
    exchanges: list[Said]
    """What language models were asked for it."""


def node_answer(tree: "Tree", bodies: "Iterable[Body]", folder: Path | None, number: int) -> NodeAnswer:
    """Return one candidate of a run by its number."""
    node = next((one for one in tree.nodes.values() if one.seq == number), None)
    if node is None:
        last = len(tree.nodes) - 1
        raise BadInput("--node", f"the run has no candidate {number}", f"Give a number from 0 to {last}.")
    return NodeAnswer(
        number=number,
        problem=tree.problems[node.problem_hash].cases[0].label,
        candidate=node.candidate,
        evaluations=node.evaluations,
        comparisons=node.comparisons,
        decision=node.decision,
        looks=len(node.screenings),
        exchanges=[_said(one, folder) for one in exchanges_of(bodies, node)],
    )


def exchanges_of(bodies: "Iterable[Body]", node: "Node") -> list[Exchange]:
    """Return what was asked for a candidate before it was proposed, and about it afterwards, in order."""
    from kernelwright.core.events import ExpansionAnswered, LlmAsked

    own, asked, answered = node.candidate.hash, list[LlmAsked](), list[LlmAsked]()
    for body in bodies:
        match body:
            case LlmAsked():
                asked.append(body)
            case ExpansionAnswered(expansion=expansion, candidates=candidates) if own in candidates:
                if expansion.problem_hash == node.problem_hash and not answered:
                    answered = [one for one in asked if one.expansion == expansion]
            case _:
                pass
    later = [one for one in asked if one.candidate_hash == own and one not in answered]
    return [one.exchange for one in (*answered, *(one for one in later if _is_of(one, node)))]


def _is_of(asked: "LlmAsked", node: "Node") -> bool:
    return asked.expansion.problem_hash == node.problem_hash


def _said(exchange: Exchange, folder: Path | None) -> Said:
    return Said(
        exchange=exchange,
        prompt=_text(folder, exchange.prompt_hash),
        reply=_text(folder, exchange.reply_hash) if exchange.reply_hash else "",
    )


def _text(folder: Path | None, blob_hash: str) -> str:
    from kernelwright.core.errors import BlobMissing
    from kernelwright.store.blobs import Blobs

    if folder is None:
        return "the text lies in the run's folder on another machine"
    try:
        return Blobs(folder / "blobs").get(blob_hash).decode()
    except BlobMissing as error:
        return str(error)


def print_node(answer: NodeAnswer) -> None:
    """Print a candidate: who, what came of it, what was said, and its source last."""
    console, candidate = out(), answer.candidate
    author = f"{candidate.author.name} {candidate.author.detail}".strip()
    console.print(f"#{answer.number}  {answer.problem}  {candidate.backend} by {author}", markup=False)
    lines = [candidate.note, f"parents: {', '.join(one[:12] for one in candidate.parents) or 'none'}"]
    lines += [f"values: {choice.values}" for choice in candidate.choices if choice.values]
    for verdict in answer.evaluations:
        failed = f": {verdict.failure.stage.value}, {verdict.failure.reason}" if verdict.failure else ""
        passed = sum(stage.passed for stage in verdict.stages)
        words = f"{verdict.profile.value}: {verdict.status.value}, {passed} stages passed"
        lines.append(
            f"{words}, {verdict.seconds:.1f} s{failed if verdict.status is not Status.ACCEPTED else ''}"
        )
    lines.append(f"{answer.looks} looks, {len(answer.comparisons)} races")
    if answer.decision:
        lines.append(f"{'kept' if answer.decision.kept else 'reverted'}: {answer.decision.reason}")
    for one in answer.exchanges:
        exchange = one.exchange
        cost = "at an unknown price" if exchange.cost is None else f"for ${exchange.cost:.4f}"
        lines += [
            "",
            f"--- asked {exchange.model} as {exchange.role}, {exchange.seconds:.1f} s, {cost}",
            one.prompt,
        ]
        lines += [f"--- it said{': ' + exchange.failure if exchange.failure else ''}", one.reply]
    for line in (*lines, "", candidate.source):
        console.print(line, markup=False, highlight=False)
