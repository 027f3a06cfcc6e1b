"""One candidate of a run: who wrote it, what was asked for it, what came of it."""

from pathlib import Path

import pytest

from kernelwright.cli.node import exchanges_of, node_answer, print_node
from kernelwright.core.errors import BadInput
from kernelwright.core.events import (
    CandidateProposed,
    Decided,
    Evaluated,
    ExpansionAnswered,
    ExpansionAsked,
    LlmAsked,
    ProblemFound,
)
from kernelwright.core.exchange import Exchange
from kernelwright.core.expansion import Expansion
from kernelwright.core.tree import fold
from kernelwright.engine import gate
from kernelwright.store.blobs import Blobs


@pytest.fixture
def story(make, tmp_path: Path):
    """Return two expansions, each answered with a kernel after one question to a model."""
    problem, blobs = make.problem(), Blobs(tmp_path / "blobs")
    bodies = [ProblemFound(problem=problem)]
    for number in range(2):
        candidate = make.candidate(f"int kernel_fn(); // {number}")
        wanted = Expansion(problem_hash=problem.hash, diagnosis=number)
        exchange = Exchange(
            role="writer",
            provider="openai",
            model="some-model",
            prompt_hash=blobs.put(f"make it fast, {number}".encode()),
            reply_hash=blobs.put(f"like this, {number}".encode()),
            seconds=1.5,
        )
        verdict = make.evaluation(candidate, problem)
        bodies += [
            ExpansionAsked(strategy="greedy", expansion=wanted),
            LlmAsked(expansion=wanted, exchange=exchange),
            CandidateProposed(problem_hash=problem.hash, candidate=candidate),
            ExpansionAnswered(expansion=wanted, author="llm", candidates=(candidate.hash,)),
            Evaluated(evaluation=verdict),
            Decided(decision=gate.first_of_problem(verdict)),
        ]
    return bodies


def test_a_candidate_comes_with_its_own_questions_and_answers(story, tmp_path: Path) -> None:
    tree = fold(story)
    for number in range(2):
        found = node_answer(tree, story, tmp_path, number)
        assert [(one.prompt, one.reply) for one in found.exchanges] == [
            (f"make it fast, {number}", f"like this, {number}")
        ]
        assert found.candidate.source.endswith(f"// {number}")
        assert found.decision is not None


def test_it_is_printed_with_price_verdict_and_source(story, tmp_path: Path, capsys) -> None:
    print_node(node_answer(fold(story), story, tmp_path, 1))
    shown = capsys.readouterr().out
    for words in (
        "#1",
        "asked some-model as writer, 1.5 s, at an unknown price",
        "like this, 1",
        "keep: accepted",
    ):
        assert words in shown
    assert shown.rstrip().endswith("int kernel_fn(); // 1")


def test_a_text_that_is_gone_is_said_and_a_number_that_is_not_there_is_refused(story, tmp_path: Path) -> None:
    assert (
        "not in the store" in node_answer(fold(story), story, tmp_path / "elsewhere", 0).exchanges[0].prompt
    )
    assert "another machine" in node_answer(fold(story), story, None, 0).exchanges[0].prompt
    with pytest.raises(BadInput, match="from 0 to 1"):
        node_answer(fold(story), story, tmp_path, 2)


def test_a_candidate_nobody_was_asked_for_has_no_exchanges(story) -> None:
    tree = fold(story)
    node = next(iter(tree.nodes.values()))
    assert exchanges_of([body for body in story if not isinstance(body, LlmAsked)], node) == []
