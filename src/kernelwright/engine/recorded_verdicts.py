"""The judge of a recorded run: its verdicts, comparisons and looks, given again in the order they were given."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import TypeVar

from kernelwright.core.brief import Trial
from kernelwright.core.candidate import Candidate
from kernelwright.core.counters import CounterProfile, NoCounters
from kernelwright.core.errors import ReplayEnded
from kernelwright.core.events import Body, Compared, Decided, Evaluated, Screened
from kernelwright.core.frozen import canonical_json
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Comparison, Decision, Evaluation, Profile, Screening, Status
from kernelwright.engine.service import JudgeClient

T = TypeVar("T")


class RecordedVerdicts(JudgeClient):
    """What a journal holds, behind the judge's own interface; what it does not hold ends the replay."""

    def __init__(self, bodies: Iterable[Body]) -> None:
        self._evaluations: dict[tuple[str, str, Profile], deque[Evaluation]] = defaultdict(deque)
        self._comparisons: dict[tuple[str, str, str], deque[Comparison]] = defaultdict(deque)
        self._looks: dict[tuple[str, str, str, str], deque[Screening]] = defaultdict(deque)
        self._found_out: dict[tuple[str, str], deque[Decision]] = defaultdict(deque)
        for body in bodies:
            match body:
                case Evaluated(evaluation=one):
                    self._evaluations[one.problem_hash, one.candidate_hash, one.profile].append(one)
                case Compared(comparison=one):
                    self._comparisons[one.problem_hash, one.incumbent_hash, one.challenger_hash].append(one)
                case Screened(screening=one):
                    self._looks[_look(one.problem_hash, one.candidate_hash, one)].append(one)
                case Decided(decision=one) if _is_found_out(one):
                    self._found_out[one.problem_hash, one.candidate_hash].append(one)
                case _:
                    pass

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        """Return the recorded verdict."""
        words = f"a verdict on {candidate.hash[:12]} under {profile.value!r}"
        return _next(self._evaluations[problem.hash, candidate.hash, profile], words)

    def race(
        self,
        problem: Problem,
        incumbent: Candidate,
        challengers: tuple[Candidate, ...],
        earlier: tuple[Comparison | None, ...] = (),  # noqa: ARG002 - what came of going on is recorded too
        *,
        confirm: bool = False,  # noqa: ARG002
    ) -> tuple[Comparison | Disqualified, ...]:
        """Return one recorded result per challenger."""
        return tuple(self._result(problem, incumbent, one) for one in challengers)

    def _result(
        self, problem: Problem, incumbent: Candidate, challenger: Candidate
    ) -> Comparison | Disqualified:
        found = self._comparisons[problem.hash, incumbent.hash, challenger.hash]
        if not found:
            for one in (challenger, incumbent):
                if decisions := self._found_out[problem.hash, one.hash]:
                    status, _, reason = decisions.popleft().reason.partition(": ")
                    return Disqualified(candidate_hash=one.hash, status=Status(status), reason=reason)
        return _next(found, f"a comparison of {challenger.hash[:12]} with {incumbent.hash[:12]}")

    def screen(
        self, problem: Problem, candidate: Candidate, trials: Sequence[Trial]
    ) -> tuple[Screening, ...]:
        """Return one recorded look per trial."""
        words = f"a look at {candidate.hash[:12]}"
        return tuple(_next(self._looks[_look(problem.hash, candidate.hash, one)], words) for one in trials)

    def count(self, problem: Problem, candidate: Candidate, case_hash: str) -> CounterProfile:  # noqa: ARG002
        """Return no counters: those that were read are taken from the recording before anybody is asked."""
        reason = "the recorded run read no counters"
        return CounterProfile(case_hash=case_hash, lack=NoCounters.NOT_SUPPORTED, reason=reason)

    def prepare(self, problem: Problem, candidate: Candidate) -> None:
        """Build nothing."""

    def close(self) -> None:
        """End nothing: there is no process."""


def _is_found_out(decision: Decision) -> bool:
    """Tell whether a decision is on a candidate that failed while it was timed."""
    return not decision.kept and decision.reason.partition(":")[0] in list(Status)


def _look(problem_hash: str, candidate_hash: str, one: Trial | Screening) -> tuple[str, str, str, str]:
    return problem_hash, candidate_hash, one.case_hash, canonical_json(one.values)


def _next(recorded: deque[T], what: str) -> T:
    if not recorded:
        raise ReplayEnded(
            f"The recording holds no {what.removeprefix('a ')}: the search took another way here. "
            "Replay without --recorded-verdicts, or with the version that recorded the run."
        )
    return recorded.popleft()
