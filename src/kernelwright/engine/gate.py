"""Keep or revert: a pure reading of what the judge wrote."""

import math

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.normal import length
from kernelwright.core.stats import KeepRule, is_not_slower
from kernelwright.core.verdict import Comparison, Decision, Evaluation, Outcome, Profile, Status

BAR = "a faster baseline has come, which has to be beaten first"
RULE = KeepRule()
"""What counts as equal speed: a simpler kernel may cost no more than one part in a hundred."""
SIMPLER = 0.9
"""Share of the incumbent's length, comments and spelling aside, that a kernel may have to count as simpler."""


def first_of_problem(evaluation: Evaluation) -> Decision:
    """Return the decision on a baseline: it holds the title until a challenger is proven faster."""
    accepted = evaluation.status is Status.ACCEPTED and evaluation.profile is not Profile.QUICK
    reason = (
        "baseline: holds the title until a challenger is proven faster"
        if accepted
        else _rejection(evaluation)
    )
    return _decision(evaluation, accepted, reason)


def slower_baseline(evaluation: Evaluation, times: float) -> Decision:
    """Return the decision on a baseline that another one outruns: the faster of them holds the title."""
    reason = f"baseline: certified at {times:.2f} times the other's, which holds the title"
    return _decision(evaluation, False, reason)


def bar_raised(evaluation: Evaluation) -> Decision:
    """Return the decision on whoever held the title when a faster baseline came."""
    return _decision(evaluation, False, BAR)


def is_bar(decision: Decision) -> bool:
    """Tell whether a decision took a title because a faster baseline came."""
    return decision.reason == BAR


def rejected(evaluation: Evaluation) -> Decision:
    """Return the decision on a candidate that did not pass its profile."""
    return _decision(evaluation, False, _rejection(evaluation))


def disqualified(evaluation: Evaluation, found: Disqualified) -> Decision:
    """Return the decision on a candidate that failed while it was timed."""
    return _decision(evaluation, False, f"{found.status.value}: {found.reason}")


def outrun(evaluation: Evaluation, comparison: Comparison) -> Decision:
    """Return the decision on a challenger that beats the best so far, but not another one of the same race."""
    reason = (
        f"outrun: {_interval(comparison)} over the best so far, another challenger of the same race is ahead"
    )
    return _decision(evaluation, False, reason, comparison)


def is_simpler(challenger: Candidate, incumbent: Candidate, comparison: Comparison) -> bool:
    """Tell whether a challenger that is not proven faster is as fast as an author's kernel, and clearly shorter.

    Equal arms mostly end as not faster. That a gain is out of reach says nothing of a loss: the pairs are read again.
    """
    if incumbent.origin is Origin.BASELINE or challenger.backend != incumbent.backend:
        return False
    if comparison.outcome is Outcome.FASTER or comparison.slower_case:
        return False
    several = comparison.cases if len(comparison.cases) > 1 else ()
    cases = [[math.log(old / new) for old, new in case.times] for case in several]
    if not is_not_slower(comparison.log_ratios, RULE, cases):
        return False
    own, theirs = (length(one.source, one.backend) for one in (challenger, incumbent))
    return own <= SIMPLER * theirs


def simpler(evaluation: Evaluation, comparison: Comparison) -> Decision:
    """Return the decision on a challenger as fast as the best and clearly shorter."""
    reason = f"simpler at equal speed: {_interval(comparison)}, no slower than x{RULE.equal}"
    return _decision(evaluation, True, reason, comparison)


def confirmed(evaluation: Evaluation, comparison: Comparison) -> Decision:
    """Return the decision on a winner under the full profile: what is published rests on this comparison alone."""
    found = decide(evaluation, comparison)
    words = "confirmed" if found.kept else "not confirmed"
    return found.model_copy(
        update={"reason": f"{words} in {comparison.starts} separate starts; {found.reason}"}
    )


def rolled_back(evaluation: Evaluation, comparison: Comparison) -> Decision:
    """Return the decision on a keep whose gains do not add up to what is measured directly."""
    reason = f"rolled back: {_interval(comparison)} over the baseline directly, which is not the product of the claims"
    return _decision(evaluation, False, reason, comparison)


def decide(evaluation: Evaluation, comparison: Comparison) -> Decision:
    """Return the decision on an accepted challenger: only a proven gain under a full profile is kept."""
    for what, compared, judged in (
        ("candidate", comparison.challenger_hash, evaluation.candidate_hash),
        ("problem", comparison.problem_hash, evaluation.problem_hash),
        ("device", comparison.device_hash, evaluation.device_hash),
        ("judge version", comparison.judge_version, evaluation.judge_version),
    ):
        if compared != judged:
            raise ValueError(f"the comparison is about another {what} than the evaluation")
    evidence = (
        f"{_interval(comparison)} over {comparison.pairs} fresh pairs, evidence {comparison.e_faster:.3g}"
    )
    if evaluation.status is not Status.ACCEPTED or evaluation.profile is Profile.QUICK:
        return _decision(evaluation, False, "no certificate", comparison)
    if comparison.outcome is Outcome.FASTER:
        return _decision(evaluation, True, f"proven faster: {evidence}", comparison)
    words = {Outcome.NOT_FASTER: "not faster", Outcome.NOT_PROVEN: "not proven faster"}[comparison.outcome]
    if comparison.slower_case:
        words = f"slower on {comparison.slower_case}"
    return _decision(evaluation, False, f"{words}: {evidence}", comparison)


def _interval(comparison: Comparison) -> str:
    return f"x{comparison.ratio:.3f} [{comparison.ci_low:.3f}, {comparison.ci_high:.3f}]"


def _rejection(evaluation: Evaluation) -> str:
    failure = evaluation.failure
    where = f" at {failure.stage.value}: {failure.reason}" if failure else ""
    return f"{evaluation.status.value}{where}"


def _decision(
    evaluation: Evaluation, kept: bool, reason: str, comparison: Comparison | None = None
) -> Decision:
    return Decision(
        problem_hash=evaluation.problem_hash,
        candidate_hash=evaluation.candidate_hash,
        kept=kept,
        reason=reason,
        evaluation_hash=evaluation.hash,
        comparison_hash=comparison.hash if comparison else None,
    )
