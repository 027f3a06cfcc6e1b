"""The loop's own decisions, against a judge that answers from a table: baselines, audits, lost titles, confirmation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.device import DeviceKind
from kernelwright.core.errors import (
    BackendUnavailable,
    BlobMissing,
    KernelwrightError,
    ModelNotLoadable,
    ServiceDied,
    UnfairClock,
)
from kernelwright.core.events import Body, CandidateProposed, Decided, ProblemFound, RunEnded
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Comparison, Evaluation, Outcome, Profile, Stage, Status
from kernelwright.engine import gate, loop, titles
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds, compiled_baseline, seed

SPREAD = 1.02
"""Half width of every interval, as a factor."""


@dataclass
class TableJudge:
    """A judge whose answers follow from the candidates' true times, but for what a test makes it claim."""

    make: object
    times_us: dict[str, float]
    claims: dict[tuple[str, str], float] = field(default_factory=dict)
    """Ratio by incumbent and challenger where it is not the true one."""
    fails_when_timed: set[str] = field(default_factory=set)
    fails_ship: set[str] = field(default_factory=set)
    fails: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, bool]] = field(default_factory=list)
    """Incumbent, challenger, and whether it was a confirmation."""

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        is_bad = profile is Profile.SHIP and candidate.hash in self.fails_ship
        failed = Stage.SANITIZER if is_bad else Stage.SMOKE if candidate.hash in self.fails else None
        timing = (
            {} if failed else {"timing": self.make.timing(problem, self.times_us.get(candidate.hash, 10.0))}
        )
        return self.make.evaluation(candidate, problem, failed=failed, profile=profile, **timing)

    def compare(
        self,
        problem: Problem,
        incumbent: Candidate,
        challenger: Candidate,
        earlier: Comparison | None = None,
        *,
        confirm: bool = False,
    ) -> Comparison | Disqualified:
        assert earlier is None
        self.asked.append((incumbent.hash, challenger.hash, confirm))
        for one in (incumbent, challenger):
            if one.hash in self.fails_when_timed:
                return Disqualified(candidate_hash=one.hash, status=Status.STATEFUL, reason="it failed")
        pair = (incumbent.hash, challenger.hash)
        ratio = self.claims.get(pair, self.times_us[pair[0]] / self.times_us[pair[1]])
        return self.make.comparison(
            incumbent,
            challenger,
            problem,
            ratio=ratio,
            ci_low=ratio / SPREAD,
            ci_high=ratio * SPREAD,
            outcome=Outcome.FASTER if ratio > SPREAD else Outcome.NOT_FASTER,
            starts=3 if confirm else 1,
            **self.pairs_of(ratio),
        )

    def pairs_of(self, ratio: float) -> dict[str, object]:
        """Return the pairs of a race that futility stopped as early as it can."""
        return {"pairs": 7, "log_ratios": (math.log(ratio),) * 7}

    def race(
        self,
        problem: Problem,
        incumbent: Candidate,
        challengers: Sequence[Candidate],
        earlier: Sequence[Comparison | None] = (),
    ) -> tuple[Comparison | Disqualified, ...]:
        assert set(earlier) <= {None}
        return tuple(self.compare(problem, incumbent, one) for one in challengers)

    def prepare(self, problem: Problem, candidate: Candidate) -> None:
        """Build nothing."""


