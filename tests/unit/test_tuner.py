"""The tuner: cheap looks decide which values are proven, everything it knows is in the brief, and it never repeats."""

import json
import math

import pytest

from kernelwright.agents import tuner
from kernelwright.agents._sampler import Space, _study, ask, key
from kernelwright.core.brief import Brief, Trial
from kernelwright.core.candidate import Origin, ParamChoice
from kernelwright.core.events import BODY, Screened
from kernelwright.core.expansion import Expansion
from kernelwright.core.normal import key_of
from kernelwright.core.plan_language import first_values, parse_params, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.recall import brief_of
from kernelwright.core.verdict import Screening, Status
from kernelwright.engine.judging import problem_at
from kernelwright.engine.seeds import seed
from kernelwright.testing.recorded_run import RecordedRun, settings
from tests.unit.landscapes import GRID, SOURCE, is_wrong, valley, valley_us

BEST = {"UNROLL": 8, "BLOCK": 128, "two_pass": True}


def brief(make, looks=(), source=SOURCE, **changes):
    """Return a brief on one source whose looks so far are (values, case, time or None)."""
    problem = changes.pop("problem", None) or make.problem()
    parent = make.candidate(
        source, choices=(ParamChoice(values={name: values[0] for name, values in GRID.items()}),)
    )
    seen = [
        Screening(
            candidate_hash=parent.hash,
            problem_hash=problem.hash,
            values=values,
            case_hash=case.hash,
            status=Status.ACCEPTED if time else Status.BUILD_FAILED,
            latency_us=time,
        )
        for values, case, time in looks
    ]
    fields = {"problem": problem, "parents": (parent,), "evaluations": (), "screenings": tuple(seen)}
    return Brief(**(fields | changes))


def tuned(found, time_of=None, limit=60):
    """Answer the tuner's looks by a function of case and values until it proposes or gives up."""
    asked: list[Trial] = []
    for _ in range(limit):
        answer = tuner.author().propose(found)
        if answer.proposals or not answer.trials:
            return answer, asked
        asked += answer.trials
        more = []
        for trial in answer.trials:
            time = time_of(trial.case_hash, trial.values)
            more.append(
                Screening(
                    candidate_hash=trial.candidate_hash,
                    problem_hash=found.problem.hash,
                    values=trial.values,
                    case_hash=trial.case_hash,
                    status=Status.ACCEPTED if time else Status.BUILD_FAILED,
                    latency_us=time,
                )
            )
        found = found.model_copy(update={"screenings": (*found.screenings, *more)})
    raise AssertionError("the tuner never answered")


def test_first_looks_are_at_the_values_the_parent_has(make):
    found = brief(make)
    answer = tuner.author().propose(found)
    assert not answer.proposals
    assert answer.trials[0].values == found.parents[0].choices[0].values
    assert len(answer.trials) == found.most_trials
    assert len({key(trial.values) for trial in answer.trials}) == found.most_trials
    assert all(Space(GRID).holds(trial.values) for trial in answer.trials)


def test_same_brief_gives_the_same_answer_and_another_seed_another(make):
    first, second = (tuner.author().propose(brief(make, seed=5)) for _ in range(2))
    assert first == second
    assert tuner.author().propose(brief(make, seed=6)) != first


def test_most_values_cost_one_look_and_few_cost_five(make):
    answer, asked = tuned(brief(make), lambda case, values: valley_us(values))
    counts = {}
    for trial in asked:
        counts[key(trial.values)] = counts.get(key(trial.values), 0) + 1
    assert len(counts) == tuner.FIRST
    shares = sorted(counts.values(), reverse=True)
    assert shares[: math.ceil(tuner.FIRST / 9)] == [5] * math.ceil(tuner.FIRST / 9)
    assert shares.count(1) == tuner.FIRST - math.ceil(tuner.FIRST / 3)
    (proposal,) = answer.proposals
    fastest = min(valley_us(trial.values) for trial in asked)
    assert valley_us(proposal.choices[-1].values) == fastest
    assert proposal.author.detail == f"{len(asked)} looks at {tuner.FIRST} sets of values"


def test_lucky_look_does_not_win_over_values_that_were_looked_at_again(make):
    problem = make.problem()
    (case,) = problem.cases
    points = [values for values in Space(GRID).points() if not is_wrong(values)][: tuner.FIRST]
    looks = [(values, case, 50.0 + place) for place, values in enumerate(points)]
    for values in points[1:5]:
        looks += [(values, case, 52.0)] * 4
    # The first point was fast once and slow ever after.
    looks[0] = (points[0], case, 20.0)
    looks += [(points[0], case, 90.0)] * 4
    (proposal,) = tuned(brief(make, looks, problem=problem), lambda *_: 60.0)[0].proposals
    assert proposal.choices[-1].values in points[1:5]


