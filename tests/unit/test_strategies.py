"""Searches are pure: what they ask for follows from the tree, the allowance and the seed, and from nothing else."""

import json
from collections import Counter

import pytest
from benchmarks.strategies import BEHIND, FOLDER, RESULTS, YARDSTICK
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.core import plugins
from kernelwright.core.candidate import ParamChoice
from kernelwright.core.events import BODY, ExpansionAsked
from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.search import prospects, rng_at
from kernelwright.core.tree import fold
from kernelwright.core.verdict import Stage, Status
from kernelwright.strategies import beam, evolve, greedy, mcts
from kernelwright.strategies._behaviour import cell
from kernelwright.testing.recorded_run import RecordedRun, Wanderer, settings
from tests.unit.growing import Grower
from tests.unit.landscapes import valley

NAMES = ("beam", "evolve", "greedy", "mcts")


@pytest.fixture
def grower(make):
    return Grower(make)


@pytest.fixture(scope="module")
def landscape(make):
    return valley(make.problem())


def searched(landscape, name, seed, verdicts, *, workers=1, bodies=()):
    config = settings(
        strategy=name, seed=seed, workers=workers, max_evaluations=verdicts, max_expansions=4 * verdicts
    )
    return RecordedRun(landscape, Wanderer(landscape, seed), config, bodies=list(bodies)).search()


def test_drawer_holds_the_four_searches():
    assert plugins.names("strategies") == list(NAMES)
    assert all(plugins.load("strategies", name).SUMMARY for name in NAMES)


@given(st.sampled_from(NAMES), st.integers(0, 999), st.integers(3, 16), st.integers(0, 6))
def test_same_tree_allowance_and_seed_give_the_same_expansions(landscape, name, seed, verdicts, room):
    tree = searched(landscape, name, seed, verdicts).tree
    allowance = Allowance(problem_hash=landscape.problem.hash, expansions=room)
    strategy = plugins.load("strategies", name)
    first, second = (strategy.choose(tree, allowance, rng_at(tree, allowance, seed)) for _ in range(2))
    assert first == second
    assert len(first) == room
    known = {own for _, own in tree.nodes}
    baseline = landscape.candidate(landscape.baseline).hash
    assert all(one.parents and set(one.parents) <= known - {baseline} for one in first)
    wishes = [(one.parents, one.diagnosis, one.memory) for one in first]
    assert len(set(wishes)) == len(wishes)


@given(st.sampled_from(NAMES), st.integers(0, 99), st.integers(3, 60))
def test_run_resumed_from_stored_events_continues_identically(landscape, name, seed, cut):
    whole = searched(landscape, name, seed, 12)
    place = next((end for end in whole.ends if end >= cut), whole.ends[-2])
    stored = [BODY.validate_json(BODY.dump_json(body)) for body in whole.bodies[:place]]
    resumed = searched(landscape, name, seed, 12, bodies=stored)
    assert resumed.bodies == whole.bodies
    assert resumed.steps == whole.steps
    assert resumed.tree == fold(whole.bodies)


def test_another_interpreter_makes_the_same_choice_from_the_stored_events(landscape, fresh_python):
    code = """
from kernelwright.core import plugins
from kernelwright.core.events import BODY
from kernelwright.core.expansion import Allowance
from kernelwright.core.search import rng_at
from kernelwright.core.tree import fold

answer = {}
for name, bodies in given["runs"].items():
    tree = fold(BODY.validate_python(body) for body in bodies)
    room = Allowance(problem_hash=given["problem"], expansions=5)
    chosen = plugins.load("strategies", name).choose(tree, room, rng_at(tree, room, 3))
    answer[name] = [one.model_dump(mode="json") for one in chosen]
"""
    runs = {name: searched(landscape, name, 3, 14) for name in NAMES}
    stored = {
        name: [BODY.dump_python(body, mode="json") for body in run.bodies] for name, run in runs.items()
    }
    found = fresh_python(code, {"runs": stored, "problem": landscape.problem.hash})
    room = Allowance(problem_hash=landscape.problem.hash, expansions=5)
    for name, run in runs.items():
        chosen = plugins.load("strategies", name).choose(run.tree, room, rng_at(run.tree, room, 3))
        assert found[name] == [one.model_dump(mode="json") for one in chosen]
        assert len(chosen) == 5


