"""A judge whose verdicts are a recorded landscape: nothing is built or run, and the seconds are those it once took.

The landscape is taken as the truth. Certified times are its medians, a comparison is decided on them, and a look gives
one recorded heat at a time, with the noise that heat had.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernelwright.core.brief import Trial
from kernelwright.core.candidate import Candidate, ParamChoice, ParamValue
from kernelwright.core.counters import CounterProfile, NoCounters
from kernelwright.core.landscape import Landscape, Spot
from kernelwright.core.problem import Problem
from kernelwright.core.stats import KeepRule, mad
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import (
    REQUIRED_STAGES,
    CaseRatio,
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
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import JudgeClient

CLOCK = "recorded"
FAILING_STAGE = {
    Status.REFUSED: Stage.GUARDS,
    Status.BUILD_FAILED: Stage.BUILD,
    Status.BUILD_TIMED_OUT: Stage.BUILD,
    Status.TOO_BIG: Stage.BUILD,
}


@dataclass
class RecordedJudge:
    """Verdicts out of a landscape."""

    landscape: Landscape
    rule: KeepRule = field(default_factory=KeepRule)

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile = Profile.KEEP) -> Evaluation:
        """Return the verdict a candidate's spots have; one that was never recorded is refused."""
        places = {case.hash: self.landscape.find(candidate, case.hash) for case in problem.cases}
        spots = [self.landscape.spots[place] for place in places.values() if place is not None]
        status, reason = Status.ACCEPTED, ""
        if len(spots) < len(places):
            status, reason = Status.REFUSED, "not in the recorded landscape"
        for spot in spots:
            if status is Status.ACCEPTED and spot.status is not Status.ACCEPTED:
                status, reason = spot.status, spot.reason
        distinct = {spot.key(): spot for spot in spots}
        seconds = sum(spot.build_s for spot in distinct.values())
        if status is Status.ACCEPTED and profile is not Profile.QUICK:
            seconds += self.landscape.proof_s
        return Evaluation(
            candidate_hash=candidate.hash,
            problem_hash=problem.hash,
            device_hash=problem.device.hash,
            profile=profile,
            status=status,
            stages=_stages(profile, status, reason),
            timing=self._timing(problem, places, profile) if status is Status.ACCEPTED else None,
            seconds=seconds,
        )

    def _timing(self, problem: Problem, places: dict[str, int | None], profile: Profile) -> Timing | None:
        if profile is Profile.QUICK:
            return None
        return Timing(
            clock=CLOCK, cases=tuple(self._case(case.hash, case.label, places) for case in problem.cases)
        )

    def _case(self, case_hash: str, label: str, places: dict[str, int | None]) -> CaseTiming:
        place = places[case_hash]
        assert place is not None, "only recorded spots are accepted"
        time_us = self.landscape.time_us(place, case_hash)
        assert time_us is not None, "an accepted spot was timed on every case"
        ratios = self._log_ratios(self.landscape.spots[place], case_hash)
        return CaseTiming(
            case_hash=case_hash,
            label=label,
            median_us=time_us,
            mad_us=time_us * mad(ratios),
            rounds=len(ratios),
        )

    def _log_ratios(self, spot: Spot, case_hash: str) -> tuple[float, ...]:
        return next(look.log_ratios for look in spot.looks if look.case_hash == case_hash)

    def compare(
        self,
        problem: Problem,
        incumbent: Candidate,
        challenger: Candidate,
        earlier: Comparison | None = None,  # noqa: ARG002 - the engine's judge continues one; here all is known
        *,
        confirm: bool = False,
    ) -> Comparison:
        """Return the comparison of two accepted candidates by their recorded medians."""
        cases = tuple(self._ratio(case.hash, case.label, incumbent, challenger) for case in problem.cases)
        total = sum(case.weight for case in problem.cases)
        weights = [case.weight / total for case in problem.cases]
        log = sum(weight * math.log(one.ratio) for weight, one in zip(weights, cases, strict=True))
        slower = [one for one in cases if one.ratio < 1 / (1 + self.rule.case_margin)]
        is_faster = log > math.log1p(self.rule.smallest_gain) and not (slower and len(cases) > 1)
        return Comparison(
            incumbent_hash=incumbent.hash,
            challenger_hash=challenger.hash,
            problem_hash=problem.hash,
            device_hash=problem.device.hash,
            outcome=Outcome.FASTER if is_faster else Outcome.NOT_FASTER,
            ratio=math.exp(log),
            ci_low=math.exp(log),
            ci_high=math.exp(log),
            # What the medians say is certain here: evidence at the very bound at which the gate stops.
            e_faster=1 / self.rule.alpha if is_faster else 0.0,
            e_not_faster=0.0 if is_faster else 1 / self.rule.beta,
            pairs=1,
            cases=cases,
            log_ratios=(log,),
            clock=CLOCK,
            starts=3 if confirm else 1,
            slower_case=slower[0].label if slower and len(cases) > 1 else "",
        )

    def _ratio(self, case_hash: str, label: str, incumbent: Candidate, challenger: Candidate) -> CaseRatio:
        places = [self.landscape.find(one, case_hash) for one in (incumbent, challenger)]
        times = [self.landscape.time_us(place, case_hash) for place in places if place is not None]
        old, new = times
        assert old is not None and new is not None, "only accepted candidates are compared"
        return CaseRatio(
            case_hash=case_hash,
            label=label,
            ratio=old / new,
            ci_low=old / new,
            ci_high=old / new,
            incumbent_us=old,
            challenger_us=new,
            times=((old, new),),
        )

    def screen(self, problem: Problem, node: Node, trial: Trial) -> Screening:
        """Return one look at a node's source with some parameters: the next of the recorded heats."""
        spot, latency_us = self._spot(node.candidate, trial.values, trial.case_hash), None
        status = spot.status if spot else Status.REFUSED
        if spot and status is Status.ACCEPTED:
            ratios = self._log_ratios(spot, trial.case_hash)
            number = len([look for look in node.screenings if _is_same(look, trial.values, trial.case_hash)])
            latency_us = self.landscape.reference_us[trial.case_hash] / math.exp(ratios[number % len(ratios)])
        return Screening(
            candidate_hash=node.candidate.hash,
            problem_hash=problem.hash,
            values=trial.values,
            case_hash=trial.case_hash,
            status=status,
            latency_us=latency_us,
        )

    def look_seconds(self, node: Node, look: Screening) -> float:
        """Return the seconds a look takes that is about to be folded in: the first one of its values has to build."""
        spot = self._spot(node.candidate, look.values, look.case_hash)
        if spot is None:
            return 0.0
        is_built = any(one.values == look.values for one in node.screenings)
        heats = sum(len(one.times_us) for one in spot.looks)
        return (0.0 if is_built else spot.build_s) + (spot.screen_s / heats if heats else 0.0)

    def _spot(self, candidate: Candidate, values: dict[str, ParamValue], case_hash: str) -> Spot | None:
        choice = ParamChoice(values=values)
        place = self.landscape.find(candidate.model_copy(update={"choices": (choice,)}), case_hash)
        return None if place is None else self.landscape.spots[place]


