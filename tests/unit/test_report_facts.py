"""The reading of a run that every report is written from."""

import pytest

from kernelwright.core.events import (
    CandidateProposed,
    Decided,
    Evaluated,
    ExpansionAnswered,
    ExpansionAsked,
    Noted,
    ProblemEnded,
    SearchEscalated,
)
from kernelwright.core.expansion import Expansion
from kernelwright.core.frozen import Frozen
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.tree import fold
from kernelwright.core.verdict import Profile, Stage, Status
from kernelwright.engine import gate
from kernelwright.report.chronicle import chronicle, without_times
from kernelwright.report.facts import BETWEEN, Around, facts
from kernelwright.report.html import page
from kernelwright.report.markdown import document
from kernelwright.report.model import Fate
from tests.unit.report_runs import Telling, region, shipped_run


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_headline_of_a_shipped_run_has_both_ratios_with_their_intervals(make):
    found = shipped_run(make).report()
    assert plain(found.headline) == (
        "With 1 certified kernel in place, net.py:build is faster than eager, ×1.250 [1.200, 1.300], "
        "and faster than torch.compile, ×1.100 [1.050, 1.150]."
    )
    assert found.use == 'model = kernelwright.apply(model, "kernels")'


@pytest.mark.parametrize(
    ("compiled", "words"),
    [
        ((0.8, 0.7, 0.9), ", but slower than torch.compile, ×0.800 [0.700, 0.900]."),
        ((1.0, 0.9, 1.1), ", but within the noise of torch.compile, ×1.000 [0.900, 1.100]."),
        (None, "; torch.compile was not timed."),
    ],
)
def test_headline_does_not_hide_torch_compile(make, compiled, words):
    run = Telling(make).started().ranked().found()
    best = run.challenger(run.baseline(), (100.0, 50.0))
    assert plain(run.verified(best, compiled=compiled).ended().report().headline).endswith(words)


def test_run_that_proves_nothing_says_so_and_offers_nothing_to_use(make):
    run = Telling(make).started().ranked().found()
    run.challenger(run.baseline(), (100.0, 110.0), kept=False)
    found = run.ended().report()
    assert (
        found.headline
        == "Nothing was proven faster than the baselines on rmsnorm 8x64 fp16, so nothing is installed."
    )
    assert (found.use, found.whole, found.problems[0].is_won) == ("", None, False)
    assert found.problems[0].verdict.startswith("not faster: x0.909")


def test_winner_that_does_not_pay_end_to_end_is_not_called_installed(make):
    run = Telling(make).started().ranked().found()
    best = run.challenger(run.baseline(), (100.0, 50.0))
    found = run.verified(best, shipped=False).ended().report()
    assert found.headline.startswith(
        "Nothing is installed: the interval reaches 1 (with the winners in place"
    )
    assert (found.use, found.problems[0].is_installed, found.problems[0].calls_to_pay) == ("", False, None)
    assert found.measured_after is None


def test_unfinished_run_says_so(make):
    run = Telling(make).started().ranked().found()
    assert run.report().headline == (
        "The run has not ended; nothing is proven faster so far, and nothing is installed."
    )
    run.challenger(run.baseline(), (100.0, 50.0))
    found = run.report()
    assert plain(found.headline) == (
        "The run has not ended; proven faster so far, each by itself: rmsnorm 8x64 fp16 "
        "×2.000 [1.960, 2.040] over eager."
    )
    assert found.problems[0].stopped == found.ended == "the run has not ended"


def test_run_without_problems_and_run_without_events_have_a_report(make):
    assert (
        Telling(make).started().ended().report().headline
        == "No region was worked on, so nothing is installed."
    )
    empty = facts(chronicle([]), Around("run"))
    assert (empty.problems, empty.busy_s, empty.device) == ((), None, "")


def test_run_of_a_single_kernel_pays_after_calls_of_the_kernel(make):
    run = Telling(make, model=None).started().found()
    run.challenger(run.baseline(), (100.0, 60.0))
    found = run.ended().report()
    assert plain(found.headline) == "Proven faster: rmsnorm 8x64 fp16 ×1.667 [1.633, 1.700] over eager."
    # One second each for two verdicts and a comparison, 40 us saved by every call.
    assert found.problems[0].search_s == 3.0
    assert found.problems[0].calls_to_pay == pytest.approx(3.0 / 40e-6)
    assert found.slices == ()


def test_search_pays_after_its_time_over_what_a_call_of_the_model_saves(make):
    found = shipped_run(make).report()
    # Half of 1000 us, halved: 250 us a call. The 30 s of verifying the whole model are no search.
    assert found.problems[0].search_s == 3.0
    assert found.problems[0].calls_to_pay == pytest.approx(3.0 / 250e-6)
    assert (found.busy_s, found.verify_s) == (33.0, 30.0)