def test_values_that_do_not_build_are_never_proposed_nor_looked_at_again(make):
    answer, asked = tuned(
        brief(make), lambda case, values: None if values["two_pass"] else valley_us(values) + 1
    )
    failed = [key(trial.values) for trial in asked if trial.values["two_pass"]]
    assert failed
    assert len(set(failed)) == len(failed)
    assert answer.proposals[0].choices[-1].values["two_pass"] is False


def test_sampler_learns_to_stay_away_from_what_does_not_run():
    space = Space({"A": list(range(16)), "B": list(range(16))})
    seen = {}
    for values in list(space.points())[::5]:
        bad = values["A"] >= 8
        seen[key(values)] = (values, None if bad else float(values["A"] + values["B"]))
    asked = [values for seed in range(8) for values in ask(space, seen, 4, lambda _: True, seed)]
    assert len(asked) == 32
    assert sum(values["A"] >= 8 for values in asked) <= 6


def test_values_that_did_not_run_violate_a_constraint_of_the_study():
    space = Space({"A": [1, 2, 4]})
    seen = {key({"A": value}): ({"A": value}, time) for value, time in ((1, 3.0), (2, None), (4, 5.0))}
    trials = _study(space, seen, 0).trials
    assert [trial.value for trial in trials] == [3.0, 5.0, 5.0]
    assert [trial.constraints["runs"] > 0 for trial in trials] == [False, True, False]


def test_sampler_names_every_point_of_a_small_grid_once():
    space = Space({"A": [1, 2, 3], "B": [True, False], "C": ["x", "y"]})
    found = ask(space, {}, 99, lambda values: values["C"] == "x", 0)
    assert len({key(values) for values in found}) == len(found) == 6


def test_plan_that_declines_values_spares_the_look(make):
    source = f"""
PARAMS = {GRID!r}

def plan(case, params, device):
    if params["UNROLL"] > 2:
        return {{"unsupported": "too deep"}}
    return {{"launches": [{{"kernel": "k", "grid": (params["BLOCK"],), "args": ["x"]}}]}}
"""
    found = brief(make, source=source)
    answer, asked = tuned(found, lambda case, values: valley_us(values))
    assert asked
    assert max(trial.values["UNROLL"] for trial in asked) == 2
    assert answer.proposals[0].choices[-1].values["UNROLL"] == 2


PLANNED = f"""
PARAMS = {GRID!r}

def plan(case, params, device):
    deep = params["UNROLL"] if case.axes.rows > 64 else 1
    launch = {{"kernel": "k", "grid": (case.axes.rows,), "args": ["x"], "constants": {{"UNROLL": deep}}}}
    return {{"launches": [launch | {{"num_warps": params["BLOCK"] // 32}}]}}
"""
"""Few rows leave UNROLL unread, nobody reads `two_pass`."""


def planned(make, source=PLANNED, backend="triton", **changes):
    """Return a brief on a source with a plan."""
    values = changes.pop("values", None) or {name: values[0] for name, values in GRID.items()}
    parent = make.candidate(source, backend=backend, choices=(ParamChoice(values=values),))
    return brief(make, parents=(parent,), **{"most_trials": 96} | changes)


def read(case, values):
    """Return what the plan reads of some values."""
    return (values["BLOCK"], values["UNROLL"] if case.axes["rows"] > 64 else 1)


def test_values_that_launch_what_others_launch_are_looked_at_once(make):
    few, many = make.case(rows=8), make.case(rows=4096)
    for case, plans in ((few, len(GRID["BLOCK"])), (many, len(GRID["BLOCK"]) * len(GRID["UNROLL"]))):
        found = planned(make, problem=make.problem(cases=(case,)))
        known = []
        asked: list[Trial] = []
        while True:
            answer, more = tuned(
                found.model_copy(update={"known": tuple(known)}), lambda _, values: valley_us(values)
            )
            asked += more
            if not answer.proposals:
                break
            known.append(key_of(answer.proposals[0].candidate(found.problem)))
        looked = {key(trial.values): read(case, trial.values) for trial in asked}
        assert len(looked) == len(set(looked.values())) == plans
        assert asked[0].values == found.parents[0].choices[0].values


def test_sources_without_a_plan_of_their_own_have_all_their_values_looked_at(make):
    """Host code may read what a function named `plan` does not."""
    problem = make.problem(cases=(make.case(rows=8),))
    for backend, source in (("cpp", SOURCE), ("python", PLANNED)):
        _, asked = tuned(planned(make, source, backend, problem=problem), lambda *_: 10.0)
        assert len({key(trial.values) for trial in asked}) == tuner.FIRST


