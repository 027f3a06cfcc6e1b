"""The gate reads what the judge wrote: only a proven gain under a full profile is kept."""

import pytest

from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.verdict import Outcome, Profile, Stage, Status
from kernelwright.engine import gate


@pytest.fixture(scope="module")
def arms(make):
    """Return a problem, its baseline and a challenger."""
    return make.problem(), make.baseline(), make.candidate()


def test_accepted_baseline_is_kept(arms, make):
    problem, baseline, _ = arms
    verdict = make.evaluation(baseline, problem)
    decision = gate.first_of_problem(verdict)
    assert decision.kept
    assert decision.reason == "baseline: holds the title until a challenger is proven faster"
    assert (decision.problem_hash, decision.candidate_hash) == (problem.hash, baseline.hash)
    assert (decision.evaluation_hash, decision.comparison_hash) == (verdict.hash, None)


def test_failed_baseline_is_not_kept(arms, make):
    problem, baseline, _ = arms
    decision = gate.first_of_problem(make.evaluation(baseline, problem, failed=Stage.STABILITY))
    assert not decision.kept
    assert decision.reason == "wrong at stability: out differs by 3 ulp"


def test_baseline_under_quick_is_not_kept(arms, make):
    problem, baseline, _ = arms
    assert not gate.first_of_problem(make.evaluation(baseline, problem, profile=Profile.QUICK)).kept


@pytest.mark.parametrize("failed", Stage)
def test_rejected_candidate_is_not_kept_and_the_stage_is_named(arms, make, failed):
    problem, _, challenger = arms
    verdict = make.evaluation(challenger, problem, failed=failed, profile=Profile.SHIP)
    decision = gate.rejected(verdict)
    assert not decision.kept
    assert decision.reason == f"wrong at {failed.value}: out differs by 3 ulp"
    assert (decision.candidate_hash, decision.evaluation_hash) == (challenger.hash, verdict.hash)


def test_candidate_disqualified_while_timed_is_not_kept(arms, make):
    problem, _, challenger = arms
    reason = "the challenger failed while it was timed: out differs"
    found = Disqualified(candidate_hash=challenger.hash, status=Status.WRONG, reason=reason)
    decision = gate.disqualified(make.evaluation(challenger, problem), found)
    assert (decision.kept, decision.reason) == (False, f"wrong: {reason}")


def test_only_a_winner_that_is_faster_again_is_confirmed(arms, make):
    problem, baseline, challenger = arms
    verdict = make.evaluation(challenger, problem, profile=Profile.SHIP)
    found = gate.confirmed(verdict, make.comparison(baseline, challenger, problem, starts=3))
    assert (found.kept, found.reason.split(":")[0]) == (True, "confirmed in 3 separate starts; proven faster")
    unproven = make.comparison(baseline, challenger, problem, outcome=Outcome.NOT_PROVEN)
    assert not gate.confirmed(verdict, unproven).kept


def test_keep_whose_gain_is_not_there_against_the_baseline_is_rolled_back(arms, make):
    problem, baseline, challenger = arms
    decision = gate.rolled_back(
        make.evaluation(challenger, problem), make.comparison(baseline, challenger, problem)
    )
    assert (decision.kept, "not the product of the claims" in decision.reason) == (False, True)


def test_case_that_got_slower_is_named(arms, make):
    problem, baseline, challenger = arms
    slower = make.comparison(
        baseline, challenger, problem, outcome=Outcome.NOT_FASTER, slower_case="rmsnorm 4x64 fp32"
    )
    reason = gate.decide(make.evaluation(challenger, problem), slower).reason
    assert reason.startswith("slower on rmsnorm 4x64 fp32: ")


@pytest.mark.parametrize("profile", [Profile.KEEP, Profile.SHIP])
def test_challenger_proven_faster_is_kept_with_its_evidence(arms, make, profile):
    problem, baseline, challenger = arms
    verdict = make.evaluation(challenger, problem, profile=profile)
    comparison = make.comparison(baseline, challenger, problem)
    decision = gate.decide(verdict, comparison)
    assert decision.kept
    assert decision.reason == "proven faster: x1.250 [1.200, 1.300] over 3 fresh pairs, evidence 1.2e+03"
    assert (decision.evaluation_hash, decision.comparison_hash) == (verdict.hash, comparison.hash)
    assert (decision.problem_hash, decision.candidate_hash) == (problem.hash, challenger.hash)


@pytest.mark.parametrize(
    ("outcome", "words"), [(Outcome.NOT_FASTER, "not faster: "), (Outcome.NOT_PROVEN, "not proven faster: ")]
)
def test_challenger_not_proven_faster_is_reverted_whatever_its_ratio(arms, make, outcome, words):
    problem, baseline, challenger = arms
    comparison = make.comparison(baseline, challenger, problem, outcome=outcome, ratio=9, ci_high=99)
    decision = gate.decide(make.evaluation(challenger, problem), comparison)
    assert not decision.kept
    assert decision.reason.startswith(words)
    assert decision.comparison_hash == comparison.hash


def test_every_outcome_has_a_decision_and_only_faster_is_kept(arms, make):
    problem, baseline, challenger = arms
    verdict = make.evaluation(challenger, problem)
    kept = {
        outcome: gate.decide(verdict, make.comparison(baseline, challenger, problem, outcome=outcome)).kept
        for outcome in Outcome
    }
    assert kept == {Outcome.FASTER: True, Outcome.NOT_FASTER: False, Outcome.NOT_PROVEN: False}


@pytest.mark.parametrize("outcome", Outcome)
def test_quick_evaluation_never_keeps(arms, make, outcome):
    problem, baseline, challenger = arms
    verdict = make.evaluation(challenger, problem, profile=Profile.QUICK)
    decision = gate.decide(verdict, make.comparison(baseline, challenger, problem, outcome=outcome))
    assert (decision.kept, decision.reason) == (False, "no certificate")


@pytest.mark.parametrize("failed", Stage)
def test_failed_evaluation_never_keeps_even_with_a_winning_comparison(arms, make, failed):
    problem, baseline, challenger = arms
    verdict = make.evaluation(challenger, problem, failed=failed)
    assert not gate.decide(verdict, make.comparison(baseline, challenger, problem)).kept


@pytest.mark.parametrize("field", ["challenger_hash", "problem_hash", "device_hash", "judge_version"])
def test_comparison_about_something_else_than_the_evaluation_is_a_value_error(arms, make, field):
    problem, baseline, challenger = arms
    comparison = make.comparison(baseline, challenger, problem, **{field: "0" * 64})
    with pytest.raises(ValueError, match="another"):
        gate.decide(make.evaluation(challenger, problem), comparison)


def test_gate_is_pure(arms, make):
    problem, baseline, challenger = arms
    verdict, comparison = make.evaluation(challenger, problem), make.comparison(baseline, challenger, problem)
    assert gate.decide(verdict, comparison) == gate.decide(verdict, comparison)
