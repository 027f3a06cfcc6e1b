"""What the tree tells a search and an author: speeds, failures, earlier attempts, and nothing that was not proven."""

import math

import pytest

from kernelwright.core.candidate import Author, Origin, ParamChoice
from kernelwright.core.events import (
    Compared,
    Decided,
    Evaluated,
    Screened,
)
from kernelwright.core.expansion import Expansion, Memory
from kernelwright.core.recall import brief_of, remembered
from kernelwright.core.search import Certainty, failure_of, prospects, ranked, rng_at
from kernelwright.core.verdict import Decision, Screening, Stage, Status
from kernelwright.strategies import greedy
from tests.unit.growing import Grower


@pytest.fixture
def grower(make):
    return Grower(make)


def test_certified_speed_follows_comparisons_and_not_times_taken_apart(grower, make):
    seed = grower.grown("seed", time_us=50.0)
    assert grower.speed(seed.hash) == pytest.approx(math.log(2))
    drifted = grower.propose("drifted", seed)
    verdict = make.evaluation(drifted, grower.problem, timing=make.timing(grower.problem, 80.0))
    grower.tree.apply(Evaluated(evaluation=verdict))
    assert grower.speed(drifted.hash) == pytest.approx(math.log(100 / 80))
    found = make.comparison(seed, drifted, grower.problem, ratio=1.25, ci_low=1.2, ci_high=1.3)
    grower.tree.apply(Compared(comparison=found))
    assert grower.speed(drifted.hash) == pytest.approx(math.log(2 * 1.25))


def test_two_candidates_compared_both_ways_have_a_speed_each(grower, make):
    one, two = grower.grown("one", time_us=50.0), grower.grown("two", time_us=40.0)
    back = make.comparison(two, one, grower.problem, ratio=0.8, ci_low=0.7, ci_high=0.9)
    grower.tree.apply(Compared(comparison=back))
    assert grower.speed(one.hash) == pytest.approx(math.log(100 / 40 * 0.8))
    assert grower.speed(two.hash) == pytest.approx(math.log(100 / 40))


def test_screening_guides_but_ranks_behind_every_certificate(grower):
    slow = grower.grown("slow", time_us=90.0)
    hopeful = grower.propose("hopeful", slow)
    for latency_us, status in ((5.0, Status.ACCEPTED), (None, Status.WRONG)):
        look = Screening(
            candidate_hash=hopeful.hash,
            problem_hash=grower.problem.hash,
            values={},
            case_hash=grower.problem.cases[0].hash,
            status=status,
            latency_us=latency_us,
        )
        grower.tree.apply(Screened(screening=look))
    found = prospects(grower.tree, grower.room())
    assert found[hopeful.hash].certainty is Certainty.SCREENED
    assert found[hopeful.hash].log_speed == pytest.approx(math.log(20))
    assert [one.hash for one in ranked(found.values())] == [slow.hash, hopeful.hash]
    assert grower.choose(greedy)[0].parents == (slow.hash,)
    assert grower.tree.best[grower.problem.hash] == slow.hash


def test_look_at_other_values_says_nothing_of_a_node_itself(grower):
    tuned = grower.propose("tuned", choices=(ParamChoice(values={"BLOCK": 64}),))
    look = Screening(
        candidate_hash=tuned.hash,
        problem_hash=grower.problem.hash,
        values={"BLOCK": 128},
        case_hash=grower.problem.cases[0].hash,
        status=Status.ACCEPTED,
        latency_us=1.0,
    )
    grower.tree.apply(Screened(screening=look))
    assert prospects(grower.tree, grower.room())[tuned.hash].certainty is Certainty.PENDING


