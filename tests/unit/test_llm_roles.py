"""Analyst, reflector and namer: their answers are held to a schema and to what was measured."""

import json

import pytest

from kernelwright.core.diagnosis import Diagnosis, Metric, MetricSource
from kernelwright.core.technique import Bottleneck
from kernelwright.core.thinking import Attempted, Measured, Profiled, Reflection
from kernelwright.llm.conversation import Asked
from kernelwright.llm.ledger import read_prices
from kernelwright.llm.providers import connect
from kernelwright.llm.roles.analyst import analyse
from kernelwright.llm.roles.namer import name
from kernelwright.llm.roles.reflector import reflect
from kernelwright.llm.spec import parse_spec
from tests.unit.llm_servers import Say, serving

pytest.importorskip("pydantic_ai")
PROTOCOLS = ("openai", "anthropic")
METRICS = (
    Metric(name="dram_busy", value=91.5, unit="%", source=MetricSource.COUNTER),
    Metric(name="registers", value=40, source=MetricSource.COMPILER),
)


def consulted(role, subject, *answers, protocol="openai", **more):
    """Return what a role makes of scripted answers, and the server."""
    told = [Say(one if isinstance(one, str) else json.dumps(one)) for one in answers]
    with serving(protocol, *told) as there:
        llm = connect(parse_spec(there.spec), {})
        return role(llm, subject, *more.values(), Asked(read_prices(), seed=3, limit_s=20)), there


def profiled(make) -> Profiled:
    cards = {"vectorise": "wide loads", "unroll": "more in flight"}
    return Profiled(make.candidate(), make.device(), "rmsnorm 8x64 fp16", METRICS, cards)


def finding(
    value: float = 91.5, metric: str = "dram_busy", cards=("vectorise",), category="memory bandwidth"
):
    evidence = {"metric": metric, "value": value, "relation": ">=", "threshold": 40}
    return {
        "category": category,
        "severity": 0.8,
        "evidence": [evidence],
        "prescriptions": list(cards),
        "sentence": "The bus is full.",
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_analyst_gives_the_diagnosis_the_rules_give(make, protocol):
    found, there = consulted(
        analyse, profiled(make), {"diagnoses": [finding(91.0)]}, protocol=protocol, wanted=1
    )
    (diagnosis,) = found.value
    assert isinstance(diagnosis, Diagnosis) and diagnosis.category is Bottleneck.MEMORY_BANDWIDTH
    assert (diagnosis.case, diagnosis.prescriptions) == ("rmsnorm 8x64 fp16", ("vectorise",))
    assert "dram_busy = 91.5 %" in json.dumps(there.asked) and "vectorise: wide loads" in json.dumps(
        there.asked
    )
    assert [one.role for one in found.exchanges] == ["analyst"]


@pytest.mark.parametrize(
    ("diagnoses", "complaint"),
    [
        ([finding(metric="l2_magic")], "there is no metric 'l2_magic'"),
        ([finding(80.0)], "dram_busy is 91.5, not 80"),
        ([finding(cards=("pray",))], "there is no technique card 'pray'"),
        ([finding(), finding()], "two diagnoses have the same category"),
        ([finding(), finding(category="compute")], "1 diagnoses were asked for, 2 given"),
        ([finding(category="laziness")], "category"),
        ([finding(30.0)], "does not hold"),
    ],
)
def test_invented_evidence_is_asked_again_and_then_refused(make, diagnoses, complaint):
    bad = {"diagnoses": diagnoses}
    found, there = consulted(analyse, profiled(make), bad, {"diagnoses": [finding()]}, wanted=1)
    assert found.value is not None and complaint in there.asked[1]["messages"][-1]["content"]
    found, there = consulted(analyse, profiled(make), bad, bad, wanted=1)
    assert found.value is None and complaint in found.reason and len(there.asked) == 2


def test_the_analyst_gives_as_many_categories_as_wanted(make):
    three = [finding(), finding(category="compute", cards=()), finding(category="spills", cards=("unroll",))]
    found, _ = consulted(analyse, profiled(make), {"diagnoses": three}, wanted=3)
    assert [one.category.value for one in found.value] == ["memory bandwidth", "compute", "spills"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_reflector_says_what_an_attempt_teaches(make, protocol):
    candidate, problem = make.candidate(), make.problem()
    attempted = Attempted(
        "memory latency", "unrolled", "-a\n+b", make.evaluation(candidate, problem), "slower"
    )
    given = {
        "diagnosis_was_right": False,
        "change_helped": None,
        "why": "It waited for something else.",
        "avoid": ["unrolling"],
        "try_next": ["wider loads"],
    }
    found, there = consulted(reflect, attempted, given, protocol=protocol)
    assert found.value == Reflection.model_validate_json(json.dumps(given))
    sent = json.dumps(there.asked)
    assert "10 us" in sent and "slower" in sent and "+b" in sent
    found, _ = consulted(reflect, attempted, {"why": "?"}, {"why": "?"}, protocol=protocol)
    assert found.value is None and "diagnosis_was_right" in found.reason


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_namer_words_the_claim_and_nothing_else(protocol):
    measured = Measured(
        op="rmsnorm",
        backend="cpp",
        arch="x86_64",
        bottleneck="memory latency",
        note="wide loads",
        change="-a\n+b",
        outcome="proven faster",
        ratio=1.25,
        evaluations=("e1", "e2"),
    )
    claim = {"claim": "Load sixteen bytes at a time.", "only_this_arch": False}
    found, _ = consulted(name, measured, claim, protocol=protocol)
    lesson = found.value
    assert (lesson.claim, lesson.op, lesson.backend, lesson.arch) == (claim["claim"], "rmsnorm", "cpp", None)
    assert (lesson.ratio, lesson.evaluations, lesson.bottleneck) == (1.25, ("e1", "e2"), "memory latency")
    boasting = {**claim, "ratio": 9.0}
    found, _ = consulted(name, measured, boasting, boasting, protocol=protocol)
    assert found.value is None and "ratio" in found.reason
