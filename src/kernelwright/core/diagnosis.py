"""`Metric`, `Evidence` and `Diagnosis`: what a kernel waits for, and the numbers that say so.

The rules of `hardware/diagnose` and an llm give the same noun, and both are held to the same check: evidence that names
a metric nobody measured, or a value it does not have, is no evidence.
"""

from collections.abc import Iterable
from enum import StrEnum

from pydantic import Field, model_validator

from kernelwright.core.foreign import Line
from kernelwright.core.frozen import Frozen
from kernelwright.core.technique import Bottleneck

TOLERANCE = 0.01
"""Share by which a claimed value may miss the metric's: room for rounding, not for invention."""


class MetricSource(StrEnum):
    """Who says a number."""

    COUNTER = "counter"
    """A hardware counter, by the profiler's own name."""
    COMPILER = "compiler"
    """The compiler, of the very artefact that was judged, or what follows from it on the device."""
    PLAN = "plan"
    """The launch plan: blocks, threads, launches."""
    ROOFLINE = "roofline"
    """The work of the case at the rates the device was measured to reach."""
    TIMING = "timing"
    """The judge's clock."""
    SOURCE = "source"
    """The text of the candidate."""


class Metric(Frozen):
    """One number about one candidate on one case."""

    name: str = Field(min_length=1)
    """What is measured; counters keep the profiler's name."""
    value: float
    """How much."""
    unit: str = ""
    """Of what: us, %, bytes; empty for a plain count."""
    source: MetricSource
    """Who says so."""


class Relation(StrEnum):
    """On which side of its threshold a value lies."""

    AT_LEAST = ">="
    """The value reaches the threshold."""
    AT_MOST = "<="
    """The value does not exceed the threshold."""

    def holds(self, value: float, threshold: float) -> bool:
        """Tell whether a value lies on this side."""
        return value >= threshold if self is Relation.AT_LEAST else value <= threshold


class Evidence(Frozen):
    """A metric on the telling side of a threshold."""

    metric: str
    """Its name."""
    value: float
    """What it was."""
    relation: Relation
    """On which side it lies."""
    threshold: float
    """Of what."""

    @model_validator(mode="after")
    def _is_evidence(self) -> "Evidence":
        if not self.relation.holds(self.value, self.threshold):
            raise ValueError(f"{self.text} does not hold")
        return self

    @property
    def text(self) -> str:
        """Return it in one line."""
        return f"{self.metric} {self.value:.4g} {self.relation.value} {self.threshold:.4g}"


class Diagnosis(Frozen):
    """What a candidate waits for on a case."""

    category: Bottleneck
    """Which wait."""
    severity: float = Field(gt=0, le=1)
    """Share of the time it stands for, as far as the evidence can tell."""
    evidence: tuple[Evidence, ...] = Field(min_length=1)
    """The numbers it rests on."""
    prescriptions: tuple[str, ...] = ()
    """Technique cards against it, the likeliest first, each once; none where the playbook has none."""
    sentence: Line = Field(min_length=1)
    """What happens, in words."""
    case: str = ""
    """Label of the case."""

    @model_validator(mode="after")
    def _prescribes_each_card_once(self) -> "Diagnosis":
        if len(set(self.prescriptions)) != len(self.prescriptions):
            raise ValueError(f"prescriptions {list(self.prescriptions)} are not distinct")
        return self

    @property
    def text(self) -> str:
        """Return it in one line; the category comes first and is the only one that is named."""
        numbers = ", ".join(one.text for one in self.evidence)
        where = f" on {self.case}" if self.case else ""
        cards = f" try {', '.join(self.prescriptions)}" if self.prescriptions else ""
        return f"{self.category.value}{where}: {self.sentence} [{numbers}]{cards}"


def check_evidence(diagnosis: Diagnosis, metrics: Iterable[Metric]) -> list[str]:
    """Return what is wrong with a diagnosis's evidence: metrics nobody measured, values they do not have."""
    known = {metric.name: metric.value for metric in metrics}
    faults = []
    for one in diagnosis.evidence:
        if one.metric not in known:
            faults.append(f"there is no metric {one.metric!r}")
        elif abs(one.value - known[one.metric]) > TOLERANCE * abs(known[one.metric]):
            faults.append(f"{one.metric} is {known[one.metric]:.4g}, not {one.value:.4g}")
    return faults
