"""The tree is a pure fold over events: same events, same tree, whatever the pauses between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.core.events import (
    BODY,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    LessonLearnt,
    ModelVerified,
    Noted,
    ProblemFound,
    RunEnded,
    RunStarted,
    Screened,
    chain_hash,
)
from kernelwright.core.lesson import Lesson
from kernelwright.core.tree import Tree, fold
from kernelwright.core.verdict import Decision, Outcome, Screening, Stage, Status


def decided(verdict, *, kept, comparison=None):
    return Decided(
        decision=Decision(
            problem_hash=verdict.problem_hash,
            candidate_hash=verdict.candidate_hash,
            kept=kept,
            reason="because",
            evaluation_hash=verdict.hash,
            comparison_hash=comparison.hash if comparison else None,
        )
    )


@pytest.fixture(scope="module")
def story(make):
    """Return a run: a baseline, a wrong child, a faster child, a grandchild that is not faster, an end."""
    problem, base = make.problem(), make.baseline()
    wrong = make.candidate("wrong", parents=(base.hash,))
    faster = make.candidate("faster", parents=(base.hash,))
    slower = make.candidate("slower", parents=(faster.hash, "f" * 64))
    verdicts = {
        "base": make.evaluation(base, problem),
        "wrong": make.evaluation(wrong, problem, failed=Stage.SMOKE),
        "faster": make.evaluation(faster, problem),
        "slower": make.evaluation(slower, problem),
    }
    won = make.comparison(base, faster, problem)
    lost = make.comparison(faster, slower, problem, outcome=Outcome.NOT_FASTER)
    look = Screening(
        candidate_hash=faster.hash,
        problem_hash=problem.hash,
        values={"BLOCK": 128},
        case_hash=problem.cases[0].hash,
        status=Status.ACCEPTED,
        latency_us=9.5,
    )
    lesson = Lesson(claim="wider loads help", evaluations=(verdicts["faster"].hash,))
    bodies = [
        RunStarted(config={"threads": 2}, versions={"python": "3"}, device=problem.device),
        ProblemFound(problem=problem),
        CandidateProposed(problem_hash=problem.hash, candidate=base),
        Evaluated(evaluation=verdicts["base"]),
        decided(verdicts["base"], kept=True),
        CandidateProposed(problem_hash=problem.hash, candidate=wrong),
        Evaluated(evaluation=verdicts["wrong"]),
        decided(verdicts["wrong"], kept=False),
        Noted(text="the compiler cache was cold"),
        CandidateProposed(problem_hash=problem.hash, candidate=faster),
        Screened(screening=look),
        Evaluated(evaluation=verdicts["faster"]),
        Compared(comparison=won),
        decided(verdicts["faster"], kept=True, comparison=won),
        CandidateProposed(problem_hash=problem.hash, candidate=slower),
        Evaluated(evaluation=verdicts["slower"]),
        Compared(comparison=lost),
        decided(verdicts["slower"], kept=False, comparison=lost),
        LessonLearnt(lesson=lesson),
        ModelVerified(
            winners={problem.hash: faster.hash},
            ratio=1.1,
            ci_low=1.05,
            ci_high=1.15,
            eager_ratio=1.3,
            eager_ci_low=1.2,
            eager_ci_high=1.4,
            drift=1.0,
            fallbacks=0,
            shipped=True,
            reason="pays",
        ),
        RunEnded(reason="budget"),
    ]
    return {
        "bodies": bodies,
        "problem": problem,
        "candidates": {"base": base, "wrong": wrong, "faster": faster, "slower": slower},
        "verdicts": verdicts,
        "comparisons": {"won": won, "lost": lost},
        "look": look,
        "lesson": lesson,
    }


def test_fold_of_a_run_holds_everything_that_happened(story):
    tree, problem = fold(story["bodies"]), story["problem"]
    hashes = {name: candidate.hash for name, candidate in story["candidates"].items()}
    nodes = {name: tree.nodes[problem.hash, own] for name, own in hashes.items()}
    assert tree.events == len(story["bodies"])
    assert tree.problems == {problem.hash: problem}
    assert [node.seq for node in nodes.values()] == [0, 1, 2, 3]
    assert nodes["base"].children == [hashes["wrong"], hashes["faster"]]
    assert nodes["faster"].children == [hashes["slower"]]
    assert {name: node.evaluations for name, node in nodes.items()} == {
        name: [verdict] for name, verdict in story["verdicts"].items()
    }
    assert nodes["faster"].screenings == [story["look"]]
    assert nodes["base"].comparisons == nodes["wrong"].comparisons == []
    assert nodes["faster"].comparisons == [story["comparisons"]["won"]]
    assert nodes["slower"].comparisons == [story["comparisons"]["lost"]]
    assert {name: node.decision.kept for name, node in nodes.items()} == {
        "base": True,
        "wrong": False,
        "faster": True,
        "slower": False,
    }
    assert tree.lessons == [story["lesson"]]
    assert tree.started == story["bodies"][0]
    assert tree.verified == story["bodies"][-2]
    assert tree.ended == story["bodies"][-1]


def test_best_pointer_follows_kept_decisions_only(story):
    tree, seen = Tree(), []
    for body in story["bodies"]:
        tree.apply(body)
        if isinstance(body, Decided):
            seen.append(tree.best[story["problem"].hash])
    base, faster = story["candidates"]["base"].hash, story["candidates"]["faster"].hash
    assert seen == [base, base, faster, faster]


def test_pointer_can_move_back_without_anything_being_lost(story, make):
    base = story["candidates"]["base"]
    again = decided(story["verdicts"]["base"], kept=True)
    tree = fold([*story["bodies"], again])
    assert tree.best == {story["problem"].hash: base.hash}
    assert len(tree.nodes) == 4


def test_title_falls_back_when_its_holder_is_reverted(story):
    base, faster = story["candidates"]["base"].hash, story["candidates"]["faster"].hash
    problem = story["problem"].hash
    tree = fold(story["bodies"])
    assert tree.titles == {problem: [base, faster]}
    tree.apply(decided(story["verdicts"]["faster"], kept=True))
    assert tree.titles == {problem: [base, faster]}
    tree.apply(decided(story["verdicts"]["faster"], kept=False))
    assert (tree.titles, tree.best) == ({problem: [base]}, {problem: base})
    tree.apply(decided(story["verdicts"]["base"], kept=False))
    assert tree.best == {}


def test_same_candidate_proposed_twice_is_one_node(story, make):
    base, problem = story["candidates"]["base"], story["problem"]
    twin = make.candidate("faster", note="another author, same source", parents=(base.hash,))
    tree = fold([*story["bodies"], CandidateProposed(problem_hash=problem.hash, candidate=twin)])
    assert len(tree.nodes) == 4
    kept = tree.nodes[problem.hash, twin.hash]
    assert kept.candidate == story["candidates"]["faster"]
    assert kept.evaluations == [story["verdicts"]["faster"]]
    assert tree.nodes[problem.hash, base.hash].children.count(twin.hash) == 1


def test_same_source_for_two_problems_is_two_nodes(story, make):
    base, other = story["candidates"]["base"], make.problem(reference="m:f")
    tree = fold(
        [
            *story["bodies"],
            ProblemFound(problem=other),
            CandidateProposed(problem_hash=other.hash, candidate=base),
        ]
    )
    assert len(tree.nodes) == 5
    assert tree.nodes[other.hash, base.hash].evaluations == []
    assert other.hash not in tree.best


@pytest.mark.parametrize("kind", [Screened, Evaluated, Compared, Decided])
def test_event_about_a_candidate_never_proposed_is_a_value_error_that_names_it(story, kind):
    place = next(i for i, body in enumerate(story["bodies"]) if isinstance(body, kind))
    speaks = story["bodies"][place]
    known = [body for body in story["bodies"][:place] if not isinstance(body, CandidateProposed)]
    silent = [body for body in known if isinstance(body, RunStarted | ProblemFound | Noted)]
    inner = next(getattr(speaks, name) for name in type(speaks).model_fields if name != "kind")
    subject = inner.challenger_hash if kind is Compared else inner.candidate_hash
    with pytest.raises(ValueError, match=f"event {len(silent)} speaks of candidate {subject[:12]}, never"):
        fold([*silent, speaks])


@given(st.integers(0, 21))
def test_fold_can_be_interrupted_anywhere(story, place):
    tree = fold(story["bodies"][:place])
    for body in story["bodies"][place:]:
        tree.apply(body)
    assert tree == fold(story["bodies"])


def test_fold_of_stored_text_is_the_fold_of_the_events(story):
    stored = [BODY.validate_json(BODY.dump_json(body)) for body in story["bodies"]]
    assert fold(stored) == fold(story["bodies"])


def test_fold_of_nothing_is_an_empty_tree():
    tree = fold([])
    assert (tree.events, tree.nodes, tree.best, tree.started) == (0, {}, {}, None)


def test_folding_leaves_the_events_alone(story):
    before = [body.model_dump_json() for body in story["bodies"]]
    fold(story["bodies"]).nodes.clear()
    assert [body.model_dump_json() for body in story["bodies"]] == before


def test_chain_hash_depends_on_every_field_and_on_their_borders():
    plain = chain_hash("0" * 64, 1, "2026-01-01", 1, "{}")
    others = [
        chain_hash("1" + "0" * 63, 1, "2026-01-01", 1, "{}"),
        chain_hash("0" * 64, 2, "2026-01-01", 1, "{}"),
        chain_hash("0" * 64, 1, "2026-01-02", 1, "{}"),
        chain_hash("0" * 64, 1, "2026-01-01", 2, "{}"),
        chain_hash("0" * 64, 1, "2026-01-01", 1, "{ }"),
        chain_hash("0" * 64, 1, "2026-01-0", 1, "1{}"),
    ]
    assert len({plain, *others}) == 7