def test_near_miss_is_worth_more_than_a_build_error_and_that_more_than_a_crash(grower):
    seed = grower.grown("seed", time_us=50.0)
    wrong = grower.grown("wrong", seed, failed=Stage.SMOKE)
    unbuilt = grower.grown("unbuilt", seed, failed=Stage.BUILD, status=Status.BUILD_FAILED)
    crashed = grower.grown("crashed", seed, failed=Stage.SMOKE, status=Status.CRASHED)
    found = prospects(grower.tree, grower.room())
    values = [found[one.hash].log_speed for one in (wrong, unbuilt, crashed)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 3
    assert {found[one.hash].certainty for one in (wrong, unbuilt, crashed)} == {Certainty.FAILED}


def test_candidate_found_out_while_it_was_timed_has_failed(grower, make):
    sly = grower.propose("sly")
    verdict = make.evaluation(sly, grower.problem)
    decision = Decision(
        problem_hash=grower.problem.hash,
        candidate_hash=sly.hash,
        kept=False,
        reason="timing_suspect: two clocks disagree",
        evaluation_hash=verdict.hash,
    )
    grower.tree.apply(Evaluated(evaluation=verdict))
    grower.tree.apply(Decided(decision=decision))
    assert failure_of(grower.tree.nodes[grower.problem.hash, sly.hash]) is Status.TIMING_SUSPECT
    assert prospects(grower.tree, grower.room())[sly.hash].certainty is Certainty.FAILED


def test_memory_modes_tell_ancestors_siblings_both_or_nothing(grower):
    seed = grower.grown("seed", time_us=80.0)
    parent = grower.grown("parent", seed, time_us=60.0)
    child = grower.grown("child", parent, time_us=70.0)
    wrong = grower.grown("wrong", parent, failed=Stage.SMOKE)

    def told(memory):
        wish = Expansion(problem_hash=grower.problem.hash, parents=(parent.hash,), memory=memory)
        return [(one.relation, one.candidate_hash) for one in remembered(grower.tree, wish)]

    ancestors = [("ancestor", seed.hash)]
    siblings = [("sibling", child.hash), ("sibling", wrong.hash)]
    assert told(Memory.INHERIT) == ancestors
    assert told(Memory.SIBLINGS) == siblings
    assert told(Memory.BOTH) == ancestors + siblings
    assert told(Memory.CLEAN) == []
    crossed = Expansion(
        problem_hash=grower.problem.hash, parents=(child.hash, parent.hash), memory=Memory.SIBLINGS
    )
    assert [one.candidate_hash for one in remembered(grower.tree, crossed)] == [wrong.hash]


def test_attempt_tells_what_was_changed_and_how_it_went(grower):
    seed = grower.grown("seed", time_us=80.0, source="int a;\nint kernel_fn();\n")
    grower.grown(
        "child", seed, time_us=50.0, source="int b;\nint kernel_fn();\n", author=Author(name="mover")
    )
    grower.grown("wrong", seed, failed=Stage.SMOKE)
    wish = Expansion(problem_hash=grower.problem.hash, parents=(seed.hash,), memory=Memory.SIBLINGS)
    child, wrong = remembered(grower.tree, wish)
    assert (child.note, child.author.name, child.status) == ("child", "mover", Status.ACCEPTED)
    assert child.speed == pytest.approx(2.0)
    assert "-int a;\n+int b;" in child.change
    assert (wrong.status, wrong.speed, wrong.reason) == (Status.WRONG, None, "because")


def test_brief_of_an_expansion_holds_parents_verdicts_and_known_kernels(grower):
    seed = grower.grown("seed", time_us=80.0)
    child = grower.grown("child", seed, time_us=50.0)
    wish = Expansion(
        problem_hash=grower.problem.hash, parents=(child.hash, seed.hash), diagnosis=2, hint="combine"
    )
    brief = brief_of(grower.tree, wish, seed=7)
    assert [one.hash for one in brief.parents] == [child.hash, seed.hash]
    assert [one.candidate_hash for one in brief.evaluations] == [child.hash, seed.hash]
    assert (brief.diagnosis, brief.hint, brief.seed) == (2, "combine", 7)
    assert len(brief.known) == 3


def test_randomness_of_a_choice_follows_from_tree_allowance_and_seed(grower):
    room = grower.room(2)
    draws = {
        "same": rng_at(grower.tree, room, 1).random(),
        "again": rng_at(grower.tree, room, 1).random(),
        "seed": rng_at(grower.tree, room, 2).random(),
        "room": rng_at(grower.tree, grower.room(3), 1).random(),
    }
    grower.grown("more", time_us=50.0)
    draws["tree"] = rng_at(grower.tree, room, 1).random()
    assert draws["same"] == draws["again"]
    assert len(set(draws.values())) == 4


def test_baseline_is_no_prospect(grower):
    grower.grown("seed", time_us=50.0)
    found = prospects(grower.tree, grower.room())
    assert all(one.node.candidate.origin is Origin.AUTHOR for one in found.values())
    assert len(found) == 1
