"""Made-up runs with times, for tests of the reports: every event one second after the last unless told otherwise."""

from datetime import UTC, datetime, timedelta

from kernelwright.core.account import Against
from kernelwright.core.candidate import Author, Origin
from kernelwright.core.events import (
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    Event,
    ModelRanked,
    ModelVerified,
    ProblemFound,
    RankedRegion,
    RunEnded,
    RunStarted,
    WinnerTried,
)
from kernelwright.core.verdict import CaseRatio, Decision, Outcome
from kernelwright.engine import gate
from kernelwright.report.chronicle import chronicle
from kernelwright.report.facts import Around, facts

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Telling:
    """A run that is told event by event."""

    def __init__(self, make, *, model="net.py:build", share=0.5):
        self.make, self.events, self.now = make, [], START
        self.problem = make.problem(share=share, count=3)
        self.model = model

    def tell(self, *bodies, seconds=1.0):
        self.now += timedelta(seconds=seconds)
        for body in bodies:
            event = Event.model_construct(seq=len(self.events), at=self.now, body=body, hash="")
            self.events.append(event)
        return self

    def started(self, **config):
        settings = {"model": self.model, "against": "eager", "hidden_shapes": 8} | config
        return self.tell(
            RunStarted(config=settings, versions={"torch": "2.13"}, device=self.problem.device), seconds=0
        )

    def ranked(self, *regions, total_us=1000.0, against=Against.EAGER):
        return self.tell(
            ModelRanked(against=against, total_us=total_us, eager_us=total_us, limit=2.0, regions=regions),
            seconds=0,
        )

    def found(self):
        return self.tell(ProblemFound(problem=self.problem), seconds=0)

    def baseline(self, time_us=100.0, backend="eager", kept=True, **more):
        candidate = self.make.candidate(
            f"def kernel_fn(): ...  # {backend}",
            backend=backend,
            origin=Origin.BASELINE,
            author=Author(name="baseline"),
        )
        verdict = self.verdict(candidate, time_us, **more)
        decision = gate.first_of_problem(verdict) if kept else gate.slower_baseline(verdict, 2.0)
        self.tell(Decided(decision=decision), seconds=0)
        return candidate

    def verdict(self, candidate, time_us=None, *, seconds=1.0, failed=None, floor_us=None, **changes):
        """Tell of a candidate, if it is new, and of the judge's verdict on it; return the verdict."""
        known = {one.body.candidate.hash for one in self.events if isinstance(one.body, CandidateProposed)}
        if candidate.hash not in known:
            self.tell(CandidateProposed(problem_hash=self.problem.hash, candidate=candidate), seconds=0)
        timing = None if time_us is None else self.make.timing(self.problem, time_us, floor_us)
        verdict = self.make.evaluation(candidate, self.problem, failed=failed, timing=timing, **changes)
        self.tell(Evaluated(evaluation=verdict), seconds=seconds)
        return verdict

    def compared(self, verdict, incumbent, candidate, times_us, *, kept=True, seconds=1.0):
        """Tell of a comparison and the decision on it."""
        before, after = times_us
        ratio = before / after
        found = self.make.comparison(
            incumbent,
            candidate,
            self.problem,
            ratio=ratio,
            ci_low=ratio * 0.98,
            ci_high=ratio * 1.02,
            outcome=Outcome.FASTER if kept else Outcome.NOT_FASTER,
            cases=tuple(
                CaseRatio(
                    case_hash=case.hash,
                    label=case.label,
                    ratio=ratio,
                    ci_low=ratio * 0.98,
                    ci_high=ratio * 1.02,
                    incumbent_us=before,
                    challenger_us=after,
                )
                for case in self.problem.cases
            ),
        )
        self.tell(Compared(comparison=found), Decided(decision=gate.decide(verdict, found)), seconds=seconds)
        return candidate

    def challenger(self, incumbent, times_us, source="int kernel_fn(); // faster", *, kept=True, **changes):
        """Tell of an author's candidate, its verdict and its comparison; return it."""
        candidate = self.make.candidate(source, **({"author": Author(name="mover")} | changes))
        verdict = self.verdict(candidate, times_us[1])
        return self.compared(verdict, incumbent, candidate, times_us, kept=kept)

    def decided(self, candidate, *, kept, reason):
        decision = Decision(
            problem_hash=self.problem.hash,
            candidate_hash=candidate.hash,
            kept=kept,
            reason=reason,
            evaluation_hash="e",
        )
        return self.tell(Decided(decision=decision), seconds=0)

    def verified(self, candidate, *, shipped=True, compiled=(1.1, 1.05, 1.15), seconds=30.0):
        self.tell(
            WinnerTried(
                problem_hash=self.problem.hash,
                candidate_hash=candidate.hash,
                kept=True,
                ratio=1.2,
                ci_low=1.1,
                ci_high=1.3,
                drift=1.25,
                reason="pays end to end",
            ),
            seconds=seconds,
        )
        ratio, low, high = compiled or (None, None, None)
        self.tell(
            ModelVerified(
                winners={self.problem.hash: candidate.hash},
                ratio=1.2,
                ci_low=1.1,
                ci_high=1.3,
                eager_ratio=1.25,
                eager_ci_low=1.2,
                eager_ci_high=1.3,
                compiled_ratio=ratio,
                compiled_ci_low=low,
                compiled_ci_high=high,
                drift=1.25,
                fallbacks=0,
                shipped=shipped,
                reason="faster end to end" if shipped else "the interval reaches 1",
            ),
            seconds=0,
        )
        return self

    def ended(self, reason="done"):
        return self.tell(RunEnded(reason=reason), seconds=0)

    def run(self):
        return chronicle(self.events)

    def report(self, **around):
        return facts(self.run(), Around(**({"run_id": "run", "kernels": "kernels"} | around)))


def region(name="left alone", share=0.2, skipped="no author for it yet"):
    return RankedRegion(name=name, op="add", count=2, share=share, gain=1.1, skipped=skipped)


def shipped_run(make, **changes):
    """Return a run in which one kernel won, twice as fast, and stays in the model."""
    run = Telling(make, **changes).started().ranked(region()).found()
    base = run.baseline(100.0)
    best = run.challenger(base, (100.0, 50.0), note="wider loads")
    return run.verified(best).ended("the winners pay end to end")
