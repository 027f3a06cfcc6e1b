"""Counters of a process on a CPU: what is opened, read and derived, and what the rules make of it."""

import errno
import json
import os
import subprocess
import sys

import pytest

from kernelwright.core.counters import CounterProfile, NoCounters
from kernelwright.core.device import DeviceKind
from kernelwright.core.diagnosis import Metric, MetricSource
from kernelwright.core.technique import Bottleneck, Language, Wanted, chosen
from kernelwright.hardware import perf
from kernelwright.hardware.diagnose import diagnose
from kernelwright.hardware.perf import Count, Reading
from kernelwright.store.playbook import read_playbook

CARDS = chosen(read_playbook(), Wanted(backend=Language.CPP, op="rmsnorm"))
NOBODY = 65534
WORK = """
import ctypes, mmap, sys, threading, time
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))
sys.stdin.readline()
ctypes.CDLL(None).prctl(31, 0, 0, 0, 0)  # PR_TASK_PERF_EVENTS_DISABLE
thread = threading.Thread(target=burn, args=(0.1,))
thread.start()
thread.join()
region = mmap.mmap(-1, 4 << 20)
region.madvise(mmap.MADV_NOHUGEPAGE)
ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(region)), 1, 4 << 20)
print("done", flush=True)
sys.stdin.readline()
"""
WATCHING = """
import json, os, sys
from kernelwright.hardware import perf
os.setgroups(())
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
watch = perf.Watch(int(sys.argv[1]))
print(json.dumps([watch.refused, dict(watch.read().accounts)]))
"""


@pytest.fixture
def child():
    words = [sys.executable, "-c", WORK]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


def work(child):
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"


def told(counts, call_ns, **others):
    """Return metrics of a call as the judge of bottlenecks takes them."""
    profile = CounterProfile(
        case_hash="0" * 64, metrics=counts | perf.derived(counts, call_ns, fault_ns=500.0)
    )
    more = [Metric(name=name, value=value, source=MetricSource.TIMING) for name, value in others.items()]
    return [*profile.as_metrics(), *more]


def test_threads_started_later_are_counted_and_the_process_cannot_switch_its_counts_off(child):
    watch = perf.Watch(child.pid)
    before = watch.read()
    work(child)
    found = watch.read().since(before)
    assert found[perf.TASK_CLOCK] >= 0.1e9
    assert 1024 <= found[perf.PAGE_FAULTS] <= 4096
    assert set(watch.opened) | set(watch.refused) == {event.name for event in perf.EVENTS}
    watch.close()
    assert watch.opened == {}


def test_accounts_tell_running_and_faults_without_any_permission(child):
    before = perf.accounts(child.pid)
    work(child)
    after = perf.accounts(child.pid)
    assert after[perf.PAGE_FAULTS] - before[perf.PAGE_FAULTS] >= 1024
    assert after[perf.TASK_CLOCK] >= before[perf.TASK_CLOCK] > 0
    assert perf.accounts(2**22 - 3) == {}  # nobody has that number


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not look")
def test_who_may_not_count_is_told_why_and_what_helps_and_still_has_the_accounts():
    words = [sys.executable, "-c", WATCHING, str(os.getpid()), str(NOBODY)]
    said = subprocess.run(words, capture_output=True, check=False)
    assert said.returncode == 0, said.stderr
    refused, accounts = json.loads(said.stdout)
    software = {event.name for event in perf.EVENTS} - set(perf.HARDWARE)
    assert {name: refused[name] for name in software} == dict.fromkeys(software, errno.EACCES)
    assert set(refused) == {event.name for event in perf.EVENTS}
    assert accounts[perf.TASK_CLOCK] > 0
    lack, reason = perf.lack_of(refused)
    assert lack is NoCounters.NOT_PERMITTED
    assert "EACCES" in reason
    assert "CAP_PERFMON" in reason
    assert "\n" not in reason


def test_events_a_virtual_machine_lacks_are_named_and_the_roofline_stands_in():
    lack, reason = perf.lack_of(dict.fromkeys(perf.HARDWARE, errno.ENOENT))
    assert lack is NoCounters.NOT_SUPPORTED
    assert reason.startswith(
        "the kernel does not offer cycles, instructions, cache-misses, branch-misses here"
    )
    assert "roofline" in reason
    lack, reason = perf.lack_of({perf.CACHE_MISSES: errno.ENOENT})
    assert (lack, "offer cache-misses here" in reason) == (NoCounters.NONE, True)
    assert perf.lack_of({}) == (NoCounters.NONE, "")
    every = {event.name: errno.EPERM for event in perf.EVENTS}
    assert perf.lack_of(every)[0] is NoCounters.NOT_PERMITTED


def test_software_counts_without_hardware_ones_do_not_end_the_counting_of_a_run():
    some = CounterProfile(case_hash="0" * 64, metrics={perf.TASK_CLOCK: 1.0}, lack=NoCounters.NOT_SUPPORTED)
    none = CounterProfile(case_hash="0" * 64, lack=NoCounters.NOT_SUPPORTED)
    assert (some.is_hopeless, none.is_hopeless) == (False, True)