@pytest.mark.parametrize("name", NAMES)
def test_search_finds_the_lowest_point_of_a_valley(landscape, name):
    found = [searched(landscape, name, seed, 45).best_at(45) for seed in range(3)]
    assert sorted(found)[1] == pytest.approx(landscape.best_speed, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_no_two_nodes_of_a_search_are_the_same_kernel(landscape, name):
    tree = searched(landscape, name, 1, 30, workers=4).tree
    spots = [landscape.find(node.candidate, "") for node in tree.nodes.values()]
    assert len(set(spots)) == len(spots)


def test_yardstick_of_the_benchmark_is_a_strategy_of_a_folder_and_starts_anywhere(landscape):
    with plugins.using([str(YARDSTICK)]):
        found = searched(landscape, BEHIND["random"], 5, 20)
    asked = [body.expansion for body in found.bodies if isinstance(body, ExpansionAsked)]
    assert {one.memory for one in asked} == {Memory.CLEAN}
    assert len(found.steps) == 20
    assert plugins.names("strategies") == list(NAMES)


def test_committed_comparison_has_every_search_on_every_recorded_landscape():
    told = json.loads(RESULTS.read_text())
    recorded = {f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.json") if "." not in path.stem}
    assert set(told["landscapes"]) == recorded
    found = {(row["landscape"], row["strategy"]) for row in told["rows"]}
    assert found == {(place, name) for place in recorded for name in (*NAMES, "random", "tuner")}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_asked_for_without_room(grower, name):
    grower.grown("seed", time_us=50.0)
    assert grower.choose(plugins.load("strategies", name), 0) == []


@pytest.mark.parametrize("name", NAMES)
def test_tree_without_a_kernel_gets_clean_drafts_once(grower, name):
    strategy = plugins.load("strategies", name)
    drafts = grower.choose(strategy, 2)
    assert [(one.parents, one.memory, one.diagnosis) for one in drafts] == [
        ((), Memory.CLEAN, 0),
        ((), Memory.CLEAN, 1),
    ]
    assert grower.choose(strategy, 2, pending=drafts) == []


@pytest.mark.parametrize("name", NAMES)
def test_failed_seed_alone_is_mended(grower, name):
    bad = grower.grown("bad", failed=Stage.BUILD, status=Status.BUILD_FAILED)
    (wish,) = grower.choose(plugins.load("strategies", name))
    assert wish.parents == (bad.hash,)
    assert wish.hint == "mend it: the judge says build_failed"


@pytest.mark.parametrize("name", NAMES)
def test_search_goes_on_when_every_kernel_failed_again_and_again(grower, name):
    parent = grower.grown("bad", failed=Stage.SMOKE)
    for number in range(6):
        grower.grown(f"worse{number}", parent, failed=Stage.SMOKE)
    assert len(grower.choose(plugins.load("strategies", name), 1)) == 1


def test_greedy_always_expands_the_title_holder_with_the_next_diagnosis(grower):
    seed = grower.grown("seed", time_us=80.0)
    best = grower.grown("best", seed, time_us=40.0)
    grower.grown("third", best, time_us=60.0)
    wishes = grower.choose(greedy, 3)
    assert [(one.parents, one.diagnosis) for one in wishes] == [
        ((best.hash,), number) for number in (1, 2, 3)
    ]
    later = grower.choose(greedy, 1, pending=wishes[:1], barren=wishes[1:2])
    assert [(one.parents, one.diagnosis) for one in later] == [((best.hash,), 3)]


def test_greedy_starts_from_the_best_kernel_while_the_baseline_holds_the_title(grower):
    grower.grown("slow", time_us=180.0)
    better = grower.grown("better", time_us=150.0)
    assert grower.tree.best[grower.problem.hash] == grower.base.hash
    assert grower.choose(greedy)[0].parents == (better.hash,)


@pytest.mark.parametrize("name", NAMES)
def test_node_about_which_nobody_has_more_to_say_is_left_alone(grower, name):
    best, other = grower.grown("best", time_us=40.0), grower.grown("other", time_us=80.0)
    vain = [Expansion(problem_hash=grower.problem.hash, parents=(best.hash,), diagnosis=n) for n in range(12)]
    wishes = grower.choose(plugins.load("strategies", name), 1, barren=vain)
    if name == "evolve":  # its islands have no member yet: any seed may found one
        wishes = grower.choose(evolve, 6, barren=vain)
        assert other.hash in {one.parents[0] for one in wishes}
    else:
        assert [one.parents[0] for one in wishes] == [other.hash]


def test_evolve_starts_again_where_its_elites_have_nothing_more_to_give(grower):
    seed = grower.grown("seed", time_us=90.0)
    founders = [
        grower.grown(f"founder{number}", seed, time_us=50.0 + number) for number in range(evolve.ISLANDS)
    ]
    vain = [
        Expansion(problem_hash=grower.problem.hash, parents=(one.hash,)) for one in founders for _ in range(3)
    ]
    wishes = grower.choose(evolve, 3, barren=vain)
    assert [(one.parents, one.memory) for one in wishes] == [((seed.hash,), Memory.CLEAN)] * 3


def test_evolve_starts_again_where_all_members_failed_and_the_seed_is_spent(grower):
    seed = grower.grown("seed", time_us=90.0)
    for number in range(evolve.ISLANDS):
        grower.grown(f"bad{number}", seed, failed=Stage.BUILD)
    vain = [Expansion(problem_hash=grower.problem.hash, parents=(seed.hash,))] * 3
    assert [one.memory for one in grower.choose(evolve, 2)] == [Memory.BOTH] * 2
    assert [one.memory for one in grower.choose(evolve, 2, barren=vain)] == [Memory.CLEAN] * 2


def test_beam_gives_every_parent_distinct_diagnoses_in_turn(grower):
    seeds = [grower.grown(f"seed{number}", time_us=40.0 + number) for number in range(5)]
    wishes = grower.choose(beam, beam.WIDTH * beam.DIAGNOSES)
    order = [(one.parents[0], one.diagnosis) for one in wishes]
    wanted = [(seed.hash, number) for number in range(beam.DIAGNOSES) for seed in seeds[: beam.WIDTH]]
    assert order == wanted


def test_beam_moves_on_from_a_kernel_whose_diagnoses_are_spent(grower):
    best, second = grower.grown("best", time_us=40.0), grower.grown("second", time_us=50.0)
    for number in range(beam.DIAGNOSES):
        grower.grown(f"child{number}", best, time_us=60.0 + number)
    parents = [one.parents[0] for one in grower.choose(beam, 3)]
    assert best.hash not in parents
    assert parents[0] == second.hash


def test_beam_begins_a_new_lap_when_every_diagnosis_is_spent(grower):
    best = grower.grown("best", time_us=40.0)
    spent = [Expansion(problem_hash=grower.problem.hash, parents=(best.hash,))] * beam.DIAGNOSES
    wishes = grower.choose(beam, 2, barren=spent)
    assert [(one.parents[0], one.diagnosis) for one in wishes] == [(best.hash, 3), (best.hash, 4)]


def test_beam_mends_a_failed_kernel_once_beside_those_that_work(grower):
    best = grower.grown("best", time_us=40.0)
    bad = grower.grown("bad", best, failed=Stage.SMOKE)
    wishes = grower.choose(beam, 6)
    assert sum(one.parents[0] == bad.hash for one in wishes) == beam.MENDINGS
    assert len(wishes) == 6


def test_mcts_backs_up_the_best_value_and_not_the_mean(grower):
    good, plain = grower.grown("good", time_us=70.0), grower.grown("plain", time_us=60.0)
    for number in range(4):
        grower.grown(f"bad{number}", good, time_us=95.0)
        grower.grown(f"even{number}", plain, time_us=60.0 + number)
    deep = grower.grown("deep", good, time_us=10.0)
    grower.grown("last", good, time_us=99.0)
    counts = Counter()
    for seed in range(20):
        counts[grower.choose(mcts, 1, seed=seed)[0].parents[0]] += 1
    below = {good.hash, deep.hash}
    assert sum(count for parent, count in counts.items() if parent in below) == 20


def test_mcts_spreads_parallel_workers_over_the_tree(grower):
    seeds = [grower.grown(f"seed{number}", time_us=50.0 + number / 10) for number in range(4)]
    wishes = grower.choose(mcts, 8)
    assert {one.parents[0] for one in wishes} == {seed.hash for seed in seeds}
    one_by_one, pending = [], []
    for _ in range(8):
        (wish,) = grower.choose(mcts, 1, pending=pending)
        pending.append(wish)
        one_by_one.append(wish.parents[0])
    assert max(Counter(one_by_one).values()) <= 4


def test_mcts_widens_a_node_only_as_its_visits_grow(grower):
    seed = grower.grown("seed", time_us=50.0)
    first = grower.grown("first", seed, time_us=51.0)
    # Two visits allow 1.41 children: the second is due. Three allow 1.73: the third is not, and the walk goes down.
    assert [one.parents[0] for one in grower.choose(mcts, 1)] == [seed.hash]
    second = grower.grown("second", seed, time_us=52.0)
    assert grower.choose(mcts, 1)[0].parents[0] in {first.hash, second.hash}


def test_mcts_mends_a_failed_kernel_twice_and_no_more(grower):
    seed = grower.grown("seed", time_us=50.0)
    bad = grower.grown("bad", seed, failed=Stage.SMOKE)
    wishes = grower.choose(mcts, 40)
    assert sum(one.parents[0] == bad.hash for one in wishes) <= mcts.MENDINGS


def test_pending_node_is_never_a_parent(grower):
    seed = grower.grown("seed", time_us=50.0)
    pending = grower.propose("pending", seed)
    for name in NAMES:
        wishes = grower.choose(plugins.load("strategies", name), 6)
        assert pending.hash not in {parent for one in wishes for parent in one.parents}


def blocks(value, **more):
    return (ParamChoice(values={"BLOCK": value, **more}),)


def test_cell_tells_tile_depth_language_and_switches_apart(make):
    plain = make.candidate("a", choices=blocks(64, num_stages=2))
    assert cell(plain) == cell(make.candidate("a", choices=blocks(70, num_stages=2), note="near"))
    assert cell(plain) != cell(make.candidate("a", choices=blocks(256, num_stages=2)))
    assert cell(plain) != cell(make.candidate("a", choices=blocks(64, num_stages=8)))
    assert cell(plain) != cell(make.candidate("a", backend="cuda", choices=blocks(64, num_stages=2)))
    assert cell(plain) != cell(make.candidate("a", choices=blocks(64, num_stages=2, two_pass=True)))
    assert cell(plain) != cell(
        make.candidate("a = tl.load(p) + tl.load(q)", choices=blocks(64, num_stages=2))
    )


def test_evolve_keeps_the_elite_of_every_cell(grower):
    seed = grower.grown("seed", time_us=90.0, source="s", choices=blocks(64))
    fast = grower.grown("fast", seed, time_us=30.0, source="s", choices=blocks(128))
    grower.grown("beaten", fast, time_us=50.0, source="s ", choices=blocks(128))
    other = grower.grown("other", fast, time_us=80.0, source="s", choices=blocks(1024))
    islands = evolve._islands(prospects(grower.tree, grower.room()), grower.room())
    elites = [set(one.hash for one in island.elites().values()) for island in islands]
    assert {fast.hash, other.hash} in elites


def test_evolve_fills_its_islands_evenly_and_crosses_kernels(landscape):
    found = searched(landscape, "evolve", 3, 40)
    room = found.room()
    islands = evolve._islands(prospects(found.tree, room), room)
    births = [island.births for island in islands]
    assert len(births) == evolve.ISLANDS
    assert max(births) - min(births) <= 2
    crossed = [node for node in found.tree.nodes.values() if len(node.candidate.parents) == 2]
    assert crossed
    homes = {one.hash: place for place, island in enumerate(islands) for one in island.members}
    migrated = [
        node for node in crossed if len({homes.get(parent) for parent in node.candidate.parents}) == 2
    ]
    assert migrated


def test_evolve_gives_births_asked_for_at_once_to_different_islands(grower):
    seed = grower.grown("seed", time_us=90.0)
    founders = [
        grower.grown(f"founder{number}", seed, time_us=50.0 + number) for number in range(evolve.ISLANDS)
    ]
    wishes = grower.choose(evolve, evolve.ISLANDS)
    assert {one.parents[0] for one in wishes} == {founder.hash for founder in founders}