def test_seed_whose_fp32_plan_reads_few_parameters_costs_few_looks(make):
    source = seed("matmul", "triton", Origin.AUTHOR).source
    found = planned(
        make, source, problem=problem_at("matmul", ["512x512x512 fp32"], make.device()),
        values=first_values(source),
    )  # fmt: skip
    (case,) = found.problem.cases
    answer, asked = tuned(found, lambda *_: 10.0)
    function, space = parse_plan(source), Space(parse_params(source))
    plans = {
        run_plan(function, case, values, found.problem.device).model_dump_json() for values in space.points()
    }
    looked = {key(trial.values) for trial in asked}
    assert len(looked) <= min(len(plans), tuner.FIRST) < space.size / 10
    assert answer.proposals[0].choices == found.parents[0].choices


def test_what_a_winner_of_one_case_takes_on_another_is_known_from_values_that_launch_the_same(make):
    few, many = make.case(rows=8), make.case(rows=4096)
    found = planned(make, problem=make.problem(cases=(few, many)))
    best = {"UNROLL": 16, "BLOCK": 128, "two_pass": False}
    cases = {few.hash: few, many.hash: many}
    answer, asked = tuned(found, lambda case, values: 10.0 if read(cases[case], values) == read(
        cases[case], best) else 20.0)  # fmt: skip
    for case in (few, many):
        looked = {key(trial.values) for trial in asked if trial.case_hash == case.hash}
        assert len(looked) == len({read(case, json.loads(one)) for one in looked})
    (proposal,) = answer.proposals
    rule = proposal.choices[-1].values
    assert [read(case, rule) for case in (few, many)] == [read(case, best) for case in (few, many)]


def test_best_values_of_the_nearest_case_are_looked_at_early(make):
    near, far, own = make.case(rows=16), make.case(rows=4096, cols=4096), make.case(rows=8)
    good, other = (
        {"UNROLL": 16, "BLOCK": 256, "two_pass": True},
        {"UNROLL": 32, "BLOCK": 32, "two_pass": True},
    )
    looks = [(good, near, 5.0), (other, near, 50.0), (other, far, 5.0), (good, far, 50.0)]
    found = brief(make, looks, problem=make.problem(cases=(own,)), cases=(near, far), most_trials=2)
    answer = tuner.author().propose(found)
    assert [trial.values for trial in answer.trials][1] == good


def test_best_values_of_the_ancestors_are_looked_at_early(make):
    problem = make.problem()
    good = {"UNROLL": 16, "BLOCK": 256, "two_pass": True}
    kin = [
        Screening(
            candidate_hash="a" * 64,
            problem_hash=problem.hash,
            values=values,
            case_hash=problem.cases[0].hash,
            status=Status.ACCEPTED,
            latency_us=time,
        )
        for values, time in ((good, 3.0), ({"OLD_NAME": 4}, 1.0))
    ]
    found = brief(make, problem=problem, kin_screenings=tuple(kin), most_trials=2)
    assert [trial.values for trial in tuner.author().propose(found).trials][1] == good


def test_every_case_gets_its_own_row_and_unseen_shapes_the_safest_one(make):
    cases = (make.case(rows=8, weight=3.0), make.case(rows=4096, weight=1.0))
    centres = {cases[0].hash: 5, cases[1].hash: 9}
    found = brief(make, problem=make.problem(cases=cases))
    answer, asked = tuned(found, lambda case, values: valley_us(values, centres[case]))
    (proposal,) = answer.proposals
    rows = {case.hash: proposal.candidate(found.problem).values_for(case.hash) for case in cases}
    for case in cases:
        looked = [trial.values for trial in asked if trial.case_hash == case.hash]
        best = min(valley_us(values, centres[case.hash]) for values in looked)
        assert valley_us(rows[case.hash], centres[case.hash]) == best
    assert rows[cases[0].hash] != rows[cases[1].hash]
    assert len(proposal.choices) == 2
    assert proposal.choices[-1].case_hashes == ()
    # The heavier case decides which of the two serves shapes nobody has seen; both were looked at on both cases.
    assert proposal.choices[-1].values == rows[cases[0].hash]
    for values in rows.values():
        assert {trial.case_hash for trial in asked if trial.values == values} == set(centres)


def test_values_as_good_as_the_parents_are_no_reason_to_leave_them(make):
    found = brief(make)
    own = found.parents[0].choices[0].values
    answer, _ = tuned(found, lambda case, values: 50.0 if values == own else 49.8)
    assert answer.proposals[0].choices == found.parents[0].choices


