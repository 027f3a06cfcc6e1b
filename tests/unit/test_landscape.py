"""A recorded landscape: ratios out of paired times, verdicts out of spots, and no spot that was not measured."""

import json
import math
import random
from pathlib import Path

import pytest
from benchmarks.landscape_points import CASES, sampled, sources_of, wanted
from pydantic import ValidationError

from kernelwright.core.brief import Trial
from kernelwright.core.candidate import ParamChoice
from kernelwright.core.events import CandidateProposed, Decided, ProblemFound, Screened, SearchEscalated
from kernelwright.core.landscape import Landscape, Look, Spot, grid_edges
from kernelwright.core.tree import Node, fold
from kernelwright.core.verdict import Outcome, Profile, Stage, Status
from kernelwright.testing.recorded_judge import RecordedJudge
from kernelwright.testing.recorded_run import RecordedRun, Wanderer, settings
from tests.unit.landscapes import SOURCE, valley, valley_us

FOLDER = Path(__file__).parents[2] / "benchmarks" / "landscapes"
RECORDED = sorted(path for path in FOLDER.glob("*/*.json") if "." not in path.stem)


def changed(landscape, **change):
    """Return another landscape, checked as a new one is."""
    return Landscape(**({name: getattr(landscape, name) for name in Landscape.model_fields} | change))


@pytest.fixture(scope="module")
def landscape(make):
    return valley(make.problem())


def test_landscape_survives_its_json(landscape):
    again = Landscape.model_validate_json(landscape.model_dump_json())
    assert again == landscape
    assert again.hash == landscape.hash


def test_slow_minute_of_the_machine_does_not_change_a_speed(landscape):
    spot = landscape.spots[5]
    (look,) = spot.looks
    slowed = Look(
        case_hash=look.case_hash,
        times_us=tuple(3 * one for one in look.times_us),
        against_us=tuple(3 * one for one in look.against_us),
    )
    spots = list(landscape.spots)
    spots[5] = spot.model_copy(update={"looks": (slowed,)})
    other = changed(landscape, spots=tuple(spots))
    assert other.speed(5) == pytest.approx(landscape.speed(5))


def test_speed_is_the_baseline_over_the_spot_and_a_failure_has_none(landscape):
    best = next(
        place for place, spot in enumerate(landscape.spots) if spot.values and valley_us(spot.values) == 30
    )
    assert landscape.speed(best) == pytest.approx(100 / 30)
    assert landscape.best_speed == pytest.approx(100 / 30)
    assert landscape.speed(landscape.baseline) == pytest.approx(1.0)
    wrong = next(place for place, spot in enumerate(landscape.spots) if spot.status is Status.WRONG)
    assert landscape.speed(wrong) is None


def test_speed_over_several_cases_is_their_weighted_geometric_mean(make):
    cases = (make.case(weight=3.0), make.case(rows=16, weight=1.0))
    two = valley(make.problem(cases=cases), (valley_us, lambda values: 4 * valley_us(values)))
    place = two.place_of[two.spots[9].key()]
    fast = 100 / valley_us(two.spots[place].values)
    assert two.speed(place) == pytest.approx(math.exp((3 * math.log(fast) + math.log(fast / 4)) / 4))


def test_edges_join_spots_that_differ_in_one_value(landscape):
    for one, other in landscape.edges:
        a, b = landscape.spots[one].values, landscape.spots[other].values
        assert sum(a[name] != b[name] for name in a) == 1
    assert landscape.neighbours[landscape.baseline] == ()
    assert len(landscape.neighbours[1]) == 5 + 4 + 1
    assert grid_edges(landscape.spots) == landscape.edges


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"roots": (99,)}, "is no spot"),
        ({"edges": ((0, 99),)}, "is no spot"),
        ({"baseline": 99}, "is no spot"),
        ({"sources": {}}, "unknown sources"),
        ({"spots": "twice"}, "appears twice"),
        ({"roots": (60,)}, "must have been timed"),
    ],
)
def test_landscape_that_cannot_be_is_refused(landscape, change, words):
    if change.get("spots") == "twice":
        change = {"spots": (*landscape.spots, landscape.spots[3])}
    with pytest.raises(ValidationError, match=words):
        changed(landscape, **change)


def test_source_under_another_digest_is_refused(landscape):
    sources = dict(landscape.sources)
    own = landscape.spots[1].source
    sources[own] = sources[own].model_copy(update={"text": SOURCE + " "})
    with pytest.raises(ValidationError, match="another digest"):
        changed(landscape, sources=sources)