def test_pause_before_a_resumption_is_not_time_spent(make):
    run = Telling(make).started().found()
    run.baseline()
    run.tell(seconds=3600).started()
    run.challenger(run.baseline(backend="compiled", kept=False), (100.0, 50.0))
    found = run.ended().report()
    assert (found.starts, found.busy_s) == (2, 4.0)


def test_time_before_an_event_belongs_to_the_problem_it_speaks_of(make):
    run = Telling(make).started().found()
    expansion = Expansion(problem_hash=run.problem.hash)
    run.tell(ExpansionAsked(strategy="greedy", expansion=expansion), seconds=2)
    run.tell(ExpansionAnswered(expansion=expansion, author="mover", reason="no move applies"), seconds=5)
    run.tell(Noted(text="the disk was slow"), seconds=100)
    found = run.ended().report()
    assert found.problems[0].search_s == 7.0
    assert found.busy_s == 107.0
    assert found.spent_s["expansion_answered"] == 5.0
    assert found.notes == ("the disk was slow",)


def test_gain_in_the_model_is_over_what_the_shares_are_of(make):
    run = Telling(make).started().ranked(region()).found()
    eager = run.baseline(300.0)
    best = run.challenger(eager, (300.0, 50.0))
    run.decided(best, kept=False, reason="a faster baseline has come, which has to be beaten first")
    run.decided(eager, kept=False, reason="baseline: certified at 3.00 times the other's")
    compiled = run.baseline(100.0, backend="compiled")
    run.compared(run.verdict(best, 50.0), compiled, best, (100.0, 50.0))
    found = run.verified(best).ended().report().problems[0]
    assert (found.baseline, found.gain.ratio) == ("torch.compile", 2.0)
    assert found.in_place == 6.0
    assert found.calls_to_pay == pytest.approx(found.search_s / (500e-6 * 5 / 6))


def test_slices_add_up_to_the_whole_and_only_what_is_installed_shrinks(make):
    found = shipped_run(make).report()
    assert [(one.name, one.problem) for one in found.slices] == [
        ("rmsnorm 8x64 fp16", 0),
        ("left alone", None),
        (BETWEEN, None),
    ]
    assert sum(one.before for one in found.slices) == pytest.approx(1.0)
    assert [one.after for one in found.slices] == pytest.approx([0.25, 0.2, 0.3])
    assert found.measured_after.ratio == pytest.approx(1 / 1.25)
    assert [one.why for one in found.left_out] == ["no author for it yet"]


def test_best_so_far_follows_the_title_up_and_down(make):
    run = Telling(make).started().found()
    base = run.baseline(100.0)
    first = run.challenger(base, (100.0, 50.0), "first")
    run.challenger(first, (50.0, 80.0), "slower", kept=False)
    second = run.challenger(first, (50.0, 40.0), "second")
    run.decided(second, kept=False, reason="rolled back: the claims do not add up")
    steps = run.report().problems[0].steps
    assert [step.best for step in steps] == pytest.approx([1.0, 2.0, 2.0, 2.0])
    assert [step.speed for step in steps] == pytest.approx([1.0, 2.0, 1.25, 2.5])
    assert [step.fate for step in steps] == [Fate.KEPT, Fate.KEPT, Fate.REVERTED, Fate.KEPT]


def test_candidates_without_a_certificate_have_no_speed(make):
    run = Telling(make).started().found()
    run.baseline(100.0)
    wrong = make.candidate("wrong")
    run.tell(CandidateProposed(problem_hash=run.problem.hash, candidate=make.candidate("waiting")))
    verdict = run.verdict(wrong, failed=Stage.SMOKE)
    run.decided(wrong, kept=False, reason=gate.rejected(verdict).reason)
    found = run.report()
    by_note = [(one.fate, one.speed, one.status) for one in found.problems[0].experiments]
    assert by_note[1:] == [(Fate.OPEN, None, ""), (Fate.FAILED, None, "wrong")]
    assert (found.count.candidates, found.count.failed, found.count.evaluations) == (2, 1, 2)


def test_fates_tell_who_was_outrun_from_who_failed(make):
    run = Telling(make).started().found()
    run.baseline(200.0, kept=False)
    outrun = run.challenger(run.baseline(100.0, backend="compiled"), (100.0, 50.0), "outrun")
    caught = run.challenger(outrun, (50.0, 25.0), "caught")
    verdicts = {
        one.body.evaluation.candidate_hash: one.body.evaluation
        for one in run.events
        if isinstance(one.body, Evaluated)
    }
    crash = Disqualified(candidate_hash=caught.hash, status=Status.CRASHED, reason="died in round 3")
    run.tell(
        Decided(decision=gate.disqualified(verdicts[caught.hash], crash)),
        Decided(decision=gate.bar_raised(verdicts[outrun.hash])),
    )
    fates = [one.fate for one in run.report().problems[0].experiments]
    assert fates == [Fate.REVERTED, Fate.KEPT, Fate.REVERTED, Fate.FAILED]


