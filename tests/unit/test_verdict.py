"""A verdict cannot be built in a state that would let an unproven candidate look proven."""

import ast
import math
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import kernelwright.core
from kernelwright.core.verdict import (
    REQUIRED_STAGES,
    CaseTiming,
    Comparison,
    Evaluation,
    Outcome,
    Profile,
    Screening,
    Stage,
    StageResult,
    Status,
    Timing,
)

FULL = [Profile.KEEP, Profile.SHIP]
REQUIRED = [(profile, stage) for profile in FULL for stage in REQUIRED_STAGES[profile]]


def passed(*stages: Stage) -> tuple[StageResult, ...]:
    return tuple(StageResult(stage=stage, passed=True, seconds=1) for stage in stages)


def test_ship_requires_every_stage_keep_all_but_the_last_audits_and_quick_the_first_three():
    assert REQUIRED_STAGES[Profile.SHIP] == tuple(Stage)
    audits = {Stage.REBUILD, Stage.SANITIZER, Stage.BIG_INDEX}
    audits |= {Stage.STREAMS, Stage.GRAPH_CAPTURE, Stage.LONGEVITY}
    assert set(Stage) - set(REQUIRED_STAGES[Profile.KEEP]) == audits
    assert REQUIRED_STAGES[Profile.QUICK] == (Stage.GUARDS, Stage.BUILD, Stage.SMOKE)


def test_the_classic_stages_keep_their_names_and_timing_comes_last():
    classic = {"smoke", "shape_sweep", "stability", "determinism", "edge_cases"}
    assert classic <= {stage.value for stage in Stage}
    assert {stages[-1] for profile, stages in REQUIRED_STAGES.items() if profile in FULL} == {Stage.TIMING}


@pytest.mark.parametrize("profile", Profile)
def test_evaluation_that_passed_its_profile_is_accepted(make, profile):
    verdict = make.evaluation(make.candidate(), make.problem(), profile=profile)
    assert verdict.passed_all
    assert verdict.failure is None
    assert (verdict.timing is None) == (profile is Profile.QUICK)


@pytest.mark.parametrize(("profile", "missing"), REQUIRED)
def test_evaluation_with_a_missing_stage_has_no_timing_and_is_not_accepted(make, profile, missing):
    problem = make.problem()
    stages = passed(*(stage for stage in Stage if stage is not missing))
    fields = {"profile": profile, "stages": stages}
    with pytest.raises(ValidationError, match="certified timing"):
        make.evaluation(make.candidate(), problem, status=Status.CRASHED, **fields)
    with pytest.raises(ValidationError, match=f"accepted under '{profile.value}' without passing"):
        make.evaluation(make.candidate(), problem, timing=None, **fields)


@pytest.mark.parametrize(("profile", "failed"), REQUIRED)
def test_evaluation_with_a_failed_stage_has_no_timing_and_is_not_accepted(make, profile, failed):
    problem = make.problem()
    fields = {"profile": profile, "failed": failed}
    assert make.evaluation(make.candidate(), problem, **fields).failure.stage is failed
    with pytest.raises(ValidationError, match="certified timing"):
        make.evaluation(make.candidate(), problem, timing=make.timing(problem), **fields)
    with pytest.raises(ValidationError, match="without passing every required stage"):
        make.evaluation(make.candidate(), problem, status=Status.ACCEPTED, **fields)


@given(st.lists(st.tuples(st.sampled_from(Stage), st.booleans()), max_size=20), st.sampled_from(Status))
def test_no_choice_of_stages_gives_a_timing_without_all_of_them_passed(make, drawn, status):
    problem = make.problem()
    stages = tuple(StageResult(stage=stage, passed=ok, seconds=0) for stage, ok in drawn)
    is_complete = {s.stage for s in stages if s.passed} >= set(REQUIRED_STAGES[Profile.KEEP])
    fields = {"stages": stages, "status": status, "timing": make.timing(problem)}
    if not is_complete:
        with pytest.raises(ValidationError):
            make.evaluation(make.candidate(), problem, **fields)


def test_quick_evaluation_never_has_a_timing(make):
    problem = make.problem()
    for stages in (make.stages(Profile.QUICK), make.stages(Profile.KEEP)):
        with pytest.raises(ValidationError, match="needs every required stage of `keep` or `ship`"):
            make.evaluation(
                make.candidate(), problem, profile=Profile.QUICK, stages=stages, timing=make.timing(problem)
            )


def test_rejected_evaluation_never_has_a_timing(make):
    for status in set(Status) - {Status.ACCEPTED}:
        with pytest.raises(ValidationError):
            make.evaluation(make.candidate(), make.problem(), status=status)


def test_stages_after_a_failure_are_refused(make):
    stages = (*make.stages(failed=Stage.SMOKE), *passed(Stage.SHAPE_SWEEP))
    with pytest.raises(ValidationError, match="stops at the first failed stage"):
        make.evaluation(make.candidate(), make.problem(), failed=Stage.SMOKE, stages=stages)


def test_same_stage_twice_is_refused(make):
    stages = passed(*Stage, Stage.GUARDS)
    with pytest.raises(ValidationError, match="appears twice"):
        make.evaluation(make.candidate(), make.problem(), stages=stages)


def test_timing_without_cases_is_refused():
    with pytest.raises(ValidationError, match="at least 1 item"):
        Timing(clock="judge-slope", cases=())