def test_time_without_the_reference_beside_it_is_refused():
    with pytest.raises(ValidationError, match="beside it"):
        Look(case_hash="c", times_us=(1.0, 2.0), against_us=(1.0,))
    with pytest.raises(ValidationError, match="positive"):
        Look(case_hash="c", times_us=(0.0,), against_us=(1.0,))


def test_recorded_judge_certifies_the_medians(landscape):
    judge, problem = RecordedJudge(landscape), landscape.problem
    verdict = judge.evaluate(problem, landscape.candidate(1))
    assert verdict.status is Status.ACCEPTED
    assert verdict.passed_all
    assert verdict.timing.cases[0].median_us == pytest.approx(valley_us(landscape.spots[1].values))
    assert verdict.seconds == pytest.approx(1.0 + 4.0)
    quick = judge.evaluate(problem, landscape.candidate(1), Profile.QUICK)
    assert (quick.timing, quick.seconds) == (None, pytest.approx(1.0))


def test_recorded_judge_fails_what_failed_and_refuses_what_was_never_recorded(landscape):
    judge, problem = RecordedJudge(landscape), landscape.problem
    wrong = next(place for place, spot in enumerate(landscape.spots) if spot.status is Status.WRONG)
    verdict = judge.evaluate(problem, landscape.candidate(wrong))
    assert (verdict.status, verdict.failure.stage) == (Status.WRONG, Stage.SMOKE)
    assert verdict.failure.reason == "out differs by 3 ulp"
    stranger = landscape.candidate(1).model_copy(update={"source": "int other;"})
    assert judge.evaluate(problem, stranger).status is Status.REFUSED


def test_recorded_comparison_is_decided_on_the_medians(landscape):
    judge, problem = RecordedJudge(landscape), landscape.problem
    base, first = landscape.candidate(0), landscape.candidate(1)
    found = judge.compare(problem, base, first)
    assert found.outcome is Outcome.FASTER
    assert found.ratio == pytest.approx(landscape.speed(1))
    back = judge.compare(problem, first, base)
    assert (back.outcome, back.ratio) == (Outcome.NOT_FASTER, pytest.approx(1 / landscape.speed(1)))
    assert judge.compare(problem, first, first).outcome is Outcome.NOT_FASTER


def test_gain_that_costs_one_case_more_than_the_margin_is_none(make):
    cases = (make.case(), make.case(rows=16))
    two = valley(make.problem(cases=cases), (valley_us, lambda values: 130 - valley_us(values) / 2))
    judge = RecordedJudge(two)
    best = max(range(1, len(two.spots)), key=lambda place: two.speed(place) or 0)
    found = judge.compare(two.problem, two.candidate(1), two.candidate(best))
    assert found.ratio > 1.1
    assert found.outcome is Outcome.NOT_FASTER
    assert found.slower_case == cases[1].label


def test_looks_give_the_recorded_heats_one_after_the_other(landscape):
    judge, root, problem = RecordedJudge(landscape), landscape.candidate(1), landscape.problem
    tree = fold([ProblemFound(problem=problem), CandidateProposed(problem_hash=problem.hash, candidate=root)])
    trial = Trial(candidate_hash=root.hash, values=root.choices[0].values, case_hash=problem.cases[0].hash)
    latencies, spent = [], []
    for _ in range(4):
        node = tree.nodes[problem.hash, root.hash]
        look = judge.screen(problem, node, trial)
        latencies.append(look.latency_us / valley_us(root.choices[0].values))
        spent.append(judge.look_seconds(node, look))
        tree.apply(Screened(screening=look))
    assert latencies == pytest.approx([1.0, 1.02, 0.98, 1.0])
    assert spent == pytest.approx([1.1, 0.1, 0.1, 0.1])


def test_look_at_values_nobody_recorded_is_refused(landscape):
    root = landscape.candidate(1)
    trial = Trial(candidate_hash=root.hash, values={"UNROLL": 3}, case_hash=landscape.problem.cases[0].hash)
    node = Node(root, landscape.problem.hash, seq=0)
    look = RecordedJudge(landscape).screen(landscape.problem, node, trial)
    assert (look.status, look.latency_us) == (Status.REFUSED, None)


def searched(landscape, strategy, seed, **limits):
    config = settings(strategy=strategy, seed=seed, **limits)
    return RecordedRun(landscape, Wanderer(landscape, seed), config).search()


def test_recorded_run_has_one_step_for_every_verdict_and_never_gets_slower(landscape):
    found = searched(landscape, "mcts", 4, max_evaluations=20)
    assert [step.verdicts for step in found.steps] == list(range(1, 21))
    speeds = [step.kernel_speed for step in found.steps]
    assert speeds == sorted(speeds)
    assert speeds[:2] == pytest.approx([0.0, landscape.speed(1)])
    seconds = [step.seconds for step in found.steps]
    assert seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(
        sum(node.evaluations[0].seconds for node in found.tree.nodes.values() if node.evaluations)
    )


