"""Hardware counters: what the profiler prints, what becomes of it, and what is said where it cannot work.

The profiler is a script that answers as Nsight Compute does; everything around it is real.
"""

import fcntl
import gzip
import json
import os
import re
import stat
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from kernelwright.core.candidate import Origin
from kernelwright.core.case import DType
from kernelwright.core.config import RunConfig
from kernelwright.core.counters import TIME, CounterProfile, KernelCounters, NoCounters, of_call
from kernelwright.core.device import DeviceKind
from kernelwright.core.diagnosis import Metric
from kernelwright.core.events import (
    CandidateProposed,
    Evaluated,
    ExpansionAsked,
    ProblemFound,
    Profiled,
)
from kernelwright.core.expansion import Expansion
from kernelwright.core.plan import BufferArg, Launch, LaunchPlan, kernel_unit
from kernelwright.core.plan_language import parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.problem import Problem
from kernelwright.core.technique import Bottleneck
from kernelwright.core.tree import Tree
from kernelwright.engine import profiling
from kernelwright.engine.asking import brief
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds, seed
from kernelwright.hardware import bottleneck_rules as names
from kernelwright.hardware import counters, ncu, perf
from kernelwright.hardware.counters import WANTED, Profiler, Workload, aggregated
from kernelwright.hardware.diagnose import diagnose
from kernelwright.hardware.lock import DeviceLock
from kernelwright.ops import softmax
from kernelwright.store.blobs import Blobs

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "counters.json"
VERSION = """NVIDIA (R) Nsight Compute Command Line Profiler
Copyright (c) 2018-2025 NVIDIA Corporation
Version 2025.3.1.0 (build 36398880) (public-release)
"""
LISTED = """Device NVIDIA H200 (GH100)
------------------------------------------ ----------- ----------- --------------------------------------
Metric Name                                Metric Type Metric Unit Metric Description
------------------------------------------ ----------- ----------- --------------------------------------
dram__bytes_read                           Counter     byte        # of bytes read from DRAM
gpu__time_duration                         Counter     ns          incremental duration in nanoseconds
smsp__thread_inst_executed_per_inst_executed Ratio                 # of active threads per instruction
"""
RAW = '''==PROF== Connected to process 4711 (/opt/torch/.venv/bin/python3.12)
==PROF== Profiling "reduce" - 0: 0%....50%....100% - 5 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","gpu__time_duration.sum","launch__occupancy_limit","sm__throughput.avg.pct_of_peak_sustained_elapsed"
"","","","","","","","","","","","byte","ns","","%"
"0","4711","python3.12","127.0.0.1","reduce<float, (int)4>","1","7","(256, 1, 1)","(132, 1, 1)","0","9.0",\
"4,194,304","12,416.50","registers","35.25"
"1","4711","python3.12","127.0.0.1","say ""hello""","1","7","(256, 1, 1)","(132, 1, 1)","0","9.0",\
"1,024","2,000","n/a","nan"
'''
LONG = """"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","python3","host","copy","1","7","0","9.0","Command line","dram__bytes_read.sum","Mbyte","2.5"
"0","1","python3","host","copy","1","7","0","9.0","Command line","gpu__time_duration.sum","usecond","3"
"1","1","python3","host","copy","1","7","0","9.0","Command line","gpu__time_duration.sum","msecond","1"
"""
DENIED = """==PROF== Connected to process 9012 (/usr/bin/python3)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the \
target device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 9012
"""
SCRIPT = """#!{python}
import json, os, sys, time
from pathlib import Path
here = Path(__file__).parent
words = sys.argv[1:]
if words[0] in ("--version", "--query-metrics"):
    print((here / words[0]).read_text(), end="")
    sys.exit()
with (here / "calls").open("a") as file:
    file.write(json.dumps({{"words": words, "environment": dict(os.environ)}}) + "\\n")
exec((here / "during.py").read_text() if (here / "during.py").exists() else "")
asked = words[words.index("--metrics") + 1].split(",")
unknown = [name for name in (here / "unknown").read_text().split() if name in asked]
log = Path(words[words.index("--log-file") + 1])
if unknown:
    log.write_text("==ERROR== Failed to find metric " + unknown[0] + "\\n")
    sys.exit(1)
log.write_text((here / "table").read_text())
sys.exit(int((here / "code").read_text()))
"""


