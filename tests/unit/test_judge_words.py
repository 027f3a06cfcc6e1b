"""What `kernelwright judge` says of times: cold and warm, share of the floor, score, ratio; of a lost comparison."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.cli import judge as verb
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.verdict import CaseRatio, Comparison, Status
from kernelwright.engine.judging import Finding, Wish


def compared(make: SimpleNamespace, challenger_us: float) -> Comparison:
    """Return a comparison in which the incumbent took 30 us."""
    problem = make.problem()
    (case,) = problem.cases
    ratio = CaseRatio(
        case_hash=case.hash,
        label=case.label,
        ratio=1.25,
        ci_low=1.2,
        ci_high=1.3,
        incumbent_us=30.0,
        challenger_us=challenger_us,
    )
    found: Comparison = make.comparison(make.baseline(), make.candidate(), problem, cases=(ratio,))
    return found


def answered(
    make: SimpleNamespace,
    *,
    against: Comparison | Disqualified | None = None,
    is_calibrated: bool = True,
    **times: float,
) -> verb.JudgeAnswer:
    """Return what the verb answers for certified times."""
    problem, candidate = make.problem(), make.candidate()
    verdict = make.evaluation(candidate, problem, timing=make.timing(problem, **times))
    finding = Finding(problem, candidate, verdict, against, is_calibrated=is_calibrated)
    return verb.answer_of(Wish(Path("k.cpp"), op="rmsnorm", against="best so far.cpp"), finding)


def test_share_of_the_floor_and_score_are_in_the_answer(make: SimpleNamespace) -> None:
    (reached,) = answered(make, median_us=20.0, floor_us=10.0, against=compared(make, 20.0)).reached
    assert reached.floor_share == 0.5
    assert reached.sol_score == pytest.approx(1 / (1 + 10 / 20))


def test_without_a_floor_or_a_comparison_there_is_no_score(make: SimpleNamespace) -> None:
    for times, against in ({"floor_us": 5.0}, None), ({}, compared(make, 20.0)):
        (reached,) = answered(make, against=against, **times).reached
        assert reached.sol_score is None


def test_the_text_tells_both_regimes_floor_score_and_interval(
    make: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    verb._print(answered(make, median_us=20.0, floor_us=10.0, warm_us=8.0, against=compared(make, 20.0)))
    said = capsys.readouterr().out
    assert "20.0 us (+- 0.1) cold, 8.0 us warm, floor 10.0 us (50% of the time), SOL score 0.67" in said
    assert "x1.250 [1.200, 1.300] (95 %)" in said
    assert "--calibrate" not in said


def test_what_is_not_known_is_said(make: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    verb._print(answered(make, median_us=20.0, is_calibrated=False))
    said = capsys.readouterr().out
    assert "20.0 us (+- 0.1) cold only\n" in said
    assert "no floor is known here: `kernelwright doctor --calibrate` measures it" in said


def test_a_candidate_that_fails_while_it_is_compared_is_rejected_for_that(
    make: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "the challenger failed while it was timed: it died"
    lost = Disqualified(candidate_hash=make.candidate().hash, status=Status.CRASHED, reason=reason)
    answer = answered(make, floor_us=5.0, against=lost)
    assert (answer.status, answer.passed, answer.disqualified) == (Status.CRASHED, False, reason)
    assert (answer.timing, answer.reached) == (None, [])
    verb._print(answer)
    again = "kernelwright judge k.cpp --op rmsnorm --against 'best so far.cpp' --profile keep"
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"no comparison: {reason}",
        "rejected under keep: crashed",
        f"the failing comparison again: {again}",
    ]


def test_an_incumbent_that_fails_while_it_is_compared_takes_nothing_from_the_candidate(
    make: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "the incumbent failed while it was timed: it died"
    lost = Disqualified(candidate_hash=make.baseline().hash, status=Status.CRASHED, reason=reason)
    answer = answered(make, floor_us=5.0, against=lost)
    assert (answer.status, answer.passed, answer.disqualified) == (Status.ACCEPTED, True, reason)
    assert answer.timing is not None
    assert [one.floor_share for one in answer.reached] == [0.5]
    verb._print(answer)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"no comparison: {reason}",
        "passed under keep: accepted",
    ]