def test_table_the_tree_holds_already_is_not_proposed_again(make):
    found = brief(make)
    known: list[str] = []
    tables = []
    for _ in range(12):
        answer, _ = tuned(
            found.model_copy(update={"known": tuple(known)}), lambda case, values: valley_us(values)
        )
        if not answer.proposals:
            break
        (proposal,) = answer.proposals
        known.append(key_of(proposal.candidate(found.problem)))
        tables.append(proposal.choices)
    assert len(set(known)) == len(known) >= 1
    assert "was tried" in answer.reason
    assert tables[-1][-1].values == BEST


def test_bold_tuner_looks_further_where_it_had_given_up(make):
    grid = {"A": list(range(20)), "B": list(range(20))}
    source = f"/*kernelwright\nPARAMS = {grid!r}\n*/\nint kernel_fn();\n"
    parent = make.candidate(source, choices=(ParamChoice(values={"A": 0, "B": 0}),))
    told = {"parents": (parent,), "known": (key_of(parent),), "most_trials": 96}
    answer, asked = tuned(brief(make, **told), lambda _, values: 10.0)
    assert answer.reason == "every table that 96 of 400 sets of values favour was tried"
    case = make.problem().cases[0]
    looks = [(one.values, case, 10.0) for one in asked]
    again = brief(make, looks, source=source, **told, bold=True)
    fresh = [one.values for one in tuner.author().propose(again).trials]
    assert fresh and not any(values in [one.values for one in asked] for values in fresh)


def test_nothing_to_tune_is_a_reason(make):
    found = brief(make)
    no_params = brief(make, source="int kernel_fn();")
    one_value = brief(make, source='/*kernelwright\nPARAMS = {"A": [1]}\n*/')
    broken = brief(make, source="/*kernelwright\nPARAMS = {1: 2}\n*/")
    reasons = [tuner.author().propose(one).reason for one in (no_params, one_value, broken)]
    assert reasons[0] == reasons[1] == "PARAMS offers no choice"
    assert "PARAMS cannot be read" in reasons[2]
    nobody = found.model_copy(update={"parents": ()})
    assert tuner.author().propose(nobody).reason == "there is no source whose values could be tuned"


def test_case_on_which_nothing_runs_is_named(make):
    found = brief(make)
    answer, _ = tuned(found, lambda case, values: None)
    assert answer.reason == f"none of 60 sets of values runs on {found.problem.cases[0].label}"


@pytest.fixture(scope="module")
def landscape(make):
    cases = (make.case(rows=8), make.case(rows=512))
    return valley(make.problem(cases=cases), (valley_us, lambda values: valley_us(values, 5)))


def searched(landscape, seed, verdicts, bodies=()):
    """Return a search in which the tuner alone proposes."""
    config = settings(strategy="greedy", seed=seed, max_evaluations=verdicts, patience=3, escalations=0)
    return RecordedRun(landscape, tuner.author(), config, bodies=list(bodies)).search()


def test_tuner_finds_the_best_table_of_a_landscape_with_few_proofs(landscape):
    found = searched(landscape, 1, 8)
    best = found.tree.best[landscape.problem.hash]
    times = found.tree.nodes[landscape.problem.hash, best].evaluations[-1].timing.cases
    assert [one.median_us for one in times] == pytest.approx([30.0, 30.0])
    assert sum(isinstance(body, Screened) for body in found.bodies) > 10 * len(found.steps)


def test_tuning_resumed_from_any_look_continues_identically(landscape):
    whole = searched(landscape, 2, 4)
    looked = [end for end in whole.ends if isinstance(whole.bodies[end - 1], Screened)]
    assert len(looked) > 8
    for end in (looked[0], looked[len(looked) // 2], looked[-1]):
        stored = [BODY.validate_json(BODY.dump_json(body)) for body in whole.bodies[:end]]
        assert searched(landscape, 2, 4, stored).bodies == whole.bodies


def test_brief_carries_looks_at_the_parents_source_from_every_problem(landscape):
    found = searched(landscape, 3, 3)
    best = found.tree.best[landscape.problem.hash]
    wish = Expansion(problem_hash=landscape.problem.hash, parents=(best,))
    told = brief_of(found.tree, wish, 0)
    # The looks stand at the root; the winner has its source, so they are its own.
    assert len(told.screenings) == sum(isinstance(body, Screened) for body in found.bodies)
    assert told.kin_screenings == ()


def test_optuna_is_imported_when_values_are_asked_for_and_torch_never(fresh_python):
    code = """
from kernelwright.core import plugins

def loaded():
    return [name for name in ("optuna", "torch", "triton") if name in sys.modules]

plugins.load("agents", "tuner").author()
answer = {"before": loaded()}
from kernelwright.agents._sampler import Space, ask
answer["asked"] = len(ask(Space({"A": [1, 2, 4]}), {}, 2, lambda values: True, 0))
answer["after"] = loaded()
"""
    assert fresh_python(code, {}) == {"before": [], "asked": 2, "after": ["optuna"]}