class FakeNcu:
    """A profiler in a folder: what it answers are files there, what it was asked is counted."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.path = folder / "ncu"
        self.path.write_text(SCRIPT.format(python=sys.executable))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)
        self.answer(table="", code=0)
        (folder / "--version").write_text(VERSION)
        (folder / "--query-metrics").write_text("")
        (folder / "unknown").write_text("")

    def answer(self, table, code=0):
        (self.folder / "table").write_text(table)
        (self.folder / "code").write_text(str(code))

    @property
    def calls(self):
        log = self.folder / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def fake(tmp_path):
    return FakeNcu(tmp_path / "bin")


def table(*rows):
    """Return what the profiler prints of launches given as name and metrics."""
    columns = sorted({name for _, metrics in rows for name in metrics})
    first = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
    header = [*first, "Block Size", "Grid Size", "Device", "CC", *columns]
    units = [""] * 11 + ["ns" if name == TIME else "%" if name.endswith("pct") else "" for name in columns]
    lines = [header, units]
    for number, (kernel, metrics) in enumerate(rows):
        told = [f"{metrics[name]:,.2f}" if name in metrics else "n/a" for name in columns]
        lines.append(
            [str(number), "1", "python3", "h", kernel, "1", "7", "(1, 1, 1)", "(1, 1, 1)", "0", "9.0", *told]
        )
    return "\n".join(",".join(f'"{field}"' for field in line) for line in lines) + "\n"


PARTS = [
    ("split", {TIME: 1000.0, names.DRAM_READ: 600.0, names.DRAM_BUSY: 80.0}),
    ("join", {TIME: 3000.0, names.DRAM_READ: 400.0, names.DRAM_BUSY: 40.0}),
    ("scale", {TIME: 1000.0, names.DRAM_READ: 0.0, names.DRAM_BUSY: 30.0}),
]


def work(make, folder, kernels=("split", "join", "scale"), code=b"code", **device):
    """Return a call of several kernels, their binaries on disk, and one launch that has nothing to do."""
    case = make.case()
    args = (BufferArg(name="x"), BufferArg(name="out"))
    launches = [Launch(kernel=name, grid=(4, 1, 1), block=(32, 1, 1), args=args) for name in kernels]
    empty = Launch(kernel="empty", grid=(0, 1, 1), block=(32, 1, 1), args=args)
    plan = LaunchPlan(launches=(*launches, empty))
    units = {}
    for launch in plan.launches:
        key = kernel_unit(launch, case).hash[:16]
        units[key] = (folder / f"{key}.cubin", folder / f"{key}.json")
        units[key][0].write_bytes(code + launch.kernel.encode())
        units[key][1].write_text('{"entry": "k"}')
    return Workload(case, plan, units, make.device(**device))


@pytest.fixture
def profiler(fake, tmp_path, make):
    lock = DeviceLock(make.device(), folder=tmp_path / "locks", uuid="GPU-1", wait_s=0)
    return Profiler(tmp_path / "cache", tool=fake.path, lock=lock)


def test_raw_page_gives_a_row_per_launch_in_base_units_and_leaves_out_what_is_not_told():
    first, second = ncu.parse(RAW)
    assert first.kernel == "reduce<float, (int)4>"
    assert first.metrics == {names.DRAM_READ: 4194304.0, TIME: 12416.5, names.SM_BUSY: 35.25}
    assert second.kernel == 'say "hello"'
    assert second.metrics == {names.DRAM_READ: 1024.0, TIME: 2000.0}


def test_long_form_of_other_versions_says_the_same():
    first, second = ncu.parse(LONG)
    assert first.metrics == {names.DRAM_READ: 2.5e6, TIME: 3000.0}
    assert second.metrics == {TIME: 1e6}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==PROF== nothing\n", "0 tables"),
        (RAW + RAW, "2 tables"),
        (RAW.replace('"35.25"\n', '"35.25","1"\n'), "a row of 16 fields under 15 columns"),
        (RAW.replace('"35.25"\n', '"many"\n'), "is 'many'"),
        (RAW.replace('"byte","ns"', '"byte","fortnight"'), "in unit 'fortnight'"),
        (RAW.replace('"","","","","","","","","","","","byte","ns","","%"\n', ""), "no line of units"),
        (RAW.replace('"Kernel Name"', '"Name"'), "no column 'Kernel Name'"),
        (RAW.replace('say ""hello""', 'say "hello"'), "no CSV"),
    ],
)
def test_a_table_that_is_not_exactly_one_is_refused(text, words):
    with pytest.raises(ncu.BadOutput, match=re.escape(words)):
        ncu.parse(text)


def test_three_kernels_give_three_rows_whose_shares_add_up_to_the_whole_call():
    later = [(name, {key: 2 * value for key, value in metrics.items()}) for name, metrics in PARTS]
    rows = [ncu.Row(*row) for row in (*later, *PARTS, *PARTS)]
    found = aggregated(rows, 3, 3)
    assert [one.name for one in found] == ["split", "join", "scale"]
    assert [one.share for one in found] == [0.2, 0.6, 0.2]
    assert sum(one.share for one in found) == pytest.approx(1)
    assert sum(one.time_us for one in found) == 5.0  # the median call, in us
    whole = of_call(found)
    assert whole[names.DRAM_READ] == 1000.0  # bytes are added up
    assert whole[names.DRAM_BUSY] == pytest.approx(0.2 * 80 + 0.6 * 40 + 0.2 * 30)  # shares are weighed


def test_calls_that_launch_something_else_are_no_steady_state():
    rows = [ncu.Row(*row) for row in PARTS]
    with pytest.raises(ncu.BadOutput, match="5 kernels were seen where 2 calls of 3 launches were made"):
        aggregated([*rows, *rows[:2]], 3, 2)
    with pytest.raises(ncu.BadOutput, match="do not launch the same kernels: 'split'"):
        aggregated([*rows, *reversed(rows)], 3, 2)
    with pytest.raises(ncu.BadOutput, match="no time of 'split'"):
        aggregated([ncu.Row("split", {names.DRAM_READ: 1.0})], 1, 1)


def test_profile_is_of_the_bracketed_calls_and_lists_what_is_missing(fake, profiler, make, tmp_path):
    fake.answer(table(*PARTS * 3))
    found = profiler.profile(work(make, tmp_path))
    assert (found.lack, found.reason, found.tool, found.calls) == (NoCounters.NONE, "", "ncu 2025.3.1.0", 3)
    assert [kernel.name for kernel in found.kernels] == ["split", "join", "scale"]
    assert found.metrics[names.DRAM_READ] == 1000.0
    assert set(found.missing) == set(WANTED) - {TIME, names.DRAM_READ, names.DRAM_BUSY}
    (call,) = fake.calls
    words = " ".join(call["words"])
    for option in (
        "--profile-from-start off",
        "--clock-control none",
        "--csv --page raw",
        "--print-units base",
    ):
        assert option in words
    assert words.split("-m ")[1].startswith("kernelwright.worker.profiled ")


def test_metrics_the_profiler_does_not_list_are_not_asked_for_and_named(fake, profiler, make, tmp_path):
    (fake.folder / "--query-metrics").write_text(LISTED)
    fake.answer(table(*PARTS * 3))
    found = profiler.profile(work(make, tmp_path))
    (call,) = fake.calls
    asked = call["words"][call["words"].index("--metrics") + 1].split(",")
    launch = [name for name in WANTED if name.startswith("launch__")]
    assert sorted(asked) == sorted([TIME, names.DRAM_READ, names.LANES_ACTIVE, *launch])
    assert names.TENSOR_BUSY in found.missing


def test_a_counter_that_goes_by_another_name_on_a_chip_is_known_by_both(fake, profiler, make, tmp_path):
    other = ncu.SAME[names.LOCAL_LOADS][0]
    (fake.folder / "--query-metrics").write_text(f"{LISTED}{other.partition('.')[0]}  Counter inst\n")
    fake.answer(table(*[(name, metrics | {other: 7.0}) for name, metrics in PARTS] * 3))
    found = profiler.profile(work(make, tmp_path))
    assert (found.metrics[names.LOCAL_LOADS], found.metrics[other]) == (21.0, 21.0)
    assert names.LOCAL_LOADS not in found.missing
    (call,) = fake.calls
    asked = call["words"][call["words"].index("--metrics") + 1].split(",")
    assert (other in asked, names.LOCAL_LOADS in asked) == (True, False)


def test_metrics_refused_by_name_are_left_out_one_after_the_other(fake, profiler, make, tmp_path):
    (fake.folder / "unknown").write_text(f"{names.XU_BUSY} {names.WAVES}")
    fake.answer(table(*PARTS * 3))
    found = profiler.profile(work(make, tmp_path))
    asked = [set(call["words"][call["words"].index("--metrics") + 1].split(",")) for call in fake.calls]
    assert [before - after for before, after in pairwise(asked)] == [{names.XU_BUSY}, {names.WAVES}]
    assert found.lack is NoCounters.NONE
    assert {names.XU_BUSY, names.WAVES} <= set(found.missing)


def test_the_profilers_own_way_of_refusing_is_understood():
    said = (
        "==ERROR== Failed to find metric regex:^launch__waves_per_multiprocessor\\.(sum|min|max|avg|pct)$\n"
    )
    assert ncu.refused_metrics(said, WANTED) == [names.WAVES]
    assert ncu.refused_metrics(f"==ERROR== Failed to find metric {names.XU_BUSY}.\n", WANTED) == [
        names.XU_BUSY
    ]
    assert ncu.refused_metrics(DENIED, WANTED) == []


def test_the_same_code_on_the_same_workload_is_profiled_once_and_anything_else_anew(
    fake, profiler, make, tmp_path
):
    fake.answer(table(*PARTS * 3))
    first = profiler.profile(work(make, tmp_path))
    again = profiler.profile(work(make, tmp_path))
    assert len(fake.calls) == 1
    assert again == first.model_copy(update={"seconds": 0.0})
    profiler.profile(work(make, tmp_path, code=b"other code"))
    profiler.profile(work(make, tmp_path, code=b"other code", name="Another GPU"))
    assert len(fake.calls) == 3
    (fake.folder / "--version").write_text(VERSION.replace("2025.3.1.0", "2026.1.0.0"))
    profiler.profile(work(make, tmp_path, code=b"other code"))
    assert len(fake.calls) == 4
    fake.answer(table(*PARTS[:2] * 3))
    profiler.profile(work(make, tmp_path, ("split", "join"), code=b"other code"))
    assert len(fake.calls) == 5


def test_the_device_is_locked_while_it_is_profiled_and_no_key_goes_along(
    fake, profiler, make, tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    fake.answer(table(*PARTS * 3))
    (fake.folder / "during.py").write_text(
        "import fcntl\n"
        f"lock = open({str(profiler.lock.path)!r})\n"
        "try:\n"
        "    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    (here / 'free').touch()\n"
        "except BlockingIOError:\n"
        "    (here / 'held').touch()\n"
    )
    profiler.profile(work(make, tmp_path))
    assert ((fake.folder / "held").exists(), (fake.folder / "free").exists()) == (True, False)
    assert "sk-planted" not in json.dumps(fake.calls)
    with profiler.lock.path.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # and free again


def test_without_permission_one_line_says_who_refuses_and_what_helps(fake, profiler, make, tmp_path):
    fake.answer(DENIED, code=1)
    found = profiler.profile(work(make, tmp_path))
    assert (found.lack, found.metrics, found.kernels) == (NoCounters.NOT_PERMITTED, {}, ())
    assert "administrators only" in found.reason
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.reason
    assert "\n" not in found.reason
    fake.answer(table(*PARTS * 3))
    assert profiler.profile(work(make, tmp_path)).lack is NoCounters.NONE  # a refusal is not kept


@pytest.mark.parametrize(
    ("said", "code", "lack", "words"),
    [
        (
            "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n",
            1,
            NoCounters.NOT_SUPPORTED,
            "gVisor",
        ),
        (
            "==WARNING== No kernels were profiled.\n",
            0,
            NoCounters.FAILED,
            "ended with 0: ==WARNING== No kernels",
        ),
        ("==ERROR== The application returned an error code (1).\n", 1, NoCounters.FAILED, "error code (1)"),
        (
            "==ERROR== The application returned an error code (1).\nint4 is not supported\n",
            1,
            NoCounters.FAILED,
            "(1)",
        ),
        (table(*PARTS), 0, NoCounters.FAILED, "3 kernels were seen where 3 calls of 3 launches"),
    ],
)
def test_every_other_failure_is_typed_and_says_the_profilers_own_words(
    fake, profiler, make, tmp_path, said, code, lack, words
):
    fake.answer(said, code)
    found = profiler.profile(work(make, tmp_path))
    assert found.lack is lack
    assert words in found.reason
    assert not list((tmp_path / "cache").glob("*.json"))


def test_a_profiler_that_hangs_is_ended_and_said_to(fake, profiler, make, tmp_path, monkeypatch):
    monkeypatch.setattr(counters, "PROFILE_SECONDS", 1.0)
    (fake.folder / "during.py").write_text("(here / 'pid').write_text(str(os.getpid())); time.sleep(60)")
    found = profiler.profile(work(make, tmp_path))
    assert found.lack is NoCounters.TIMED_OUT
    with pytest.raises(ProcessLookupError):
        os.kill(int((fake.folder / "pid").read_text()), 0)


def test_without_a_profiler_the_remedy_is_named(make, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu, "PLACES", (f"{tmp_path}/*/ncu",))
    found = Profiler(tmp_path / "cache").profile(work(make, tmp_path))
    assert found.lack is NoCounters.NOT_INSTALLED
    assert "put ncu on PATH" in found.reason
    newest = tmp_path / "2025.3" / "ncu"
    newest.parent.mkdir()
    newest.touch()
    assert ncu.found() == newest


class Profiling:
    """A run on a GPU whose parents wait to be profiled, and the journal it leaves."""

    def __init__(self, make, tmp_path, problem, candidates, **config):
        self.bodies, self.tree, self.counted = [], Tree(), []
        device = problem.device
        config = RunConfig(op=problem.op, **config)
        self.run = Run(
            config, device, 1, tmp_path, self.record, self.tree, lambda _: None, Seeds(("triton",), 1)
        )
        self.run.cache = tmp_path / "home" / "inductor"
        self.record([ProblemFound(problem=problem)])
        for candidate in candidates:
            self.record([CandidateProposed(problem_hash=problem.hash, candidate=candidate)])
            timing = make.timing(problem, 800.0)
            kept = self.artefacts(problem, candidate, Blobs(tmp_path / "blobs"))
            verdict = make.evaluation(candidate, problem, artefact_hashes=kept, timing=timing)
            self.record([Evaluated(evaluation=verdict)])
            for wait in range(2):
                wanted = Expansion(problem_hash=problem.hash, parents=(candidate.hash,), diagnosis=wait)
                self.record([ExpansionAsked(strategy="beam", expansion=wanted)])
        self.problem = problem

    def record(self, bodies):
        self.bodies += bodies
        for body in bodies:
            self.tree.apply(body)

    @staticmethod
    def artefacts(problem, candidate, blobs):
        (case,) = problem.cases
        plan = run_plan(parse_plan(candidate.source), case, candidate.values_for(case.hash), problem.device)
        keys = [kernel_unit(launch, case).hash[:16] for launch in plan.launches]
        return {
            f"{key}{end}": blobs.put(f"{candidate.hash}{key}{end}".encode())
            for key in keys
            for end in (".cubin", ".json")
        }

    def count(self, problem, candidate, case_hash):
        """Answer in the judge's place: on a CPU it counts."""
        self.counted.append(candidate.hash)
        told = {perf.PAGE_FAULTS: 2048.0, perf.FAULTS_PCT: 60.0}
        lack = NoCounters.NOT_SUPPORTED
        return CounterProfile(case_hash=case_hash, metrics=told, lack=lack, reason="no PMU", seconds=1.0)

    def step(self):
        node = profiling.profile_due(self.run, self.problem)
        if node is not None:
            profiling.read_counters(self.run, self, self.problem, node)
        return node