def test_a_reading_is_scaled_by_the_time_its_event_had_a_counter():
    before = Reading({"cycles": Count(100, 1000, 1000), "x": Count(5, 10, 0)}, {perf.RUN_DELAY: 70})
    after = Reading({"cycles": Count(400, 3000, 2000), "x": Count(5, 20, 0)}, {perf.RUN_DELAY: 50})
    assert after.since(before) == {"cycles": 600.0, perf.RUN_DELAY: 0.0}
    assert before.since(before) == {"cycles": 0.0, "x": 0.0, perf.RUN_DELAY: 0.0}


def test_what_follows_from_the_counts_of_a_call():
    counts = {
        perf.TASK_CLOCK: 1.5e6,
        perf.RUN_DELAY: 0.5e6,
        perf.PAGE_FAULTS: 300.0,
        perf.CYCLES: 4.5e6,
        perf.INSTRUCTIONS: 9e6,
        perf.CACHE_MISSES: 45e3,
    }
    assert perf.derived(counts, call_ns=1e6, fault_ns=500.0) == pytest.approx(
        {
            perf.THREADS_BUSY: 2.0,
            perf.FAULT_NS: 500.0,
            perf.FAULTS_PCT: 10.0,
            perf.IPC: 2.0,
            perf.MISSES_PER_1000: 5.0,
            perf.MISSED_BYTES: 64 * 45e3,
            perf.MISSED_RATE: 2.88e9,
        }
    )
    assert perf.derived({}, 1e6, 500.0) == {}


def test_a_fresh_page_costs_something_and_less_than_a_tenth_of_a_millisecond():
    assert 20 < perf.fresh_page_ns() < 100_000


# Calls of 1 ms on two threads at 3 GHz, as a processor with counters tells them.
COUNTED = {
    perf.TASK_CLOCK: 2e6,
    perf.PAGE_FAULTS: 0.0,
    perf.CONTEXT_SWITCHES: 2.0,
    perf.CYCLES: 6e6,
    perf.INSTRUCTIONS: 9e6,
    perf.CACHE_MISSES: 9e3,
    perf.BRANCH_MISSES: 2e3,
}
CALL = {"time_us": 1000.0, "cpu_threads": 2.0, "bytes_read": 1e6, "bytes_written": 1e6, "bytes_pct": 30.0}


@pytest.mark.parametrize(
    ("changed", "category", "severity", "card"),
    [
        ({}, None, 0.0, ""),
        (
            {perf.PAGE_FAULTS: 2048.0},  # 8 MiB taken from the system in each call
            Bottleneck.MEMORY_LATENCY,
            0.512,
            "small_scratch",
        ),
        ({perf.TASK_CLOCK: 1.05e6}, Bottleneck.THREAD_IMBALANCE, 0.475, "parallel_grain"),
        (
            {
                perf.INSTRUCTIONS: 1.5e6,
                perf.CACHE_MISSES: 30e3,
                perf.BRANCH_MISSES: 0.0,
            },  # a chase of pointers
            Bottleneck.MEMORY_LATENCY,
            0.875,
            "prefetch_next_tile",
        ),
        ({perf.INSTRUCTIONS: 18e6}, Bottleneck.INSTRUCTION_OVERHEAD, 0.7, "unrolling"),
        ({perf.BRANCH_MISSES: 90e3}, Bottleneck.INSTRUCTION_OVERHEAD, 0.225, "unrolling"),
        ({perf.CACHE_MISSES: 80e3}, Bottleneck.CACHE_MISSES, 0.609, "newest_part_first"),
        ({perf.CONTEXT_SWITCHES: 80.0}, Bottleneck.SYNCHRONISATION, 0.2, "parallel_grain"),
    ],
)
def test_the_counts_of_a_call_lead_to_its_bottleneck_and_a_card_against_it(changed, category, severity, card):
    found = diagnose(told(COUNTED | changed, call_ns=1e6, **CALL), DeviceKind.CPU, CARDS)
    if category is None:
        assert found == []
        return
    assert [one.category for one in found] == [category]
    assert found[0].severity == pytest.approx(severity, abs=0.002)
    assert card in found[0].prescriptions
    assert all(one.metric and one.relation.holds(one.value, one.threshold) for one in found[0].evidence)


def test_a_bus_at_its_limit_is_not_called_latency():
    counts = COUNTED | {perf.INSTRUCTIONS: 1.5e6, perf.CACHE_MISSES: 30e3, perf.BRANCH_MISSES: 0.0}
    found = diagnose(told(counts, call_ns=1e6, **CALL | {"bytes_pct": 85.0}), DeviceKind.CPU, CARDS)
    assert [one.category for one in found] == [Bottleneck.MEMORY_BANDWIDTH]