@dataclass
class Story:
    """A run of one problem, its events, and a line of candidates of which the first is the baseline."""

    run: Run
    problem: Problem
    judge: TableJudge
    line: list[Candidate]
    events: list[Body]

    @property
    def titles(self) -> list[int]:
        """Return who holds a title, by place in the line."""
        places = {one.hash: place for place, one in enumerate(self.line)}
        return [places[key] for key in self.run.tree.titles[self.problem.hash]]

    @property
    def asked(self) -> list[tuple[int, int, bool]]:
        """Return the comparisons that were asked for, by place in the line."""
        places = {one.hash: place for place, one in enumerate(self.line)}
        return [(places[old], places[new], confirm) for old, new, confirm in self.judge.asked]

    def decisions(self) -> list[tuple[int, bool, str]]:
        """Return every decision: whom it is about, whether kept, and the first word of the reason."""
        places = {one.hash: place for place, one in enumerate(self.line)}
        found = [event.decision for event in self.events if isinstance(event, Decided)]
        return [(places[one.candidate_hash], one.kept, one.reason.split(":")[0]) for one in found]

    def challenge(self, count: int) -> None:
        """Let the next candidates of the line challenge the best."""
        first = len(self.run.tree.nodes)
        for challenger in self.line[first : first + count]:
            self.enter(challenger)
            node = self.run.tree.nodes[self.problem.hash, challenger.hash]
            while node.decision is None or titles.is_audit_due(self.run, self.problem):
                loop.step(self.run, self.judge, self.problem)

    def enter(self, challenger: Candidate) -> None:
        """Have a candidate proposed."""
        self.run.record([CandidateProposed(problem_hash=self.problem.hash, candidate=challenger)])

    def confirm(self) -> None:
        """Put the best through the full profile."""
        titles.confirm(self.run, self.judge, self.problem)


def ever_shorter(make, story: Story, loss: float) -> None:
    """Make every candidate of the line after the first a tenth shorter than the last, and this much slower."""
    lengths = [round(100 * 0.85**place) for place in range(len(story.line))]
    story.line[2:] = [make.candidate("int kernel_fn();" + "int a;" * count) for count in lengths[2:]]
    story.line[1] = make.candidate("int kernel_fn();" + "int a;" * lengths[1])
    story.judge.times_us |= {one.hash: 50.0 * (1 + loss) ** place for place, one in enumerate(story.line[1:])}


@pytest.fixture
def story(make, tmp_path: Path) -> Story:
    """Return a run whose baseline holds the title; every candidate of the line is 1.25 times as fast as the last."""
    problem, baseline = make.problem(), make.baseline()
    line = [baseline, *(make.candidate(f"int kernel_fn(); // {place}") for place in range(1, 13))]
    judge = TableJudge(make, {one.hash: 100 / 1.25**place for place, one in enumerate(line)})
    tree, events = Tree(), []

    def record(bodies: Sequence[Body]) -> None:
        for body in bodies:
            events.append(body)
            tree.apply(body)

    config = RunConfig(model="m.py:build")
    run = Run(config, problem.device, 1, tmp_path, record, tree, lambda _: None, Seeds((), 1))
    record([ProblemFound(problem=problem)])
    verdict = titles.evaluate(run, judge, problem, baseline)
    record([Decided(decision=gate.first_of_problem(verdict))])
    return Story(run, problem, judge, line, events)


def test_four_keeps_are_not_audited_and_the_fifth_is(story: Story) -> None:
    story.challenge(4)
    assert story.asked == [(0, 1, False), (1, 2, False), (2, 3, False), (3, 4, False)]
    story.challenge(1)
    assert story.asked[4:] == [(4, 5, False), (0, 5, False)]
    assert story.titles == [0, 1, 2, 3, 4, 5]


def test_claims_that_add_up_pass_the_second_audit_too(story: Story) -> None:
    story.challenge(10)
    assert [pair for pair in story.asked if pair[0] == 0 and pair[1] > 1] == [(0, 5, False), (0, 10, False)]
    assert story.titles == list(range(11))


def test_five_keeps_that_do_not_add_up_are_rolled_back_to_the_baseline(story: Story) -> None:
    story.judge.times_us |= {one.hash: 90.0 for one in story.line[1:]}
    story.judge.claims = {
        (old.hash, new.hash): 1.25 for old, new in zip(story.line, story.line[1:], strict=False)
    }
    story.challenge(5)
    assert story.titles == [0]
    assert story.decisions()[-5:] == [(place, False, "rolled back") for place in (5, 4, 3, 2, 1)]