@pytest.fixture
def on_path(fake, monkeypatch):
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(profiling, "drawn", lambda _case, _folder: {})  # drawing takes torch
    return fake


def parents(make):
    """Return a problem on an H200 and two parents of its expansions."""
    case = softmax.case({"rows": 4096, "cols": 50257}, DType.FP16)
    device = make.device(name="NVIDIA H200", index=63, memory_bytes=141 << 30, cache_bytes=60 << 20)
    first = seed("softmax", "triton", Origin.AUTHOR)
    second = first.model_copy(update={"source": first.source + "\n# another one\n"})
    return Problem(op="softmax", cases=(case,), device=device), (first, second)


CALLED = {TIME: 250e3, names.LOADED_USED: 25.0, names.DRAM_BUSY: 30.0, names.WAITS_FOR_LOADS: 80.0}


def test_every_parent_is_profiled_once_in_a_run_and_the_journal_alone_gives_the_same_brief(
    on_path, make, tmp_path
):
    problem, candidates = parents(make)
    on_path.answer(table(*[("softmax", CALLED)] * 3))
    grown = Profiling(make, tmp_path, problem, candidates)
    before = brief(grown.run, grown.tree.quests[problem.hash].pending[0], 8)
    assert [grown.step().candidate.hash for _ in candidates] == [one.hash for one in candidates]
    assert grown.step() is None
    assert len(on_path.calls) == 2  # four expansions of two parents
    told = [body for body in grown.bodies if isinstance(body, Profiled)]
    assert [one.candidate_hash for one in told] == [one.hash for one in candidates]
    after = brief(grown.run, grown.tree.quests[problem.hash].pending[0], 8)
    assert not any("uncoalesced access" in line for line in before.diagnoses)
    assert after.diagnoses[0].startswith("uncoalesced access on softmax 4096x50257 fp16: 25.0 % of the bytes")

    resumed = Profiling(make, tmp_path / "again", problem, ())
    resumed.record([body for body in grown.bodies if not isinstance(body, ProblemFound)])
    assert resumed.step() is None
    assert brief(resumed.run, resumed.tree.quests[problem.hash].pending[0], 8) == after