def test_share_of_the_floor_is_the_floor_over_the_winners_time(make):
    run = Telling(make).started().found()
    base = run.baseline(100.0, floor_us=40.0)
    best = make.candidate("best")
    run.compared(run.verdict(best, 50.0, floor_us=40.0), base, best, (100.0, 50.0))
    found = run.report().problems[0]
    assert (found.floor_us, found.floor_fraction) == (40.0, 0.8)
    assert found.points[0].floor == pytest.approx(found.points[0].after * 50 / 40)


def test_reason_of_the_stop_and_the_course_of_the_search_are_told(make):
    run = Telling(make).started().found()
    expansion = Expansion(problem_hash=run.problem.hash)
    run.tell(ExpansionAsked(strategy="mcts", expansion=expansion))
    run.tell(ExpansionAnswered(expansion=expansion, author="mover"))
    run.tell(SearchEscalated(problem_hash=run.problem.hash, level=1, reason="5 reverts in a row"))
    run.tell(ProblemEnded(problem_hash=run.problem.hash, rule="reverts", reason="5 reverts in a row, twice"))
    found = run.ended().report().problems[0]
    assert found.stopped == "5 reverts in a row, twice"
    assert found.search == (
        "1 expansion asked for by mcts, 1 of them answered with nothing new; bolder means: 5 reverts in a row"
    )


def test_kind_of_event_nobody_knows_counts_and_disturbs_nothing(make):
    class Invented(Frozen):
        kind: str = "invented"
        problem_hash: str

    run = shipped_run(make)
    known = run.report()
    run.tell(Invented(problem_hash=run.problem.hash), seconds=2)
    found = run.report()
    assert found.events == known.events | {"invented": 1}
    assert found.problems[0].search_s == known.problems[0].search_s + 2
    assert found.headline == known.headline


def test_tree_without_its_events_gives_the_same_report_but_for_times(make):
    run = shipped_run(make)
    tree = fold([event.body for event in run.events])
    found, known = facts(without_times(tree), Around("run", "kernels")), run.report()
    assert found.headline == known.headline
    assert found.problems[0].steps == known.problems[0].steps
    assert found.problems[0].gain == known.problems[0].gain
    assert (found.busy_s, found.problems[0].search_s, found.problems[0].calls_to_pay) == (None, None, None)


@pytest.mark.parametrize(
    ("config", "rest"),
    [({"against": "eager"}, "eager"), ({"against": "compiled"}, "inductor"), ({"rest": "eager"}, "eager")],
)
def test_the_line_that_uses_the_result_says_who_runs_the_rest(make, config, rest):
    run = shipped_run(make)
    run.started(**config)
    more = "" if rest == "eager" else ', rest="inductor"'
    assert run.report().use == f'model = kernelwright.apply(model, "kernels"{more})'


def test_certificate_names_stages_comparisons_and_the_error_in_the_model(make):
    run = Telling(make).started().found()
    base, best = run.baseline(100.0), make.candidate("best")
    verdict = run.verdict(
        best, 50.0, profile=Profile.SHIP, environment={"sandbox": "mounts+seccomp"}, seconds=12.0
    )
    run.compared(verdict, base, best, (100.0, 50.0))
    found = run.verified(best).ended().report().problems[0].certificate
    assert (found.profile, found.judge_version, found.clock) == ("ship", verdict.judge_version, "judge-slope")
    assert [one.name for one in found.stages] == [stage.value for stage in Stage]
    assert [(one.incumbent, one.interval.ratio) for one in found.comparisons] == [("eager", 2.0)]
    assert (found.hidden_shapes, found.error) == (8, 1.25)
    assert [(one.cold_us, one.floor_us, one.sol_score) for one in found.times] == [(50.0, None, None)]


def test_certificate_lists_times_with_floor_and_score(make):
    run = Telling(make).started().found()
    base, best = run.baseline(100.0), make.candidate("best")
    verdict = run.verdict(best, 40.0, profile=Profile.SHIP, floor_us=20.0)
    run.compared(verdict, base, best, (100.0, 40.0))
    report = run.verified(best).ended().report()
    (time,) = report.problems[0].certificate.times
    assert (time.floor_share, time.sol_score) == (0.5, pytest.approx(1 / (1 + 20 / 80)))
    assert ">0.80</td>" in page(report)
    assert "| SOL score |" in document(report, "progress.png")


def test_where_a_baseline_keeps_its_title_the_fastest_who_wanted_it_is_told(make):
    run = Telling(make).started().found()
    base = run.baseline(100.0)
    for number, time_us in enumerate((125.0, 400.0)):
        run.challenger(base, (100.0, time_us), f"int kernel_fn(); // {number}", kept=False)
    (problem,) = run.ended().report().problems
    assert problem.verdict.startswith("not faster: x0.800 ")