def test_only_the_keeps_since_the_last_audit_are_rolled_back(story: Story) -> None:
    fifth = story.judge.times_us[story.line[5].hash]
    story.judge.times_us |= {one.hash: fifth for one in story.line[6:]}
    pairs = zip(story.line[5:], story.line[6:], strict=False)
    story.judge.claims = {(old.hash, new.hash): 1.25 for old, new in pairs}
    story.challenge(10)
    assert story.titles == [0, 1, 2, 3, 4, 5]
    story.judge.claims[story.line[5].hash, story.line[11].hash] = 1.25
    story.challenge(1)
    assert story.titles == [0, 1, 2, 3, 4, 5, 11]


def test_claims_are_followed_through_holders_that_lost_their_title(story: Story) -> None:
    story.challenge(3)
    story.judge.fails_when_timed = {story.line[3].hash}
    story.challenge(1)
    assert story.titles == [0, 1, 2, 4]
    story.challenge(2)
    assert story.asked[-1] == (0, 6, False)
    assert story.titles == [0, 1, 2, 4, 5, 6]


def test_a_holder_that_fails_in_the_audit_loses_its_title(story: Story) -> None:
    story.challenge(4)
    compare = story.judge.compare

    def once_more(*arguments: object, **more: bool) -> Comparison | Disqualified:
        if len(story.judge.asked) == 5:
            story.judge.fails_when_timed = {story.line[5].hash}
        return compare(*arguments, **more)

    story.judge.compare = once_more
    story.challenge(1)
    assert story.titles == [0, 1, 2, 3, 4]
    assert story.decisions()[-1] == (5, False, "stateful")


def test_a_holder_that_fails_while_timed_is_dethroned_and_the_challenger_meets_the_one_before(
    story: Story,
) -> None:
    story.challenge(2)
    story.judge.fails_when_timed = {story.line[2].hash}
    story.challenge(1)
    assert story.asked[2:] == [(2, 3, False), (1, 3, False)]
    assert story.decisions()[-2:] == [(2, False, "stateful"), (3, True, "proven faster")]
    assert story.titles == [0, 1, 3]


def test_a_shorter_kernel_that_futility_stopped_at_equal_speed_takes_the_title(make, story: Story) -> None:
    ever_shorter(make, story, loss=0.0)
    story.challenge(2)
    comparison = story.run.tree.nodes[story.problem.hash, story.line[2].hash].comparisons[-1]
    assert comparison.outcome is Outcome.NOT_FASTER
    assert story.decisions()[-1] == (2, True, "simpler at equal speed")
    assert story.titles == [0, 1, 2]


def test_a_shorter_kernel_that_is_two_percent_slower_does_not_take_the_title(make, story: Story) -> None:
    ever_shorter(make, story, loss=0.02)
    story.challenge(2)
    assert story.decisions()[-1] == (2, False, "not faster")
    assert story.titles == [0, 1]


def test_keeps_for_simplicity_are_audited_and_stay_if_the_speed_did(make, story: Story) -> None:
    ever_shorter(make, story, loss=0.0)
    story.challenge(5)
    assert story.asked[-1] == (0, 5, False)
    assert story.titles == [0, 1, 2, 3, 4, 5]


def test_many_keeps_each_a_little_slower_are_rolled_back(make, story: Story, monkeypatch) -> None:
    monkeypatch.setattr(f"{__name__}.SPREAD", 1.001)
    ever_shorter(make, story, loss=0.006)
    story.challenge(5)
    kept = [(place, True, "simpler at equal speed") for place in (2, 3, 4, 5)]
    assert story.decisions()[2:6] == kept
    assert story.titles == [0]


def test_of_two_challengers_that_are_equally_fast_in_one_race_one_is_kept(story: Story) -> None:
    story.judge.times_us[story.line[2].hash] = story.judge.times_us[story.line[1].hash]
    for challenger in story.line[1:3]:
        story.enter(challenger)
    while any(node.decision is None for node in story.run.tree.nodes.values()):
        loop.step(story.run, story.judge, story.problem)
    assert story.titles == [0, 1]
    assert story.decisions()[-2:] == [(1, True, "proven faster"), (2, False, "outrun")]