def test_a_machine_that_refuses_counters_is_asked_once_in_a_run(on_path, make, tmp_path):
    problem, candidates = parents(make)
    on_path.answer(DENIED, code=1)
    grown = Profiling(make, tmp_path, problem, candidates)
    assert grown.step() is not None
    assert grown.step() is None
    assert len(on_path.calls) == 1
    assert grown.bodies[-1].profile.lack is NoCounters.NOT_PERMITTED


def test_on_a_cpu_the_judge_counts_every_parent_once_and_its_software_counts_reach_the_brief(
    on_path, make, tmp_path
):
    problem, candidates = parents(make)
    on_cpu = problem.model_copy(update={"device": problem.device.model_copy(update={"kind": DeviceKind.CPU})})
    grown = Profiling(make, tmp_path, on_cpu, candidates)
    assert [grown.step().candidate.hash for _ in candidates] == [one.hash for one in candidates]
    assert grown.step() is None
    assert grown.counted == [one.hash for one in candidates]
    assert on_path.calls == []
    told = brief(grown.run, grown.tree.quests[on_cpu.hash].pending[0], 8)
    assert told.diagnoses[0].startswith(
        "memory latency on softmax 4096x50257 fp16: touching 2048 fresh pages"
    )
    again = Profiling(make, tmp_path, on_cpu, candidates[:1])
    again.step()
    assert again.counted == []  # another run on the same machine finds it kept