def test_recorded_run_is_the_same_for_the_same_seed_and_differs_for_another(landscape):
    bodies = [searched(landscape, "evolve", seed, max_evaluations=12).bodies for seed in (1, 1, 2)]
    assert bodies[0] == bodies[1]
    assert bodies[0] != bodies[2]


def test_a_problem_that_has_had_its_verdicts_ends_with_the_rule_in_the_journal(landscape):
    found = searched(landscape, "greedy", 0, problem_evaluations=7)
    assert len(found.steps) == 7
    ended = found.tree.quests[landscape.problem.hash].ended
    assert (ended.rule, ended.reason) == ("problem_evaluations", "7 evaluations were made of it")


def test_recorded_run_that_finds_nothing_new_is_escalated_and_given_up_by_the_engine(landscape):
    found = searched(landscape, "greedy", 0, patience=6)
    assert len(found.steps) < len(landscape.spots)
    assert [one.level for one in found.bodies if isinstance(one, SearchEscalated)] == [1, 2]
    assert found.tree.quests[landscape.problem.hash].ended.rule == "stuck"
    assert sum(isinstance(one, Decided) for one in found.bodies) >= len(found.steps)


def test_table_per_case_is_judged_case_by_case(make):
    cases = (make.case(), make.case(rows=16))
    two = valley(make.problem(cases=cases), (valley_us, lambda values: valley_us(values, 5)))
    first, second = ({"UNROLL": 8, "BLOCK": 2**power, "two_pass": True} for power in (7, 5))
    table = two.candidate(1).model_copy(
        update={
            "choices": (
                ParamChoice(case_hashes=(cases[1].hash,), values=second),
                ParamChoice(values=first),
            )
        }
    )
    verdict = RecordedJudge(two).evaluate(two.problem, table)
    assert [one.median_us for one in verdict.timing.cases] == pytest.approx([30.0, 30.0])
    assert verdict.seconds == pytest.approx(2 * 1.0 + 4.0)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recorded_landscape_is_whole_and_says_where_it_comes_from(path):
    landscape = Landscape.model_validate_json(path.read_text())
    assert landscape.problem.op == path.stem
    assert landscape.problem.device.kind.value == path.parent.name
    assert {"command", "date", "device", "judge", "torch"} <= landscape.recorded.keys()
    assert len(landscape.spots) >= 20
    assert all(spot.looks for spot in landscape.spots if spot.status is Status.ACCEPTED)
    reached, open_ends = set(landscape.roots), list(landscape.roots)
    while open_ends:
        fresh = set(landscape.neighbours[open_ends.pop()]) - reached
        reached |= fresh
        open_ends += fresh
    assert len(reached) == len(landscape.spots) - 1, "a search can reach every spot but the baseline"
    assert json.loads(path.read_text())["spots"][0]["looks"]


def test_sample_of_a_grid_is_connected_and_starts_with_the_first_values():
    grid = {"A": [1, 2, 3, 4], "B": [False, True], "C": [8, 16, 32], "D": ["x", "y"]}
    found = sampled(grid, 20, random.Random(3))
    assert found[0] == {"A": 1, "B": False, "C": 8, "D": "x"}
    assert len({json.dumps(values) for values in found}) == 20
    for place, values in enumerate(found[1:], start=1):
        steps = [sum(values[name] != other[name] for name in grid) for other in found[:place]]
        assert min(steps) == 1
    assert len(sampled(grid, 999, random.Random(0))) == 4 * 2 * 3 * 2


@pytest.mark.parametrize("op", sorted(CASES["cpu"]))
def test_points_of_a_cpu_landscape_start_at_the_plainest_kernel(op):
    sources = sources_of(op, "cpu")
    baseline, first, *rest = wanted(sources, 12)
    assert sources[baseline[0]].backend == "eager"
    assert (first[1]["VECTOR"], first[1]["LOOPS"]) == (128, False)
    assert "PARAMS = {" in sources[first[0]].text
    assert len(rest) == 11


def test_spots_of_the_same_values_share_a_key():
    one = Spot(source="s", values={"a": 1, "b": True}, status=Status.ACCEPTED)
    assert one.key() == Spot(source="s", values={"b": True, "a": 1}, status=Status.WRONG).key()
    assert one.key() != Spot(source="s", values={"a": 1, "b": 1}, status=Status.ACCEPTED).key()