def test_a_challenger_that_fails_while_timed_leaves_the_holder_its_title(story: Story) -> None:
    story.challenge(1)
    story.judge.fails_when_timed = {story.line[2].hash}
    story.challenge(1)
    assert (story.titles, story.decisions()[-1]) == ([0, 1], (2, False, "stateful"))


def test_a_baseline_that_fails_while_timed_ends_the_run(story: Story) -> None:
    story.judge.fails_when_timed = {story.line[0].hash}
    with pytest.raises(ServiceDied, match="the baseline failed while it was timed: it failed"):
        story.challenge(1)
    assert story.titles == [0]


def test_the_best_is_confirmed_against_the_baseline_under_the_full_profile(story: Story) -> None:
    story.challenge(2)
    story.confirm()
    assert story.asked[-1] == (0, 2, True)
    assert story.decisions()[-1] == (2, True, "confirmed in 3 separate starts; proven faster")
    node = story.run.tree.nodes[story.problem.hash, story.line[2].hash]
    assert node.evaluations[-1].profile is Profile.SHIP
    assert story.titles == [0, 1, 2]


def test_a_best_that_fails_the_full_profile_hands_the_title_down(story: Story) -> None:
    story.challenge(3)
    story.judge.fails_ship = {story.line[3].hash, story.line[2].hash}
    story.confirm()
    assert story.titles == [0, 1]
    assert [kept for _, kept, _ in story.decisions()[-3:]] == [False, False, True]
    assert story.asked[-1] == (0, 1, True)


def test_a_gain_that_cannot_be_repeated_is_not_confirmed(story: Story) -> None:
    story.challenge(1)
    story.judge.times_us[story.line[1].hash] = 100.0
    story.confirm()
    assert story.titles == [0]
    assert story.decisions()[-1] == (1, False, "not confirmed in 3 separate starts; not faster")


def test_a_best_that_fails_while_it_is_confirmed_hands_the_title_down(story: Story) -> None:
    story.challenge(2)
    story.judge.fails_when_timed = {story.line[2].hash}
    story.confirm()
    assert story.asked[-2:] == [(0, 2, True), (0, 1, True)]
    assert story.titles == [0, 1]


def test_a_baseline_alone_needs_no_confirmation(story: Story) -> None:
    story.confirm()
    assert (story.asked, story.titles) == ([], [0])


def test_an_unfair_clock_ends_the_run_with_its_reason_in_the_journal(story: Story) -> None:
    error = UnfairClock("Test GPU", 14)

    def unfair(*_: object, **__: object) -> Comparison:
        raise error

    story.judge.compare = unfair
    with pytest.raises(UnfairClock):
        story.enter(story.line[1])
        loop.optimize(story.run, story.judge)
    assert story.events[-1] == RunEnded(reason=str(error), failed=True)