def test_nothing_is_profiled_when_it_is_switched_off_or_when_it_has_cost_its_share(on_path, make, tmp_path):
    problem, candidates = parents(make)
    assert Profiling(make, tmp_path / "off", problem, candidates, counters="off").step() is None
    grown = Profiling(make, tmp_path / "spent", problem, candidates, budget_s=100.0)
    costly = CounterProfile(case_hash=problem.cases[0].hash, seconds=10.1)
    grown.record([Profiled(problem_hash=problem.hash, candidate_hash=candidates[0].hash, profile=costly)])
    assert grown.step() is None
    assert on_path.calls == []


def test_counters_of_another_case_are_not_taken_for_this_one(on_path, make, tmp_path):
    problem, candidates = parents(make)
    grown = Profiling(make, tmp_path, problem, candidates[:1])
    stranger = CounterProfile(case_hash="0" * 64, metrics={names.LOADED_USED: 10.0})
    grown.record([Profiled(problem_hash=problem.hash, candidate_hash=candidates[0].hash, profile=stranger)])
    told = brief(grown.run, grown.tree.quests[problem.hash].pending[0], 8)
    assert not any("uncoalesced" in line for line in told.diagnoses)


@pytest.mark.skipif(not RESULTS.is_file(), reason="benchmarks/counters.py has not been run on a GPU yet")
def test_kernels_of_known_truth_are_diagnosed_from_the_committed_counters():
    found = json.loads(RESULTS.read_text())
    printed = json.loads(gzip.decompress(RESULTS.with_suffix(".raw.json.gz").read_bytes()))
    assert len(found["rows"]) == 5
    for row in found["rows"]:
        kernels = [KernelCounters.model_validate(one) for one in row["kernels"]]
        seen = [ncu.Row(one.kernel, ncu.renamed(one.metrics)) for one in ncu.parse(printed[row["name"]])]
        assert aggregated(seen, len(kernels), row["calls"]) == kernels
        told = [Metric.model_validate(one) for one in row["metrics"]]
        counted = {one.name: one.value for one in told if one.source == "counter"}
        assert counted == pytest.approx(of_call(kernels))
        assert diagnose(told, DeviceKind.CUDA)[0].category is Bottleneck(row["truth"]), row["name"]
    (copy,) = (row for row in found["rows"] if row["name"] == "good_copy")
    assert copy["dram_bytes"] == pytest.approx(copy["tensor_bytes"], rel=0.05)
