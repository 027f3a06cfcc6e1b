"""The deterministic judge of bottlenecks: rules, evidence, prescriptions, and what an author is told of them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernelwright.agents import mover
from kernelwright.core import plugins
from kernelwright.core.candidate import Origin, ParamChoice
from kernelwright.core.case import DType
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Ceiling, Ceilings, DeviceKind
from kernelwright.core.diagnosis import Diagnosis, Evidence, Metric, MetricSource, Relation, check_evidence
from kernelwright.core.events import CandidateProposed, Evaluated, ProblemFound
from kernelwright.core.expansion import Expansion
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.problem import Problem
from kernelwright.core.technique import Bottleneck, Language, Wanted, architecture_of, chosen
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Stage
from kernelwright.engine.asking import brief, cards
from kernelwright.engine.diagnosing import diagnoses_of, metrics_of, telling_case
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds, seed
from kernelwright.hardware import bottleneck_rules as names
from kernelwright.hardware import perf
from kernelwright.hardware.bottleneck_rules import COUNTERS
from kernelwright.hardware.diagnose import ALL_RULES, against, diagnose
from kernelwright.hardware.occupancy import occupancy, waves
from kernelwright.ops import matmul, softmax
from kernelwright.store.playbook import read_playbook

GPU, CPU = DeviceKind.CUDA, DeviceKind.CPU
H200 = {"name": "NVIDIA H200", "memory_bytes": 141 << 30, "cache_bytes": 60 << 20}
MEASURED = Ceilings(  # of the H200, benchmarks/results/seeds_gpu.json
    copying=Ceiling(fixed_us=1.964, rate=4.273e12),
    reading=Ceiling(fixed_us=2.084, rate=4.672e12),
    flops={"fp16": 7.76e14, "fp32": 5.09e13},
)
PLAYBOOK = read_playbook()


def metrics(values):
    return [Metric(name=name, value=value, source=MetricSource.COUNTER) for name, value in values.items()]


def categories(values, kind=GPU):
    return [one.category for one in diagnose(metrics(values), kind)]


# Per case: what is diagnosed, the metrics that just say so, and values each of which alone would not.
SIDES = {
    "bytes": (Bottleneck.MEMORY_BANDWIDTH, {"bytes_pct": 60.0}, {"bytes_pct": 59.9}),
    "bytes on a CPU": (Bottleneck.MEMORY_BANDWIDTH, {"bytes_pct": 60.0}, {"bytes_pct": 59.9}),
    "bus": (Bottleneck.MEMORY_BANDWIDTH, {names.DRAM_BUSY: 60.0}, {names.DRAM_BUSY: 59.0}),
    "flops": (Bottleneck.COMPUTE, {"flops_pct": 60.0}, {"flops_pct": 59.9}),
    "multiprocessors": (
        Bottleneck.COMPUTE,
        {names.SM_BUSY: 60.0, names.DRAM_BUSY: 60.0},
        {names.SM_BUSY: 59.9, names.DRAM_BUSY: 60.1},
    ),
    "start": (Bottleneck.LAUNCH_OVERHEAD, {"fixed_pct": 30.0}, {"fixed_pct": 29.0}),
    "starts": (
        Bottleneck.LAUNCH_OVERHEAD,
        {"launches": 2.0, "fixed_pct": 10.0},
        {"launches": 1.0, "fixed_pct": 9.9},
    ),
    "idle bus": (
        Bottleneck.MEMORY_LATENCY,
        {"bytes_pct": 90.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 4.0},
        {"bytes_pct": 90.1, "arithmetic_floor_us": 4.1},
    ),
    "idle bus of a small case": (
        Bottleneck.MEMORY_LATENCY,
        {"bytes_pct": 40.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 1.0, "fixed_pct": 50.0},
        {"fixed_pct": 50.1},
    ),
    "idle bus, data in the cache": (
        Bottleneck.MEMORY_LATENCY,
        {"bytes_pct": 40.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 1.0, "warm_pct": 90.0},
        {"warm_pct": 90.1},
    ),
    "loads": (
        Bottleneck.MEMORY_LATENCY,
        {names.WAITS_FOR_LOADS: 30.0, names.DRAM_BUSY: 60.0},
        {names.WAITS_FOR_LOADS: 29.9, names.DRAM_BUSY: 60.1},
    ),
    "cached and as slow": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {"warm_pct": 90.0, "bytes_pct": 60.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 4.0},
        {"warm_pct": 89.9, "bytes_pct": 60.1, "memory_floor_us": 3.9},
    ),
    "cached and small": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {"warm_pct": 95.0, "bytes_pct": 30.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 1.0}
        | {"fixed_pct": 50.0},
        {"fixed_pct": 50.1},
    ),
    "slow stream on a CPU": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {"bytes_pct": 90.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 4.0},
        {"bytes_pct": 90.1, "memory_floor_us": 3.9},
    ),
    "slow in the cache, on a CPU": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {"flops_pct": 20.0, "cache_pct": 100.0, "fixed_pct": 50.0},
        {"cache_pct": 100.1, "fixed_pct": 50.1, "memory_floor_us": 1.0},
    ),
    "slow arithmetic in the cache, on a CPU": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {"flops_pct": 60.0, "cache_pct": 50.0},
        {"flops_pct": 60.1},
    ),
    "slow product on a CPU": (
        Bottleneck.CACHE_MISSES,
        {"flops_pct": 90.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 4.0},
        {"flops_pct": 90.1, "memory_floor_us": 4.1},
    ),
    "slow arithmetic": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {"flops_pct": 90.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 4.0},
        {"flops_pct": 90.1, "memory_floor_us": 4.1},
    ),
    "issue": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {names.ISSUE_BUSY: 60.0, "flops_pct": 20.0},
        {names.ISSUE_BUSY: 59.9, "flops_pct": 20.1},
    ),
    "narrow loads": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {"wide_loads_pct": 0.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 4.0},
        {"wide_loads_pct": 0.1, "memory_floor_us": 3.9},
    ),
    "slow products": (
        Bottleneck.TENSOR_CORE_IDLE,
        {"matrix_pct": 90.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 4.0},
        {"matrix_pct": 90.1, "memory_floor_us": 4.1},
    ),
    "idle matrix units": (
        Bottleneck.TENSOR_CORE_IDLE,
        {names.TENSOR_BUSY: 60.0, "matrix_pct": 100.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 4.0},
        {names.TENSOR_BUSY: 60.1, "matrix_pct": 100.1, "memory_floor_us": 4.1},
    ),
    "no matrix instruction": (
        Bottleneck.TENSOR_CORE_IDLE,
        {"matrix_instructions": 0.0, "matrix_pct": 100.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 4.0},
        {"matrix_instructions": 0.1, "matrix_pct": 100.1, "memory_floor_us": 4.1},
    ),
    "serialised": (Bottleneck.TENSOR_CORE_IDLE, {"wgmma_serialized": 1.0}, {"wgmma_serialized": 0.9}),
    "few warps fit": (Bottleneck.OCCUPANCY, {"resident_warps_pct": 25.0}, {"resident_warps_pct": 25.1}),
    "few warps fit a product": (
        Bottleneck.OCCUPANCY,
        {"resident_warps_pct": 12.5, "memory_floor_us": 2.0, "arithmetic_floor_us": 2.0},
        {"arithmetic_floor_us": 2.1},
    ),
    "few warps there": (
        Bottleneck.OCCUPANCY,
        {names.WARPS_ACTIVE: 25.0, names.WAITS_FOR_LOADS: 30.0},
        {names.WARPS_ACTIVE: 25.1, names.WAITS_FOR_LOADS: 29.9},
    ),
    "waves": (Bottleneck.TAIL_EFFECT, {"idle_pct": 15.0}, {"idle_pct": 14.9}),
    "waves counted": (Bottleneck.TAIL_EFFECT, {names.WAVES: 1.2}, {names.WAVES: 6.1, "idle_pct": 14.9}),
    "spilled registers": (Bottleneck.SPILLS, {"spill_bytes": 16.0}, {"spill_bytes": 12.0}),
    "local loads": (
        Bottleneck.SPILLS,
        {names.LOCAL_LOADS: 10.0, names.INSTRUCTIONS: 1000.0},
        {names.LOCAL_LOADS: 9.0},
    ),
    "parallel": (
        Bottleneck.THREAD_IMBALANCE,
        {"parallel_regions": 0.0, "cpu_threads": 2.0},
        {"parallel_regions": 0.1, "cpu_threads": 1.9},
    ),
    "lanes": (Bottleneck.THREAD_IMBALANCE, {names.LANES_ACTIVE: 24.0}, {names.LANES_ACTIVE: 24.1}),
    "read again": (
        Bottleneck.CACHE_MISSES,
        {names.DRAM_READ: 125.0, "bytes_read": 100.0},
        {names.DRAM_READ: 124.0},
    ),
    "one bank": (
        Bottleneck.BANK_CONFLICTS,
        {names.CONFLICTS: 0.5, names.SHARED_WAVEFRONTS: 1.0},
        {names.SHARED_WAVEFRONTS: 0.9},
    ),
    "one instruction": (
        Bottleneck.SPILLS,
        {names.LOCAL_LOADS: 1.0, names.INSTRUCTIONS: 1.0},
        {names.INSTRUCTIONS: 0.9},
    ),
    "banks": (
        Bottleneck.BANK_CONFLICTS,
        {names.CONFLICTS: 10.0, names.SHARED_WAVEFRONTS: 100.0, names.WAITS_FOR_SHARED: 5.0},
        {names.CONFLICTS: 9.0},
    ),
    "banks nobody waits for": (
        Bottleneck.BANK_CONFLICTS,
        {names.CONFLICTS: 50.0, names.SHARED_WAVEFRONTS: 100.0, names.WAITS_FOR_SHARED: 5.0},
        {names.WAITS_FOR_SHARED: 4.0},
    ),
    "loaded sectors": (Bottleneck.UNCOALESCED_ACCESS, {names.LOADED_USED: 70.0}, {names.LOADED_USED: 71.0}),
    "stored sectors": (Bottleneck.UNCOALESCED_ACCESS, {names.STORED_USED: 70.0}, {names.STORED_USED: 71.0}),
    "sectors of a load": (
        Bottleneck.UNCOALESCED_ACCESS,
        {names.SECTORS_PER_LOAD: 17.0},
        {names.SECTORS_PER_LOAD: 16.9, names.LOADED_USED: 100.0},
    ),
    "loads without another cause": (
        Bottleneck.MEMORY_LATENCY,
        {
            names.WAITS_FOR_LOADS: 90.0,
            names.DRAM_BUSY: 20.0,
            names.LOADED_USED: 70.0,
            names.WARPS_ACTIVE: 25.0,
        }
        | {names.LOCAL_LOADS: 10.0, names.INSTRUCTIONS: 1000.0},
        {
            names.LOADED_USED: 69.9,
            names.WARPS_ACTIVE: 24.9,
            names.LOCAL_LOADS: 10.1,
            names.SECTORS_PER_LOAD: 17.1,
        },
    ),
    "read again without another cause": (
        Bottleneck.CACHE_MISSES,
        {names.DRAM_READ: 200.0, "bytes_read": 100.0, names.LOADED_USED: 70.0}
        | {names.LOCAL_LOADS: 10.0, names.INSTRUCTIONS: 1000.0},
        {names.LOADED_USED: 69.9, names.LOCAL_LOADS: 10.1},
    ),
    "multiprocessors busy with arithmetic": (
        Bottleneck.COMPUTE,
        {names.SM_BUSY: 80.0, names.DRAM_BUSY: 20.0, "flops_pct": 20.0},
        {"flops_pct": 19.9},
    ),
    "issue without spills": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {names.ISSUE_BUSY: 80.0, names.LOCAL_LOADS: 10.0, names.INSTRUCTIONS: 1000.0},
        {names.LOCAL_LOADS: 10.1},
    ),
    "exponentials": (Bottleneck.SPECIAL_FUNCTIONS, {names.XU_BUSY: 60.0}, {names.XU_BUSY: 59.0}),
    "barriers": (
        Bottleneck.SYNCHRONISATION,
        {names.WAITS_AT_BARRIERS: 30.0},
        {names.WAITS_AT_BARRIERS: 29.0},
    ),
}
SIDES |= {
    "fresh pages on a CPU": (
        Bottleneck.MEMORY_LATENCY,
        {perf.FAULTS_PCT: 5.0, perf.PAGE_FAULTS: 1.0},
        {perf.FAULTS_PCT: 4.9, perf.PAGE_FAULTS: 0.9},
    ),
    "idle threads on a CPU": (
        Bottleneck.THREAD_IMBALANCE,
        {perf.THREADS_BUSY: 1.2, "cpu_threads": 2.0},
        {perf.THREADS_BUSY: 1.21, "cpu_threads": 1.9},
    ),
    "regions where the busy threads are counted, on a CPU": (
        Bottleneck.THREAD_IMBALANCE,
        {"parallel_regions": 0.0, "cpu_threads": 2.0},
        {perf.THREADS_BUSY: 2.0},
    ),
    "waiting for loads on a CPU": (
        Bottleneck.MEMORY_LATENCY,
        {perf.IPC: 1.0, perf.MISSES_PER_1000: 10.0, "bytes_pct": 60.0},
        {perf.IPC: 1.01, perf.MISSES_PER_1000: 9.9, "bytes_pct": 60.1},
    ),
    "many instructions on a CPU": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {perf.IPC: 2.0, perf.MISSES_PER_1000: 10.0, "bytes_pct": 60.0, "flops_pct": 60.0},
        {perf.IPC: 1.9, perf.MISSES_PER_1000: 10.1, "bytes_pct": 60.1, "flops_pct": 60.1},
    ),
    "slow stream that misses little on a CPU": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {"bytes_pct": 70.0, "memory_floor_us": 4.0, "arithmetic_floor_us": 1.0, perf.MISSES_PER_1000: 10.0},
        {perf.MISSES_PER_1000: 10.1},
    ),
    "branches on a CPU": (
        Bottleneck.INSTRUCTION_OVERHEAD,
        {perf.BRANCH_MISSES: 5.0, perf.INSTRUCTIONS: 1000.0, perf.CYCLES: 1000.0},
        {perf.BRANCH_MISSES: 4.9, perf.CYCLES: 0.9},
    ),
    "beyond the caches on a CPU": (
        Bottleneck.CACHE_MISSES,
        {perf.MISSED_BYTES: 250.0, "bytes_read": 100.0, "bytes_written": 100.0},
        {perf.MISSED_BYTES: 249.0, "bytes_read": 101.0, "bytes_written": 101.0},
    ),
    "woken threads on a CPU": (
        Bottleneck.SYNCHRONISATION,
        {perf.CONTEXT_SWITCHES: 4.0, "cpu_threads": 2.0, "time_us": 50.0},
        {perf.CONTEXT_SWITCHES: 3.9, "cpu_threads": 2.1, "time_us": 500.0},
    ),
}
ON_CPU = {"parallel"} | {name for name in SIDES if name.endswith("on a CPU")}


@pytest.mark.parametrize("name", SIDES)
def test_category_is_found_on_one_side_of_its_threshold_and_not_on_the_other(name):
    category, told, other = SIDES[name]
    kind = CPU if name in ON_CPU else GPU
    assert category in categories(told, kind)
    for metric, value in other.items():
        assert category not in categories(told | {metric: value}, kind), metric


def test_every_category_and_every_rule_has_a_case():
    assert {category for category, _, _ in SIDES.values()} == set(Bottleneck)
    silent = [
        rule
        for rule in ALL_RULES
        if not any(
            category is rule.category and {c.metric for c in rule.conditions if not c.if_known} <= set(told)
            for category, told, _ in SIDES.values()
        )
    ]
    assert silent == []


def test_nothing_is_diagnosed_of_nothing():
    assert diagnose([], GPU) == []
    assert diagnose([], CPU) == []


def test_a_rule_is_silent_on_the_other_kind_of_device_and_where_a_better_metric_is_there():
    told = SIDES["idle bus"][1]
    assert Bottleneck.MEMORY_LATENCY not in categories(told, CPU)
    assert Bottleneck.MEMORY_LATENCY not in categories(told | {names.DRAM_BUSY: 30.0})
    assert Bottleneck.THREAD_IMBALANCE not in categories(SIDES["parallel"][1], GPU)
    assert Bottleneck.SPILLS not in categories({"spill_bytes": 400.0, names.LOCAL_LOADS: 0.0})
    assert Bottleneck.OCCUPANCY not in categories({"resident_warps_pct": 10.0, names.WARPS_ACTIVE: 9.0})


def test_what_is_no_limit_of_the_hardware_costs_no_more_than_what_lies_above_the_floor():
    spilling = {"spill_bytes": 400.0}
    (free,) = diagnose(metrics(spilling), GPU)
    (capped,) = diagnose(metrics(spilling | {"floor_pct": 80.0}), GPU)
    assert (free.severity, capped.severity) == (pytest.approx(0.9), pytest.approx(0.2))
    assert diagnose(metrics(spilling | {"floor_pct": 97.0}), GPU) == []
    (limit,) = diagnose(metrics({"bytes_pct": 96.0, "floor_pct": 97.0}), GPU)
    assert limit.severity == pytest.approx(0.96)


def test_a_bus_busy_with_bytes_nobody_needed_weighs_by_the_needed_ones():
    needed = {names.BYTES_READ: 50.0, names.BYTES_WRITTEN: 50.0}
    busy = {names.DRAM_BUSY: 90.0, names.DRAM_READ: 350.0, names.DRAM_WRITTEN: 50.0}
    (free,) = diagnose(metrics(busy), GPU)
    (weighed, *_) = [
        one for one in diagnose(metrics(busy | needed), GPU) if one.category is Bottleneck.MEMORY_BANDWIDTH
    ]
    assert (free.severity, weighed.severity) == (pytest.approx(0.9), pytest.approx(0.225))


def test_strongest_comes_first_and_of_each_category_only_the_strongest():
    found = diagnose(metrics({"bytes_pct": 70.0, names.DRAM_BUSY: 95.0, names.XU_BUSY: 80.0}), GPU)
    assert [one.category for one in found] == [Bottleneck.MEMORY_BANDWIDTH, Bottleneck.SPECIAL_FUNCTIONS]
    assert found[0].evidence[0].metric == names.DRAM_BUSY


EVERY_NAME = sorted(
    {c.metric for rule in ALL_RULES for c in rule.conditions}
    | {c.of for rule in ALL_RULES for c in rule.conditions}
)


@given(
    st.dictionaries(st.sampled_from([name for name in EVERY_NAME if name]), st.floats(0, 1e6)),
    st.floats(0, 120) | st.none(),
    st.sampled_from(DeviceKind),
)
def test_every_diagnosis_rests_on_evidence_that_stands_and_names_one_category(values, floor_pct, kind):
    told = metrics(values if floor_pct is None else values | {"floor_pct": floor_pct})
    found = diagnose(told, kind, PLAYBOOK, "softmax 8x8 fp16")
    assert [check_evidence(one, told) for one in found] == [[]] * len(found)
    assert len({one.category for one in found}) == len(found)
    assert [one.severity for one in found] == sorted((one.severity for one in found), reverse=True)
    for one in found:
        assert [name for name in Bottleneck if name.value in one.text] == [one.category]


@given(st.sampled_from(list(SIDES)), st.floats(0.5, 1.0))
def test_words_of_every_rule_name_its_own_category_alone(name, scale):
    _, told, _ = SIDES[name]
    for kind in (GPU, CPU):
        for one in diagnose(
            metrics({key: value * scale for key, value in told.items()}), kind, PLAYBOOK, "case"
        ):
            assert one.text.startswith(f"{one.category.value} on case: ")
            assert [other for other in Bottleneck if other.value in one.text] == [one.category]


def a_diagnosis(**changes):
    shown = Evidence(metric="bytes_pct", value=80.0, relation=Relation.AT_LEAST, threshold=60.0)
    fields = {
        "category": Bottleneck.MEMORY_BANDWIDTH,
        "severity": 0.8,
        "evidence": (shown,),
        "sentence": "the bus is full",
    }
    return Diagnosis(**(fields | changes))


def test_evidence_must_name_a_metric_that_exists_with_its_value_to_one_per_cent():
    assert check_evidence(a_diagnosis(), metrics({"bytes_pct": 80.7})) == []
    assert check_evidence(a_diagnosis(), metrics({"bytes_pct": 81.0})) == ["bytes_pct is 81, not 80"]
    assert check_evidence(a_diagnosis(), metrics({"dram": 80.0})) == ["there is no metric 'bytes_pct'"]
    none = Evidence(metric="launches", value=0.004, relation=Relation.AT_MOST, threshold=1.0)
    assert check_evidence(a_diagnosis(evidence=(none,)), metrics({"launches": 0.0})) != []


def test_diagnosis_needs_evidence_that_holds_and_distinct_prescriptions():
    with pytest.raises(ValidationError, match="does not hold"):
        Evidence(metric="bytes_pct", value=50.0, relation=Relation.AT_LEAST, threshold=60.0)
    with pytest.raises(ValidationError, match="at least 1 item"):
        a_diagnosis(evidence=())
    with pytest.raises(ValidationError, match="not distinct"):
        a_diagnosis(prescriptions=("vector_loads", "vector_loads"))


@pytest.mark.parametrize("backend", [language.value for language in Language])
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100"])
def test_prescriptions_are_cards_of_that_language_hardware_and_op(backend, arch):
    by_name = {card.name: card for card in PLAYBOOK}
    for op in plugins.names("ops"):
        wanted = Wanted(backend=Language(backend), op=op, arch=architecture_of(arch))
        mine = chosen(PLAYBOOK, wanted)
        for category, told, _ in SIDES.values():
            for one in diagnose(metrics(told), GPU, mine):
                assert len(one.prescriptions) == min(3, len(against(one.category, mine)))
                assert all(wanted.admits(by_name[name]) for name in one.prescriptions)
                assert all(one.category in by_name[name].bottlenecks for name in one.prescriptions)
            assert all(category in card.bottlenecks for card in against(category, mine))


def test_a_card_made_for_the_bottleneck_comes_before_one_that_helps_on_the_side():
    mine = chosen(PLAYBOOK, Wanted(backend=Language.TRITON, op="matmul", arch=architecture_of("sm_90")))
    places = [
        card.bottlenecks.index(Bottleneck.MEMORY_LATENCY) for card in against(Bottleneck.MEMORY_LATENCY, mine)
    ]
    assert places == sorted(places)
    assert places[0] == 0


def test_counters_are_all_those_the_rules_read_and_are_spelled_as_the_profiler_does():
    read = {name for name in EVERY_NAME if "__" in name}
    assert read | {names.DRAM_WRITTEN} == set(COUNTERS)  # which the weight of the bus reads
    form = re.compile(r"(sm|smsp|dram|l1tex|lts|launch|gpu)__[a-z0-9_]+(\.(avg|sum|max|min))?(\.[a-z_]+)?")
    assert [name for name in COUNTERS if not form.fullmatch(name)] == []


def test_every_rule_gives_its_reason():
    assert [rule.category for rule in ALL_RULES if len(rule.reason) < 8] == []


# The vendor's own examples: the CUDA best practices guide (37 registers; the same limits as sm_70), and the limits of
# the programming guide's table.
@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "pct", "limited_by"),
    [
        ("sm_80", 128, 37, 0, 12, 75.0, "registers"),
        ("sm_90", 128, 37, 0, 12, 75.0, "registers"),
        ("sm_80", 320, 37, 0, 4, 62.5, "registers"),
        ("sm_86", 1024, 37, 8192, 1, 200 / 3, "warps"),
        ("sm_80", 32, 16, 0, 32, 50.0, "blocks"),
        ("sm_86", 32, 16, 0, 16, 100 / 3, "blocks"),
        ("sm_89", 32, 16, 0, 24, 50.0, "blocks"),
        ("sm_90", 256, 255, 0, 1, 12.5, "registers"),
        ("sm_90", 128, 32, 227 << 10, 1, 6.25, "shared memory"),
        ("sm_80", 128, 32, 163 << 10, 1, 6.25, "shared memory"),
        ("sm_100", 1024, 32, 0, 2, 100.0, "warps"),
        ("sm_90", 1024, 80, 0, 0, 0.0, "registers"),
    ],
)
def test_occupancy_is_the_vendors(arch, threads, registers, shared, blocks, pct, limited_by):
    found = occupancy(arch, threads, registers, shared)
    assert (found.blocks, found.pct, found.limited_by) == (blocks, pytest.approx(pct), limited_by)


def test_occupancy_of_a_target_nobody_entered_is_unknown():
    assert occupancy("gfx942", 256, 32) is None


def test_waves_are_those_of_the_vendors_guide():
    twelve = waves(12, 1, 8)  # twelve blocks on eight multiprocessors: the second wave uses half of them
    assert (twelve.count, twelve.idle_pct) == (1.5, 25.0)
    assert waves(8, 1, 8).idle_pct == 0
    assert waves(6, 4, 8).idle_pct == 25  # two multiprocessors get no block
    assert waves(20, 4, 8).idle_pct == 0  # one wave, every multiprocessor at work
    assert waves(0, 4, 8) is None


def timed(make, problem, candidate, times, **changes):
    """Return a node with certified times; `times` are (median, floor, warm) per case."""
    timing = make.timing(problem, *zip(*times, strict=True))
    verdict = make.evaluation(candidate, problem, timing=timing, **changes)
    return Node(candidate, problem.hash, 1, evaluations=[verdict])


def long_softmax(make, backend="triton"):
    case = softmax.case({"rows": 4096, "cols": 50257}, DType.FP16)
    problem = Problem(op="softmax", cases=(case,), device=make.device(**H200))
    return problem, seed("softmax", backend, Origin.AUTHOR)


def asked(problem, node, expansion, ceilings, tmp_path):
    tree = Tree()
    for body in (
        ProblemFound(problem=problem),
        CandidateProposed(problem_hash=problem.hash, candidate=node.candidate),
        *(Evaluated(evaluation=one) for one in node.evaluations),
    ):
        tree.apply(body)
    config, seeds = RunConfig(op=problem.op), Seeds((node.candidate.backend,), 1)
    run = Run(config, problem.device, 1, tmp_path, tree.apply, tree, lambda _: None, seeds)
    run.ceilings = ceilings
    return brief(run, expansion, 8)


def test_brief_of_a_memory_bound_softmax_on_an_h200_tells_the_bandwidth_with_its_numbers(make, tmp_path):
    problem, candidate = long_softmax(make)
    node = timed(
        make, problem, candidate, [(241.691, 193.806, None)]
    )  # as benchmarks/results/seeds_gpu.json has it
    first = Expansion(problem_hash=problem.hash, parents=(candidate.hash,))
    found = asked(problem, node, first, MEASURED, tmp_path)
    assert found.diagnoses[0] == (
        "memory bandwidth on softmax 4096x50257 fp16: the bytes that must be moved fill 79.7 % of the time at the "
        "device's own rate [bytes_pct 79.73 >= 60] try one_pass_over_memory, online_softmax, power_of_two_tiles"
    )
    assert found.diagnoses[1].startswith("memory latency on softmax 4096x50257 fp16: ")
    titles = [card.splitlines()[0] for card in found.cards]
    assert "(one_pass_over_memory)" in titles[0]
    assert "(online_softmax)" in titles[1]
    against_it = plugins.load("moves", mover.ordered(found)[0]).AGAINST
    assert Bottleneck.MEMORY_BANDWIDTH in against_it

    second = asked(problem, node, first.model_copy(update={"diagnosis": 1}), MEASURED, tmp_path)
    assert second.diagnoses == found.diagnoses
    assert second.cards != found.cards
    past = asked(problem, node, first.model_copy(update={"diagnosis": 9}), MEASURED, tmp_path)
    plain = [card.markdown for card in cards(problem, "triton")[:6]]
    assert list(past.cards) == plain


def test_without_measured_ceilings_the_data_sheet_and_the_certified_floor_say_the_same(make):
    problem, candidate = long_softmax(make)
    node = timed(make, problem, candidate, [(241.691, 193.806, None)])
    (first, *_) = diagnoses_of(problem, node, (), None)
    assert first.category is Bottleneck.MEMORY_BANDWIDTH
    assert first.evidence[0].value == pytest.approx(100 * 193.806 / 241.691)
    unknown = problem.model_copy(update={"device": make.device(name="A card nobody entered")})
    assert diagnoses_of(unknown, node, (), None) == []


def test_what_was_not_certified_has_no_diagnosis(make, tmp_path):
    problem, candidate = long_softmax(make)
    failed = make.evaluation(candidate, problem, failed=Stage.SMOKE)
    node = Node(candidate, problem.hash, 1, evaluations=[failed])
    assert diagnoses_of(problem, node, PLAYBOOK, MEASURED) == []
    first = Expansion(problem_hash=problem.hash, parents=(candidate.hash,))
    assert asked(problem, node, first, MEASURED, tmp_path).diagnoses == ()
    assert asked(problem, node, first.model_copy(update={"parents": ()}), None, tmp_path).diagnoses == ()


def test_the_case_with_most_to_win_speaks_for_the_problem(make):
    cases = [softmax.case({"rows": 4096, "cols": cols}, DType.FP16) for cols in (1024, 4096)]
    weighted = tuple(
        case.model_copy(update={"weight": weight}) for case, weight in zip(cases, (0.7, 0.3), strict=True)
    )
    problem = Problem(op="softmax", cases=weighted, device=make.device(**H200))
    candidate = seed("softmax", "triton", Origin.AUTHOR)
    near = timed(make, problem, candidate, [(5.0, 4.9, None), (40.0, 10.0, None)])
    far = timed(make, problem, candidate, [(10.0, 4.9, None), (40.0, 10.0, None)])
    assert telling_case(problem, near).axes["cols"] == 4096
    assert telling_case(problem, far).axes["cols"] == 1024
    assert telling_case(problem, Node(candidate, problem.hash, 1)) is None


def with_resources(make, resources, axes, times):
    """Return metrics of a matmul seed in Triton of which the compiler told this."""
    case = matmul.case(axes, DType.FP16)
    problem = Problem(op="matmul", cases=(case,), device=make.device(**H200))
    candidate = seed("matmul", "triton", Origin.AUTHOR)
    plan = run_plan(parse_plan(candidate.source), case, candidate.values_for(case.hash), problem.device)
    told = {kernel_unit(launch, case).hash[:16]: resources for launch in plan.launches}
    node = timed(make, problem, candidate, [times], resources=told)
    return {one.name: one.value for one in metrics_of(problem, node, case, MEASURED)}, plan


def test_metrics_hold_what_the_compiler_told_and_how_the_grid_fills_the_device(make):
    told = {"registers": 168, "threads": 128, "shared_bytes": 98304, "wgmma": 8, "spill_store_bytes": 24}
    told |= {"spill_load_bytes": 40, "ld_global_4B": 6, "ld_global_16B": 2, "wgmma_serialized": 0}
    axes = {"m": 4096, "n": 4096, "k": 4096}
    found, plan = with_resources(make, told, axes, (216.126, 181.396, 200.0))
    assert found["spill_bytes"] == 64
    assert found["matrix_instructions"] == 8
    assert found["wide_loads_pct"] == 25
    assert found["launches"] == len(plan.launches)
    assert found["resident_warps_pct"] == 100 * 2 * 4 / 64  # two blocks of four warps by shared memory
    assert found["time_us"] == 216.126
    assert found["flops_pct"] == pytest.approx(100 * 2 * 4096**3 / 7.76e14 / 216.126e-6)
    assert found["matrix_pct"] == found["flops_pct"]
    assert "warm_pct" not in found  # 96 MiB do not fit half of the cache
    copied, _ = with_resources(make, told | {"cp_async": 4}, axes, (216.126, 181.396, None))
    assert "wide_loads_pct" not in copied


def test_warm_times_count_where_the_case_fits_the_cache(make):
    case = softmax.case({"rows": 512, "cols": 1024}, DType.FP16)
    problem = Problem(op="softmax", cases=(case,), device=make.device(**H200))
    candidate = seed("softmax", "triton", Origin.AUTHOR)
    node = timed(make, problem, candidate, [(8.0, 2.6, 7.6)])
    found = {one.name: one for one in metrics_of(problem, node, case, MEASURED)}
    assert found["warm_pct"].value == pytest.approx(95.0)
    assert found["warm_pct"].source is MetricSource.TIMING
    assert Bottleneck.MEMORY_LATENCY not in [
        one.category for one in diagnoses_of(problem, node, (), MEASURED)
    ]
    assert diagnoses_of(problem, node, (), MEASURED)[0].category is Bottleneck.INSTRUCTION_OVERHEAD


def on_cpu(make, source, times, cache_bytes=1 << 20):
    device = make.device(
        kind=CPU, name="a CPU", arch="x86_64", units=8, cache_bytes=cache_bytes, shared_bytes=0
    )
    case = softmax.case({"rows": 4096, "cols": 4096}, DType.FP32)
    problem = Problem(op="softmax", cases=(case,), device=device)
    candidate = make.candidate(source, op="softmax", choices=(ParamChoice(values={}),))
    node = timed(make, problem, candidate, [times], environment={"threads": "8"})
    slow = Ceiling(fixed_us=1.0, rate=2e10)
    ceilings = Ceilings(copying=slow, reading=slow, flops={"fp32": 2e11})
    return {one.category: one for one in diagnoses_of(problem, node, cards(problem, "cpp"), ceilings)}


def test_cpu_kernel_on_one_core_is_told_so_and_a_parallel_one_is_not(make):
    floor = 134217728 / 2e10 * 1e6 + 1
    alone = on_cpu(make, "int kernel_fn();", (8 * floor, floor, None))
    assert alone[Bottleneck.THREAD_IMBALANCE].severity == pytest.approx(0.875)
    assert alone[Bottleneck.THREAD_IMBALANCE].prescriptions[0] == "parallel_grain"
    assert alone[Bottleneck.INSTRUCTION_OVERHEAD].evidence[0].value == pytest.approx(12.5, rel=1e-3)
    shared = on_cpu(make, "#pragma omp parallel for\nint kernel_fn();", (1.2 * floor, floor, None))
    assert list(shared) == [Bottleneck.MEMORY_BANDWIDTH, Bottleneck.INSTRUCTION_OVERHEAD]


def test_cpu_case_that_fits_the_cache_says_nothing_of_the_bus(make):
    parallel = "#pragma omp parallel for\nint kernel_fn();"
    assert on_cpu(make, parallel, (9000.0, None, None)) == {}  # 128 MiB do not fit a cache of 1 MiB
    (told,) = on_cpu(make, parallel, (9000.0, None, None), cache_bytes=256 << 20).values()
    assert told.category is Bottleneck.INSTRUCTION_OVERHEAD
    assert [one.value for one in told.evidence] == [
        pytest.approx(100 * 5 * 4096**2 / 2e11 / 9e-3),
        50.0,
        pytest.approx(100 / 9000),
    ]