@pytest.mark.parametrize(
    "error",
    [
        BackendUnavailable("triton", "compute-sanitizer for `ship`", "Install it."),
        ModelNotLoadable("m.py:build", "RuntimeError: no such stream", "Run it by itself first."),
        BlobMissing("b" * 64, "is not there"),
    ],
)
def test_whatever_can_be_mended_ends_the_run_with_its_reason_in_the_journal(
    error: KernelwrightError, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr(loop, "verify", fail)
    story.enter(story.line[1])
    with pytest.raises(type(error)):
        loop.optimize(story.run, story.judge)
    assert story.events[-1] == RunEnded(reason=str(error), failed=True)
    assert story.titles == [0, 1], "what was found before stays"


@dataclass
class Match:
    """A search with the real seeds, whose times a test makes up."""

    run: Run
    judge: TableJudge
    problem: Problem
    eager: Candidate
    compiled: Candidate
    seed: Candidate

    def play(self, eager: float, compiled: float, seed: float) -> list[str]:
        """Search and confirm; return the backends that hold a title, the baseline first."""
        times = {self.eager.hash: eager, self.compiled.hash: compiled, self.seed.hash: seed}
        self.judge.times_us |= times
        loop.search(self.run, self.judge)
        loop.finish(self.run, self.judge, self.problem)
        return [self._name(key) for key in self.run.tree.titles.get(self.problem.hash, [])]

    @property
    def asked(self) -> list[tuple[str, str, bool]]:
        """Return the comparisons that were asked for."""
        return [(self._name(old), self._name(new), confirm) for old, new, confirm in self.judge.asked]

    def _name(self, key: str) -> str:
        return self.run.tree.nodes[self.problem.hash, key].candidate.backend


@pytest.fixture(params=[DeviceKind.CPU, DeviceKind.CUDA])
def match(request: pytest.FixtureRequest, make, tmp_path: Path) -> Match:
    problem = make.problem(device=make.device(kind=request.param))
    tree, judge = Tree(), TableJudge(make, {})

    def record(bodies: Sequence[Body]) -> None:
        for body in bodies:
            tree.apply(body)

    config, seeds = RunConfig(model="m.py:build"), Seeds(("cpp",), 1)
    run = Run(config, problem.device, 1, tmp_path, record, tree, lambda _: None, seeds)
    record([ProblemFound(problem=problem)])
    eager, cpp = seed("rmsnorm", "eager", Origin.BASELINE), seed("rmsnorm", "cpp", Origin.AUTHOR)
    return Match(run, judge, problem, eager, compiled_baseline(problem, 1), cpp)


def test_a_seed_that_beats_eager_but_not_torch_compile_is_not_kept(match: Match) -> None:
    assert match.play(eager=100, compiled=50, seed=70) == ["compiled"]
    assert ("compiled", "cpp", False) in match.asked


def test_the_best_is_confirmed_against_the_faster_baseline_and_proven_against_the_other(match: Match) -> None:
    assert match.play(eager=100, compiled=80, seed=50) == ["compiled", "cpp"]
    assert match.asked[-1] == ("compiled", "cpp", True)
    assert ("eager", "cpp", False) in match.asked
    assert match.run.tree.nodes[match.problem.hash, match.eager.hash].decision.kept is False


def test_a_slower_torch_compile_is_raced_too_before_anything_is_confirmed(match: Match) -> None:
    assert match.play(eager=80, compiled=100, seed=50) == ["eager", "cpp"]
    assert match.asked[-2:] == [("compiled", "cpp", False), ("eager", "cpp", True)]


def test_a_baseline_far_behind_the_other_is_out_of_the_question(match: Match) -> None:
    assert match.play(eager=80, compiled=200, seed=50) == ["eager", "cpp"]
    assert ("compiled", "cpp", False) not in match.asked


def test_on_a_cpu_torch_compile_is_not_built_for_a_seed_that_loses_to_eager(match: Match) -> None:
    assert match.play(eager=50, compiled=100, seed=70) == ["eager"]
    was_judged = (match.problem.hash, match.compiled.hash) in match.run.tree.nodes
    assert was_judged == (match.problem.device.kind is not DeviceKind.CPU)


def test_a_torch_compile_that_fails_its_stages_is_no_baseline(match: Match) -> None:
    match.judge.fails = {match.compiled.hash}
    assert match.play(eager=80, compiled=10, seed=50) == ["eager", "cpp"]
    assert all("compiled" not in pair for pair in match.asked)


def test_a_problem_without_an_accepted_baseline_is_left_alone(match: Match) -> None:
    match.judge.fails = {match.eager.hash, match.compiled.hash}
    assert match.play(eager=80, compiled=100, seed=50) == []
    assert match.judge.asked == []


def test_a_rival_that_is_not_beaten_takes_the_title_from_the_best(match: Match) -> None:
    match.judge.claims = {(match.compiled.hash, match.seed.hash): 1.0}
    assert match.play(eager=80, compiled=100, seed=50) == ["eager"]