@dataclass
class RecordedClient(JudgeClient):
    """The recorded judge behind the engine's own interface: a whole run without a device."""

    judge: RecordedJudge
    tree: Tree
    """The run's own, for the number of the next heat."""

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        """Return the recorded verdict."""
        return self.judge.evaluate(problem, candidate, profile)

    def race(
        self,
        problem: Problem,
        incumbent: Candidate,
        challengers: Sequence[Candidate],
        earlier: Sequence[Comparison | None] = (),  # noqa: ARG002 - all is known already
        *,
        confirm: bool = False,
    ) -> tuple[Comparison, ...]:
        """Return one comparison per challenger."""
        return tuple(self.judge.compare(problem, incumbent, one, confirm=confirm) for one in challengers)

    def screen(
        self, problem: Problem, candidate: Candidate, trials: Sequence[Trial]
    ) -> tuple[Screening, ...]:
        """Return one look per trial, each the next recorded heat of its values."""
        node = replace(self.tree.nodes[problem.hash, candidate.hash])
        node.screenings = list(node.screenings)
        for trial in trials:
            node.screenings.append(self.judge.screen(problem, node, trial))
        return tuple(node.screenings[len(node.screenings) - len(trials) :])

    def prepare(self, problem: Problem, candidate: Candidate) -> None:
        """Build nothing: it is all recorded."""

    def count(self, problem: Problem, candidate: Candidate, case_hash: str) -> CounterProfile:  # noqa: ARG002
        """Return no counters: a landscape has times only."""
        reason = "a recorded landscape has times only"
        return CounterProfile(case_hash=case_hash, lack=NoCounters.NOT_SUPPORTED, reason=reason)


@dataclass(frozen=True)
class RecordedSeeds(Seeds):
    """Baseline and roots of a landscape in place of the package's own."""

    landscape: Landscape

    def baselines(self, problem: Problem) -> list[Candidate]:  # noqa: ARG002 - a landscape has one problem
        """Return the recorded baseline."""
        return [self.landscape.candidate(self.landscape.baseline)]

    def late_baseline(self, problem: Problem) -> None:
        """Return nothing: torch.compile was not recorded."""

    def first(self, problem: Problem) -> list[Candidate]:  # noqa: ARG002
        """Return the recorded roots."""
        return [self.landscape.candidate(place) for place in self.landscape.roots]


def _is_same(look: Screening, values: dict[str, ParamValue], case_hash: str) -> bool:
    return (look.values, look.case_hash) == (values, case_hash)


def _stages(profile: Profile, status: Status, reason: str) -> tuple[StageResult, ...]:
    """Return the stages of a profile, all passed, or up to the one that failed."""
    failing = None if status is Status.ACCEPTED else FAILING_STAGE.get(status, Stage.SMOKE)
    results: list[StageResult] = []
    for stage in REQUIRED_STAGES[profile]:
        passed = stage is not failing
        results.append(StageResult(stage=stage, passed=passed, seconds=0.0, reason="" if passed else reason))
        if not passed:
            break
    return tuple(results)
