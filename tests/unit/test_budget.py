"""When a search stops and whose turn is next: pure readings of the tree, the settings and the time that is spent."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.core.candidate import Author
from kernelwright.core.config import RunConfig, resolve
from kernelwright.core.errors import BadConfig
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    ExpansionAnswered,
    ExpansionAsked,
    LessonLearnt,
    LlmAsked,
    ModelRanked,
    ProblemEnded,
    ProblemFound,
    RankedRegion,
    Screened,
    SearchEscalated,
)
from kernelwright.core.exchange import Exchange, Totals, past_tokens
from kernelwright.core.expansion import Expansion
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Tree, fold
from kernelwright.core.verdict import CaseRatio, Comparison, Outcome, Screening, Status
from kernelwright.engine import budget, gate
from kernelwright.engine.lessons import lesson_of
from kernelwright.engine.run import Run, Spent
from kernelwright.engine.scheduler import next_problem, promise
from kernelwright.engine.seeds import Seeds


def run_of(tree: Tree, problem: Problem, spent: Spent | None = None, **settings: object) -> Run:
    """Return a run that may only be looked at."""

    def record(bodies: Sequence[Body]) -> None:
        raise AssertionError(f"a rule appended {bodies}")

    config = RunConfig.model_validate({"op": "rmsnorm", **settings})
    run = Run(config, problem.device, 1, Path(), record, tree, lambda _: None, Seeds((), 1))
    run.spent = spent or Spent()
    return run


def baseline(
    make: SimpleNamespace, problem: Problem, time_us: float = 100.0, floor_us: float | None = None
) -> list[Body]:
    """Return the events of a baseline that holds the title."""
    candidate = make.baseline()
    timing = make.timing(problem, time_us)
    cases = tuple(one.model_copy(update={"floor_us": floor_us}) for one in timing.cases)
    verdict = make.evaluation(candidate, problem, timing=timing.model_copy(update={"cases": cases}))
    return [
        ProblemFound(problem=problem),
        CandidateProposed(problem_hash=problem.hash, candidate=candidate),
        Evaluated(evaluation=verdict),
        Decided(decision=gate.first_of_problem(verdict)),
    ]


def challenger(make: SimpleNamespace, problem: Problem, number: int, ratio: float) -> list[Body]:
    """Return the events of a kernel that was raced against the baseline."""
    candidate = make.candidate(f"int kernel_fn(); // {number}", parents=("a",), author=Author(name="mover"))
    verdict = make.evaluation(candidate, problem, timing=make.timing(problem, 100.0 / ratio))
    outcome = Outcome.FASTER if ratio > 1 else Outcome.NOT_FASTER
    found = make.comparison(
        make.baseline(),
        candidate,
        problem,
        ratio=ratio,
        ci_low=ratio * 0.99,
        ci_high=ratio * 1.01,
        outcome=outcome,
    )
    told: list[Body] = [
        CandidateProposed(problem_hash=problem.hash, candidate=candidate),
        Evaluated(evaluation=verdict),
        Compared(comparison=found),
        Decided(decision=gate.decide(verdict, found)),
    ]
    if ratio > 1:
        told.append(LessonLearnt(lesson=lesson_of(problem, candidate, found)))
    return told


def barren(problem: Problem, number: int) -> list[Body]:
    """Return the events of an expansion that brought nothing."""
    wanted = Expansion(problem_hash=problem.hash, diagnosis=number)
    return [
        ExpansionAsked(strategy="greedy", expansion=wanted),
        ExpansionAnswered(expansion=wanted, author="auto", reason="nothing"),
    ]


@pytest.fixture
def problem(make: SimpleNamespace) -> Problem:
    return make.problem(share=0.5)


@pytest.mark.parametrize(("model", "searching"), [("model.py:build", 60.0), (None, 75.0)])
def test_a_part_of_the_time_is_left_for_finishing(
    make, problem: Problem, model: str | None, searching: float
) -> None:
    tree = fold(baseline(make, problem))
    assert budget.spent_up(run_of(tree, problem, Spent(searching - 1), budget_s=100, model=model)) is None
    stop = budget.spent_up(run_of(tree, problem, Spent(searching), budget_s=100, model=model))
    assert stop is not None
    assert stop.rule == "budget"


def test_where_judging_takes_long_more_is_left_for_it(make, problem: Problem) -> None:
    events = [*baseline(make, problem), *challenger(make, problem, 1, 2.0)]
    for seconds, searching in ((1.0, 60.0), (15.0, 25.0)):
        slow = [
            Evaluated(evaluation=one.evaluation.model_copy(update={"seconds": seconds}))
            if isinstance(one, Evaluated)
            else one
            for one in events
        ]
        run = run_of(fold(slow), problem, Spent(searching), budget_s=100, model="model.py:build")
        assert budget.reserved(run) == pytest.approx(100 - searching)
        assert budget.spent_up(run) is not None


def test_after_a_long_step_the_next_may_be_as_long(make, problem: Problem) -> None:
    spent = Spent()
    spent.add(problem.hash, 30.0)
    spent.add(problem.hash, 11.0)
    assert (spent.seconds, spent.by_problem, spent.longest) == (41.0, {problem.hash: 41.0}, 30.0)
    tree = fold(baseline(make, problem))
    run = run_of(tree, problem, spent, budget_s=100, model="model.py:build")
    assert budget.spent_up(run) is not None, "20 beyond the usual 10, and 40 for finishing"
    assert budget.spent_up(run_of(tree, problem, Spent(41.0), budget_s=100, model="model.py:build")) is None


def busy(make: SimpleNamespace, problem: Problem) -> list[Body]:
    """Return the events of a problem with two verdicts, a comparison and a look of 0.6 s each, and two llm calls."""
    exchange = Exchange(
        role="writer", provider="openai", model="m", prompt_hash="p", reply_hash="r",
        tokens_in=70, tokens_out=30, cost=0.25, seconds=2.0,
    )  # fmt: skip
    wanted = Expansion(problem_hash=problem.hash)
    said: list[Body] = [LlmAsked(expansion=wanted, exchange=exchange)] * 2
    look = Screening(
        candidate_hash=make.baseline().hash, problem_hash=problem.hash, values={}, status=Status.ACCEPTED,
        case_hash=problem.cases[0].hash, seconds=0.6,
    )  # fmt: skip
    told = [*baseline(make, problem), *said, *challenger(make, problem, 1, 2.0), Screened(screening=look)]
    for place, one in enumerate(told):
        if isinstance(one, Evaluated):
            told[place] = Evaluated(evaluation=one.evaluation.model_copy(update={"seconds": 0.6}))
        elif isinstance(one, Compared):
            told[place] = Compared(comparison=one.comparison.model_copy(update={"seconds": 0.6}))
    return told


@pytest.mark.parametrize(
    ("setting", "reached", "beyond", "rule"),
    [
        ("max_evaluations", 2, 3, "evaluations"),
        ("max_device_s", 2.4, 2.5, "device"),
        ("max_cost", 0.5, 0.51, "cost"),
        ("max_tokens", 200, 201, "tokens"),
        ("target_speedup", 1.3, 1.4, "target"),
    ],
)
def test_every_limit_of_a_run_stops_it_by_its_name(
    make, problem: Problem, setting: str, reached: float, beyond: float, rule: str
) -> None:
    tree = fold(busy(make, problem))
    assert budget.spent_up(run_of(tree, problem)) is None
    assert budget.spent_up(run_of(tree, problem, **{setting: beyond})) is None
    stop = budget.spent_up(run_of(tree, problem, **{setting: reached}))
    assert stop is not None
    assert stop.rule == rule


@pytest.mark.parametrize(
    ("setting", "reached", "beyond", "reason"),
    [
        ("problem_evaluations", 2, 3, "2 evaluations were made of it"),
        ("problem_device_s", 2.4, 2.5, "2 s on the device were spent on it"),
        ("problem_cost", 0.5, 0.51, "problem_cost 0.5 is reached: $0.5000 spent in 2 calls"),
        ("problem_tokens", 200, 201, "problem_tokens 200 is reached: 200 tokens in 2 calls"),
    ],
)
def test_every_limit_of_a_problem_ends_it_by_its_name_and_leaves_the_others_alone(
    make, setting: str, reached: float, beyond: float, reason: str
) -> None:
    large, small = two(make)
    tree = fold([*busy(make, large), *baseline(make, small)])
    assert budget.worn_out(run_of(tree, large), large) is None
    assert budget.worn_out(run_of(tree, large, **{setting: beyond}), large) is None
    run = run_of(tree, large, **{setting: reached})
    assert budget.worn_out(run, large) == (setting, reason)
    assert budget.worn_out(run, small) is None
    assert budget.spent_up(run) is None


def test_what_was_asked_of_llms_before_a_gain_still_counts_for_the_problem(make, problem: Problem) -> None:
    told = busy(make, problem)
    author = next(one.candidate for one in told[5:] if isinstance(one, CandidateProposed))
    wanted = Expansion(problem_hash=problem.hash)
    answered: list[Body] = [
        ExpansionAsked(strategy="greedy", expansion=wanted),
        ExpansionAnswered(expansion=wanted, author="llm", candidates=(author.hash,)),
    ]
    place = next(at for at, one in enumerate(told[4:], 4) if isinstance(one, Decided))
    tree = fold([*told[:place], *answered, *told[place:]])
    assert tree.quests[problem.hash].exchanges == [], "the gain has been charged with them"
    assert budget.worn_out(run_of(tree, problem, problem_tokens=200), problem).rule == "problem_tokens"


def test_a_limit_in_tokens_ends_when_it_cannot_be_kept() -> None:
    assert past_tokens(Totals(uncounted=1, calls=1), None) is None
    words = past_tokens(Totals(uncounted=1, calls=1), 10**9)
    assert words == "--max-tokens 1000000000 cannot be kept: a server did not count the tokens of 1 answers"


def test_a_look_and_a_comparison_of_an_older_journal_took_no_time_and_are_the_same_ones(
    make, problem
) -> None:
    look = next(one.screening for one in busy(make, problem) if isinstance(one, Screened))
    found = make.comparison(make.baseline(), make.candidate(), problem, seconds=0.6)
    for kind, now in ((Screening, look), (Comparison, found)):
        old = kind.model_validate_json(json.dumps({**now.model_dump(mode="json", exclude={"seconds"})}))
        assert (old.seconds, old.hash) == (0.0, now.hash)


def test_the_expected_speed_up_follows_amdahl(make, problem: Problem) -> None:
    tree = fold([*baseline(make, problem), *challenger(make, problem, 1, 2.0)])
    assert budget.expected_speedup(tree) == pytest.approx(1 / 0.75)


def test_five_reverts_in_a_row_are_enough_and_a_keep_begins_anew(make, problem: Problem) -> None:
    four = [body for number in range(4) for body in challenger(make, problem, number, 0.9)]
    begun = [*baseline(make, problem), *four]
    assert budget.is_stuck(run_of(fold(begun), problem), problem) == ""
    fifth = [*begun, *challenger(make, problem, 5, 0.9)]
    assert budget.is_stuck(run_of(fold(fifth), problem), problem) == "5 candidates in a row were not kept"
    assert budget.is_stuck(run_of(fold([*fifth, *challenger(make, problem, 6, 1.5)]), problem), problem) == ""
    bolder = SearchEscalated(problem_hash=problem.hash, level=1, reason="bolder")
    assert budget.is_stuck(run_of(fold([*fifth, bolder]), problem), problem) == ""


def test_answers_with_nothing_new_are_counted_too(make, problem: Problem) -> None:
    events = [*baseline(make, problem), *(body for number in range(5) for body in barren(problem, number))]
    assert (
        budget.is_stuck(run_of(fold(events), problem), problem) == "5 expansions in a row brought nothing new"
    )


def test_near_the_floor_long_enough_or_often_enough_ends_a_problem(make, problem: Problem) -> None:
    near = fold(baseline(make, problem, 100.0, 97.5))
    far = fold(baseline(make, problem, 100.0, 90.0))
    assert budget.worn_out(run_of(near, problem), problem).rule == "floor"
    assert budget.worn_out(run_of(far, problem), problem) is None
    spent = Spent(7200.0, {problem.hash: 7200.0})
    assert budget.worn_out(run_of(far, problem, spent), problem).rule == "time"
    asked = fold([*baseline(make, problem), *barren(problem, 0)])
    assert budget.worn_out(run_of(asked, problem, max_expansions=1), problem).rule == "expansions"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("10m", 600.0), ("1h30m", 5400.0), ("4m30s", 270.0), ("1.5h", 5400.0), ("45", 45.0)],
)
def test_times_are_written_with_their_unit(text: str, seconds: float) -> None:
    assert resolve({"budget_s": text}, {}, "defaults").budget_s == seconds


@pytest.mark.parametrize("text", ["ten minutes", "", "5d", "-3m"])
def test_what_is_no_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadConfig, match="budget_s"):
        resolve({"budget_s": text}, {}, "defaults")


def two(make: SimpleNamespace) -> tuple[Problem, Problem]:
    large = make.problem(share=0.5)
    small = make.problem(cases=(make.case(rows=16),), share=0.1)
    return large, small


def test_the_largest_time_to_win_comes_first_and_what_is_not_begun_promises_its_whole_share(make) -> None:
    large, small = two(make)
    assert next_problem(fold([ProblemFound(problem=small), ProblemFound(problem=large)])) == large.hash
    assert next_problem(fold([*baseline(make, large), ProblemFound(problem=small)])) == large.hash
    near_its_floor = baseline(make, large, time_us=100.0, floor_us=95.0)
    assert next_problem(fold([*near_its_floor, ProblemFound(problem=small)])) == small.hash
    both = [*baseline(make, large), *baseline(make, small)]
    assert next_problem(fold(both)) == large.hash


def test_what_is_not_begun_promises_what_the_ranking_says_it_could_gain(make) -> None:
    large, small = two(make)
    regions = tuple(
        RankedRegion(name="region", op=one.op, count=1, share=one.share, gain=gain)
        for one, gain in ((small, 1.09), (large, 1.02))
    )
    ranked = ModelRanked(against="compiled", total_us=100.0, eager_us=150.0, limit=1.2, regions=regions)
    found = [ProblemFound(problem=large), ProblemFound(problem=small)]
    assert next_problem(fold([ranked, *found])) == small.hash
    assert next_problem(fold(found)) == large.hash, "without a ranking it is the share"


def test_what_was_begun_is_finished_first(make) -> None:
    large, small = two(make)
    asked = ExpansionAsked(strategy="greedy", expansion=Expansion(problem_hash=small.hash))
    assert next_problem(fold([*baseline(make, large), *baseline(make, small), asked])) == small.hash


def test_reverts_turn_the_search_to_another_problem(make) -> None:
    large, small = two(make)
    events = [*baseline(make, large), *baseline(make, small)]
    worn = [body for number in range(6) for body in challenger(make, large, number, 0.9)]
    assert next_problem(fold([*events, *worn])) == small.hash


def test_a_gain_leaves_less_to_win(make) -> None:
    large, _ = two(make)
    before, after = baseline(make, large), [*baseline(make, large), *challenger(make, large, 1, 4.0)]
    assert promise(fold(after), large.hash) < promise(fold(before), large.hash) / 3


def test_a_problem_that_was_given_up_is_taken_up_when_another_learns_something(make) -> None:
    large, small = two(make)
    events = [*baseline(make, large), *baseline(make, small)]
    given_up = [
        ProblemEnded(problem_hash=small.hash, rule="stuck", reason="5 in a row"),
        ProblemEnded(problem_hash=large.hash, rule="time", reason="2 h"),
    ]
    assert next_problem(fold([*events, *given_up])) is None
    taught = [*events, *given_up[:1], *challenger(make, large, 1, 1.5), *given_up[1:]]
    assert next_problem(fold(taught)) == small.hash
    # It is asked once more; when nothing comes of that, it has heard what there is to hear.
    again = [*taught, *barren(small, 0), given_up[0]]
    assert next_problem(fold(again)) is None


def test_a_gain_in_another_language_is_no_reason_to_take_a_problem_up(make) -> None:
    large, small = two(make)
    own = challenger(make, small, 0, 0.9)
    stuck = ProblemEnded(problem_hash=small.hash, rule="stuck", reason="5 in a row")
    ended = ProblemEnded(problem_hash=large.hash, rule="time", reason="2 h")
    gain = challenger(make, large, 1, 1.5)
    lesson = gain[-1].lesson
    others = gain[-1].model_copy(update={"lesson": lesson.model_copy(update={"backend": "triton"})})
    before = [*baseline(make, large), *baseline(make, small), *own, stuck]
    assert lesson.backend == own[0].candidate.backend
    assert next_problem(fold([*before, *gain, ended])) == small.hash
    assert next_problem(fold([*before, *gain[:-1], others, ended])) is None


def test_a_shorter_kernel_of_equal_speed_is_kept_and_a_slower_one_is_not(make, problem: Problem) -> None:
    long = make.candidate("int kernel_fn() { int a = 1; int b = 2; int c = 3; return a + b + c; }")
    short = make.candidate("int kernel_fn() { return 6; }")

    def found(log_ratio: float, **changes: object) -> Comparison:
        ratio = math.exp(log_ratio)
        same = {"ratio": ratio, "ci_low": ratio, "ci_high": ratio, "pairs": 7, "log_ratios": (log_ratio,) * 7}
        return make.comparison(long, short, problem, **({"outcome": Outcome.NOT_FASTER} | same | changes))

    equal = found(0.0)
    assert gate.is_simpler(short, long, equal)
    assert gate.simpler(make.evaluation(short, problem), equal).kept
    assert gate.is_simpler(short, long, found(0.0, outcome=Outcome.NOT_PROVEN))
    assert not gate.is_simpler(long, short, equal)
    assert not gate.is_simpler(short, make.baseline(), equal)
    assert not gate.is_simpler(short, long, found(-0.02))
    assert not gate.is_simpler(short, long, found(0.0, pairs=6, log_ratios=(0.0,) * 6))
    assert not gate.is_simpler(short, long, found(0.0, slower_case="rmsnorm 4x64 fp32"))


def test_a_shorter_kernel_that_one_case_pays_for_is_not_kept(make, problem: Problem) -> None:
    long = make.candidate("int kernel_fn() { int a = 1; int b = 2; int c = 3; return a + b + c; }")
    short = make.candidate("int kernel_fn() { return 6; }")

    def found(challenger_us: float) -> Comparison:
        rows = [("one", 10.0, 10.0), ("two", 10.0, challenger_us)]
        cases = tuple(
            CaseRatio(
                case_hash=name,
                label=name,
                ratio=old / new,
                ci_low=old / new,
                ci_high=old / new,
                incumbent_us=old,
                challenger_us=new,
                times=((old, new),) * 7,
            )
            for name, old, new in rows
        )
        equal = {"ratio": 1.0, "ci_low": 1.0, "ci_high": 1.0, "pairs": 7, "log_ratios": (0.0,) * 7}
        return make.comparison(long, short, problem, outcome=Outcome.NOT_FASTER, cases=cases, **equal)

    assert gate.is_simpler(short, long, found(10.1))
    assert not gate.is_simpler(short, long, found(10.3))