@pytest.mark.parametrize("median_us", [0.0, -1.0, math.nan, math.inf])
def test_time_that_no_kernel_takes_is_refused(median_us):
    with pytest.raises(ValidationError):
        CaseTiming(case_hash="ab", label="x", median_us=median_us, mad_us=0, rounds=1)


def test_evaluation_is_identified_by_candidate_problem_device_judge_and_profile(make):
    candidate, problem = make.candidate(), make.problem()
    plain = make.evaluation(candidate, problem)
    same = make.evaluation(candidate, problem, failed=Stage.SMOKE, seconds=9, environment={"torch": "2"})
    others = [
        make.evaluation(make.candidate("other"), problem),
        make.evaluation(candidate, make.problem(reference="m:f")),
        make.evaluation(candidate, problem, device_hash="ab"),
        make.evaluation(candidate, problem, judge_version="0"),
        make.evaluation(candidate, problem, profile=Profile.SHIP),
    ]
    assert same.hash == plain.hash
    assert len({plain.hash, *(other.hash for other in others)}) == 6


def test_comparison_is_identified_by_both_candidates_problem_device_and_judge(make):
    one, two, problem = make.candidate("one"), make.candidate("two"), make.problem()
    plain = make.comparison(one, two, problem)
    later = make.comparison(one, two, problem, outcome=Outcome.NOT_PROVEN, e_faster=1.0)
    others = [
        make.comparison(two, one, problem),
        make.comparison(one, make.candidate("three"), problem),
        make.comparison(one, two, make.problem(reference="m:f")),
        make.comparison(one, two, problem, device_hash="ab"),
        make.comparison(one, two, problem, judge_version="0"),
    ]
    assert later.hash == plain.hash
    assert len({plain.hash, *(other.hash for other in others)}) == 6


RATIOS = st.floats(0.1, 10)


@given(RATIOS, RATIOS, RATIOS)
def test_comparison_whose_ratio_lies_outside_its_interval_cannot_be_built(make, ratio, ci_low, ci_high):
    fields = {"ratio": ratio, "ci_low": ci_low, "ci_high": ci_high}
    if ci_low <= ratio <= ci_high:
        assert make.comparison(make.baseline(), make.candidate(), make.problem(), **fields).ratio == ratio
    else:
        with pytest.raises(ValidationError, match="lies outside its interval"):
            make.comparison(make.baseline(), make.candidate(), make.problem(), **fields)


@pytest.mark.parametrize(
    "change",
    [
        {"pairs": 4},
        {"log_ratios": ()},
        {"log_ratios": (0.1, 0.2, math.nan)},
        {"e_faster": -1.0},
        {"e_faster": math.inf},
        {"ratio": 0.0, "ci_low": 0.0},
        {"ci_high": math.inf},
        {"outcome": "probably"},
    ],
)
def test_comparison_whose_numbers_do_not_fit_cannot_be_built(make, change):
    with pytest.raises(ValidationError):
        make.comparison(make.baseline(), make.candidate(), make.problem(), **change)


@pytest.mark.parametrize("profile", Profile)
def test_verdicts_survive_json_unchanged(make, profile):
    candidate, problem = make.candidate(), make.problem()
    verdict = make.evaluation(candidate, problem, profile=profile)
    assert Evaluation.model_validate_json(verdict.model_dump_json()) == verdict
    found = make.comparison(make.baseline(), candidate, problem)
    assert Comparison.model_validate_json(found.model_dump_json()) == found


def test_forged_text_is_validated_like_anything_else(make):
    verdict = make.evaluation(make.candidate(), make.problem(), failed=Stage.SMOKE)
    forged = verdict.model_dump_json().replace('"status":"wrong"', '"status":"accepted"')
    assert forged != verdict.model_dump_json()
    with pytest.raises(ValidationError, match="without passing every required stage"):
        Evaluation.model_validate_json(forged)


def test_screening_has_no_place_for_a_certified_timing():
    assert "timing" not in Screening.model_fields
    assert "stages" not in Screening.model_fields


CORE = Path(kernelwright.core.__file__).parent


def enum_members() -> list[tuple[str, str, str | None]]:
    """Return (class, member, documentation) of every enum in core, read from the source."""
    found = []
    for path in sorted(CORE.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(b).endswith("Enum") for b in node.bases):
                for here, after in zip(node.body, [*node.body[1:], None], strict=True):
                    if isinstance(here, ast.Assign):
                        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                        text = after.value.value if is_text else None
                        found.append((node.name, here.targets[0].id, text))
    return found


@pytest.mark.parametrize("kind", [Status, Stage, Profile, Outcome])
def test_every_member_of_the_verdict_enums_has_a_line_of_documentation(kind: type[Enum]):
    lines = {member: text for owner, member, text in enum_members() if owner == kind.__name__}
    assert set(lines) == set(kind.__members__)
    assert [member for member, text in lines.items() if not isinstance(text, str) or len(text) < 6] == []
    assert len(set(lines.values())) == len(lines)


def test_every_enum_member_of_the_vocabulary_is_documented_in_one_line():
    poor = [
        f"{owner}.{member}"
        for owner, member, text in enum_members()
        if not isinstance(text, str) or not text.endswith(".") or "\n" in text
    ]
    assert poor == []
