"""`Summary`: what a run looks like at a glance, kept beside the events so that a look never walks them.

It is a fold like the `Tree`, but its size depends on the number of problems, not of events: the journal
stores it with every append and `verify` folds it again. A change of its fields changes the journal's schema.
"""

from datetime import datetime

from pydantic import Field

from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    ModelVerified,
    ProblemFound,
    RunEnded,
    RunStarted,
)
from kernelwright.core.frozen import Frozen
from kernelwright.core.verdict import Comparison, Decision

OPEN_COMPARISONS = 32
"""Comparisons remembered until their decision; then the oldest is forgotten, so a summary stays small."""


class Best(Frozen):
    """The best candidate of a problem."""

    candidate_hash: str
    """Who holds the title."""
    first_hash: str
    """The first candidate kept: the baseline the others started from."""
    ratio: float | None = Field(gt=0)
    """Time of the first over time of the best: the product of the kept ratios; None if one is unknown."""


class ProblemSummary(Frozen):
    """How far one problem has come."""

    op: str
    """The op."""
    cases: tuple[str, ...]
    """Labels of its cases."""
    share: float
    """Share of the model's time under the baseline."""
    candidates: int = 0
    """Proposals, repeated ones included."""
    kept: int = 0
    """Decisions that kept."""
    reverted: int = 0
    """Decisions that reverted."""
    best: Best | None = None
    """The title holder; None before the first keep."""
    earlier: tuple[Best, ...] = ()
    """Who held the title before and was not reverted since, oldest first."""


class OpenComparison(Frozen):
    """What a decision still to come will rest on."""

    problem_hash: str
    challenger_hash: str
    incumbent_hash: str
    ratio: float = Field(gt=0)


class Summary(Frozen):
    """A run at a glance."""

    run_id: str
    """Which run."""
    created_at: datetime
    """When its journal was created, in UTC."""
    last_event_at: datetime | None = None
    """When the last event was appended, in UTC."""
    events: int = 0
    """How many events there are."""
    kinds: dict[str, int] = Field(default_factory=dict)
    """Events by kind."""
    model: str | None = None
    """The model being optimised, as the configuration names it."""
    device: str | None = None
    """Name of the device."""
    problems: dict[str, ProblemSummary] = Field(default_factory=dict)
    """Progress by problem hash, in the order they were found."""
    kept: int = 0
    """Decisions that kept."""
    reverted: int = 0
    """Decisions that reverted."""
    statuses: dict[str, int] = Field(default_factory=dict)
    """Evaluations by status."""
    verified: ModelVerified | None = None
    """The last end-to-end verification."""
    ended: str | None = None
    """Why the run stopped; None while it has not."""
    open_comparisons: dict[str, OpenComparison] = Field(default_factory=dict)
    """Comparisons not yet decided on, by hash, oldest first."""

    @property
    def candidates(self) -> int:
        """Return the number of proposals."""
        return self.kinds.get("candidate_proposed", 0)

    def after(self, body: Body, at: datetime) -> "Summary":
        """Return the summary after one more event."""
        changes: dict[str, object] = {
            "last_event_at": at,
            "events": self.events + 1,
            "kinds": self.kinds | {body.kind: self.kinds.get(body.kind, 0) + 1},
        }
        return self.model_copy(update=changes | self._changes(body))

    def _changes(self, body: Body) -> dict[str, object]:
        match body:
            case CandidateProposed(problem_hash=key) if problem := self.problems.get(key):
                return {"ended": None} | self._with(key, problem, candidates=problem.candidates + 1)
            case Evaluated(evaluation=evaluation):
                status = evaluation.status.value
                return {"statuses": self.statuses | {status: self.statuses.get(status, 0) + 1}}
            case Compared(comparison=comparison):
                return {"open_comparisons": self._remembering(comparison)}
            case Decided(decision=decision):
                return self._decided(decision)
            case ProblemFound(problem=found) if found.hash not in self.problems:
                labels = tuple(case.label for case in found.cases)
                fresh = ProblemSummary(op=found.op, cases=labels, share=found.share)
                return {"problems": self.problems | {found.hash: fresh}}
            case RunStarted(config=config, device=device):
                model = config.get("model")
                return {"model": None if model is None else str(model), "device": device.name, "ended": None}
            case ModelVerified():
                return {"verified": body}
            case RunEnded(reason=reason):
                return {"ended": reason}
            case _:
                return {}

    def _with(self, key: str, problem: ProblemSummary, **update: object) -> dict[str, object]:
        return {"problems": self.problems | {key: problem.model_copy(update=update)}}

    def _remembering(self, comparison: Comparison) -> dict[str, OpenComparison]:
        # Popped first: later rounds of the same comparison replace it and count as the newest.
        rest = {key: value for key, value in self.open_comparisons.items() if key != comparison.hash}
        if len(rest) == OPEN_COMPARISONS:
            del rest[next(iter(rest))]
        return rest | {
            comparison.hash: OpenComparison(
                problem_hash=comparison.problem_hash,
                challenger_hash=comparison.challenger_hash,
                incumbent_hash=comparison.incumbent_hash,
                ratio=comparison.ratio,
            )
        }

    def _decided(self, decision: Decision) -> dict[str, object]:
        key, kept = decision.problem_hash, int(decision.kept)
        about = (key, decision.candidate_hash)
        still_open = {
            name: value
            for name, value in self.open_comparisons.items()
            if (value.problem_hash, value.challenger_hash) != about
        }
        counts: dict[str, object] = {"kept": self.kept + kept, "reverted": self.reverted + 1 - kept}
        changes = counts | {"open_comparisons": still_open}
        if (problem := self.problems.get(key)) is None:
            return changes
        titles = problem.earlier + ((problem.best,) if problem.best else ())
        hashes = [title.candidate_hash for title in titles]
        place = hashes.index(decision.candidate_hash) if decision.candidate_hash in hashes else len(titles)
        if decision.kept:
            compared = self.open_comparisons.get(decision.comparison_hash or "")
            titles = (*titles[:place], _title(problem.best, decision.candidate_hash, compared))
        else:
            titles = titles[:place] + titles[place + 1 :]
        kept, reverted = problem.kept + kept, problem.reverted + 1 - kept
        best = titles[-1] if titles else None
        return changes | self._with(
            key, problem, kept=kept, reverted=reverted, best=best, earlier=titles[:-1]
        )


def _title(before: Best | None, candidate_hash: str, compared: OpenComparison | None) -> Best:
    """Return the title after a keep, its ratio carried on from whomever it was compared with."""
    if before is None:
        return Best(candidate_hash=candidate_hash, first_hash=candidate_hash, ratio=1.0)
    ratio: float | None = None
    if compared is not None and compared.incumbent_hash == before.first_hash:
        ratio = compared.ratio
    elif (
        compared is not None and compared.incumbent_hash == before.candidate_hash and before.ratio is not None
    ):
        ratio = before.ratio * compared.ratio
    return Best(candidate_hash=candidate_hash, first_hash=before.first_hash, ratio=ratio)
