"""The deterministic judge of bottlenecks: metrics in, diagnoses out, strongest first.

It needs no key and no device, and works with whatever metrics there are: the more are known, the more rules speak.
1. Every rule whose conditions hold gives evidence and a severity: the share of the time that the bottleneck stands for.
2. What is not the hardware's own limit cannot cost more than what lies above the floor.
3. Of every category the strongest stays; cards of the playbook against it become its prescriptions.
"""

from collections.abc import Iterable, Sequence

from kernelwright.core.device import DeviceKind
from kernelwright.core.diagnosis import Diagnosis, Evidence, Metric
from kernelwright.core.technique import Basis, Bottleneck, Technique, Wanted
from kernelwright.hardware.bottleneck_rules import FLOOR_PCT, RULES, Condition, Rule, Values
from kernelwright.hardware.perf_rules import FROM_PERF

ALL_RULES = (*RULES, *FROM_PERF)
LEAST_SEVERITY = 0.05
"""Share of the time below which a bottleneck is not worth an author's attention."""
PRESCRIPTIONS = 3
"""Cards that are named against a bottleneck."""


def diagnose(
    metrics: Iterable[Metric], kind: DeviceKind, cards: Sequence[Technique] = (), case: str = ""
) -> list[Diagnosis]:
    """Return what the numbers say a kernel waits for, one diagnosis per category, strongest first.

    `cards` are the ones that apply to the op, the language and the device; `case` is the label of what was measured.
    """
    values = {metric.name: metric.value for metric in metrics}
    found: dict[Bottleneck, Diagnosis] = {}
    for rule in ALL_RULES:
        evidence = _evidence(rule, values) if kind in rule.kinds and rule.unless not in values else ()
        severity = _severity(rule, values) if evidence else 0.0
        held = found.get(rule.category)
        if severity >= LEAST_SEVERITY and (held is None or held.severity < severity):
            found[rule.category] = Diagnosis(
                category=rule.category,
                severity=severity,
                evidence=evidence,
                prescriptions=tuple(card.name for card in against(rule.category, cards)[:PRESCRIPTIONS]),
                sentence=rule.sentence.format(*(one.value for one in evidence)),
                case=case,
            )
    return sorted(found.values(), key=lambda one: -one.severity)


def against(category: Bottleneck, cards: Iterable[Technique]) -> list[Technique]:
    """Return the cards against a bottleneck: those made for it first, then those of the op, then by what is proven."""

    def place(card: Technique) -> tuple[int, bool, bool, float, str]:
        is_guess = card.gain.basis is not Basis.MEASURED
        return card.bottlenecks.index(category), not card.ops, is_guess, -card.gain.high, card.name

    wanted = Wanted(bottlenecks=(category,))
    return sorted((card for card in cards if wanted.admits(card)), key=place)


def _severity(rule: Rule, values: Values) -> float:
    own = max(0.0, min(1.0, rule.severity(values)))
    above_floor = max(0.0, 1 - values.get(FLOOR_PCT, 0.0) / 100)
    return own if rule.is_limit else min(own, above_floor)


def _evidence(rule: Rule, values: Values) -> tuple[Evidence, ...]:
    """Return the evidence for a rule, or none if a condition does not hold or cannot be told."""
    found = []
    for condition in rule.conditions:
        threshold = _threshold(condition, values)
        if condition.metric not in values or threshold is None:
            if condition.if_known:
                continue
            return ()
        value = values[condition.metric]
        if not condition.relation.holds(value, threshold):
            return ()
        found.append(
            Evidence(metric=condition.metric, value=value, relation=condition.relation, threshold=threshold)
        )
    return tuple(found)


def _threshold(condition: Condition, values: Values) -> float | None:
    """Return what a metric is compared with; None if that is unknown."""
    if not condition.of:
        return condition.threshold
    whole = values.get(condition.of)
    return None if whole is None else condition.threshold * whole
