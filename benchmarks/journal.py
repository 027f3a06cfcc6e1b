"""How fast the journal is: durable appends, folding a long run into its tree, a glance at a very long one.

Appends are measured with a sync at every commit on the file system of `--folder`. Folding and the glance run in
fresh processes; the glance is the wall time of the whole process, interpreter and imports included.

    python benchmarks/journal.py      # prints a table and writes benchmarks/results/journal.json
"""

import argparse
import json
import os
import platform
import random
import shlex
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path

from kernelwright.core.candidate import Author, Candidate, ParamChoice, ParamValue
from kernelwright.core.case import Case, Compute, DType, TensorSpec
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    ProblemFound,
    RunStarted,
    Screened,
)
from kernelwright.core.frozen import digest
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import (
    CaseRatio,
    CaseTiming,
    Comparison,
    Decision,
    Evaluation,
    Outcome,
    Profile,
    Screening,
    Stage,
    StageResult,
    Status,
    Timing,
)
from kernelwright.store.journal import Journal

RESULTS = Path(__file__).parent / "results" / "journal.json"
BATCH = 100
SOURCE_BYTES = 2000
FAILING = 0.45
"""Share of candidates that do not build or are wrong: they end after a few stages and are never compared."""
PAIRS = 20
TRIALS = 12
"""Screenings a tuner makes of a candidate that works: four sets of parameters on each of three cases."""
SIZES = ((2048, 4096), (8192, 4096), (512, 1024))

FOLD = """
import sys, time
from pathlib import Path
from kernelwright.store.journal import Journal
began, busy = time.perf_counter(), time.process_time()
tree = Journal.open(Path(sys.argv[1])).tree()
print(time.perf_counter() - began, time.process_time() - busy, tree.events)
"""
GLANCE = """
import sys
from pathlib import Path
from kernelwright.store.journal import Journal
print(Journal.open(Path(sys.argv[1])).summary().events)
"""


@dataclass(frozen=True)
class Result:
    """One measured claim: median and spread over the repeats, and whether the median is what we promise."""

    name: str
    unit: str
    median: float
    lowest: float
    highest: float
    mad: float
    repeats: int
    required: str
    met: bool


def at_least(name: str, unit: str, values: list[float], bound: float) -> Result:
    """Return a claim that must not fall below a bound."""
    return Result(
        name, unit, *_spread(values), len(values), f">= {bound:g}", statistics.median(values) >= bound
    )


def below(name: str, unit: str, values: list[float], bound: float) -> Result:
    """Return a claim that must stay below a bound."""
    return Result(
        name, unit, *_spread(values), len(values), f"< {bound:g}", statistics.median(values) < bound
    )


def for_information(name: str, unit: str, values: list[float]) -> Result:
    """Return a number that explains the others and has no bound of its own."""
    return Result(name, unit, *_spread(values), len(values), "", True)


def _spread(values: list[float]) -> tuple[float, float, float, float]:
    centre = statistics.median(values)
    return centre, min(values), max(values), statistics.median(abs(value - centre) for value in values)


def a_case(rows: int, cols: int) -> Case:
    """Return a case of a size a LLaMA asks for."""
    x, out = (TensorSpec(name=name, shape=(rows, cols), dtype=DType.FP16) for name in ("x", "out"))
    return Case(
        op="rmsnorm",
        axes={"rows": rows, "cols": cols},
        dtype=DType.FP16,
        compute=Compute.FP32_ACCUMULATE,
        inputs=(x, TensorSpec(name="weight", shape=(cols,), dtype=DType.FP16)),
        outputs=(out,),
        scalars={"eps": 1e-5},
    )


def a_candidate(rng: random.Random, problem: Problem, parent: Candidate | None) -> Candidate:
    """Return a candidate with about two kilobytes of kernel-like text."""
    lines = ["@triton.jit\n", "def kernel(x_ptr, w_ptr, out_ptr, cols, eps, BLOCK: tl.constexpr):\n"]
    while sum(map(len, lines)) < SOURCE_BYTES:
        step, mark = rng.randrange(1, 9), rng.random()
        lines.append(f'    x = tl.load(x_ptr + offsets * {step}, mask=offsets < cols)  # "{mark:.6f}"\n')
    values: dict[str, ParamValue] = {"BLOCK": rng.choice([256, 512, 1024]), "num_warps": rng.choice([4, 8])}
    return Candidate(
        op=problem.op,
        backend="triton",
        source="".join(lines),
        choices=(
            ParamChoice(case_hashes=(problem.cases[0].hash,), values=values),
            ParamChoice(values=values),
        ),
        parents=(parent.hash,) if parent else (),
        author=Author(name="writer", detail="provider:model"),
        note="keep the row in registers and read the weight once",
    )


def an_evaluation(rng: random.Random, problem: Problem, candidate: Candidate) -> Evaluation:
    """Return a verdict: all stages of `keep` and certified times, or an early end."""
    fails = rng.random() < FAILING
    count = rng.randrange(2, 5) if fails else len(Stage)
    stages = [
        StageResult(stage=stage, passed=True, seconds=rng.random(), checked=12)
        for stage in list(Stage)[:count]
    ]
    timing = None
    if fails:
        last = {
            "passed": False,
            "reason": "element 17 is 0.125, expected 0.25",
            "failing_case": "rmsnorm 3x127 fp16",
        }
        stages[-1] = stages[-1].model_copy(update=last)
    else:
        rows = (
            CaseTiming(
                case_hash=case.hash,
                label=case.label,
                median_us=rng.uniform(10, 90),
                mad_us=rng.random(),
                rounds=40,
                floor_us=9.1,
            )
            for case in problem.cases
        )
        timing = Timing(clock="launcher-events", cases=tuple(rows))
    return Evaluation(
        candidate_hash=candidate.hash,
        problem_hash=problem.hash,
        device_hash=problem.device.hash,
        profile=Profile.KEEP,
        status=Status.WRONG if fails else Status.ACCEPTED,
        stages=tuple(stages),
        timing=timing,
        artefact_hashes={} if fails else {digest("parameters"): digest(candidate.hash)},
        log_hash=digest(f"log of {candidate.hash}"),
        environment={"torch": "2.13.0", "triton": "3.7.1", "driver": "580.65", "sandbox": "landlock"},
        seconds=rng.uniform(2, 9),
    )


def a_comparison(
    rng: random.Random, problem: Problem, incumbent: Candidate, challenger: Candidate
) -> Comparison:
    """Return a comparison over twenty process pairs."""
    ratio = rng.uniform(0.7, 1.1)
    rows = (
        CaseRatio(
            case_hash=case.hash,
            label=case.label,
            ratio=ratio,
            ci_low=ratio * 0.98,
            ci_high=ratio * 1.02,
            incumbent_us=rng.uniform(10, 90),
            challenger_us=rng.uniform(10, 90),
        )
        for case in problem.cases
    )
    return Comparison(
        incumbent_hash=incumbent.hash,
        challenger_hash=challenger.hash,
        problem_hash=problem.hash,
        device_hash=problem.device.hash,
        outcome=Outcome.FASTER if ratio > 1.05 else Outcome.NOT_FASTER,
        ratio=ratio,
        ci_low=ratio * 0.98,
        ci_high=ratio * 1.02,
        e_faster=rng.uniform(0, 2000),
        e_not_faster=rng.uniform(0, 30),
        pairs=PAIRS,
        cases=tuple(rows),
        log_ratios=tuple(rng.gauss(0, 0.1) for _ in range(PAIRS)),
        clock="launcher-events",
    )


def a_screening(rng: random.Random, problem: Problem, candidate: Candidate) -> Screening:
    """Return a tuner's trial of one set of parameters on one case."""
    return Screening(
        candidate_hash=candidate.hash,
        problem_hash=problem.hash,
        values={"BLOCK": rng.choice([256, 512, 1024]), "num_warps": rng.choice([4, 8])},
        case_hash=rng.choice(problem.cases).hash,
        status=Status.ACCEPTED,
        latency_us=rng.uniform(10, 90),
    )


def a_run(seed: int, trials: int) -> Iterator[Body]:
    """Yield the events of a run without end: proposals, screenings, verdicts, comparisons, decisions."""
    rng = random.Random(seed)
    device = Device(kind=DeviceKind.CUDA, name="a GPU", arch="sm_90", units=132, memory_bytes=141 << 30)
    problem = Problem(op="rmsnorm", cases=tuple(a_case(*size) for size in SIZES), device=device)
    yield RunStarted(config={"model": "model.py:build"}, versions={"torch": "2.13.0"}, device=device)
    yield ProblemFound(problem=problem)
    best: Candidate | None = None
    while True:
        candidate = a_candidate(rng, problem, best)
        evaluation = an_evaluation(rng, problem, candidate)
        accepted, comparison = evaluation.status is Status.ACCEPTED, None
        yield CandidateProposed(problem_hash=problem.hash, candidate=candidate)
        for _ in range(trials if accepted else 0):
            yield Screened(screening=a_screening(rng, problem, candidate))
        yield Evaluated(evaluation=evaluation)
        if accepted and best is not None:
            comparison = a_comparison(rng, problem, best, candidate)
            yield Compared(comparison=comparison)
        kept = accepted and (comparison is None or comparison.outcome is Outcome.FASTER)
        decision = Decision(
            problem_hash=problem.hash,
            candidate_hash=candidate.hash,
            kept=kept,
            reason="proven faster than the incumbent" if kept else "not proven faster than the incumbent",
            evaluation_hash=evaluation.hash,
            comparison_hash=comparison.hash if comparison else None,
        )
        yield Decided(decision=decision)
        best = candidate if kept else best


def write(folder: Path, bodies: Iterator[Body], batch: int) -> None:
    """Fill a new journal in batches."""
    with Journal.create(folder, "benchmark") as journal:
        while part := list(islice(bodies, batch)):
            journal.append(part)


def append_rate(folder: Path, bodies: list[Body], batch: int) -> float:
    """Return acknowledged events per second, a commit every `batch` events."""
    with Journal.create(folder, "benchmark") as journal:
        began = time.perf_counter()
        for start in range(0, len(bodies), batch):
            journal.append(bodies[start : start + batch])
        return len(bodies) / (time.perf_counter() - began)


def sync_rate(folder: Path) -> float:
    """Return what the disk itself allows: 4 KiB writes per second, each followed by a sync."""
    with (folder / "probe").open("wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(200):
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
        return 200 / (time.perf_counter() - began)


def fold_seconds(folder: Path, events: int) -> tuple[float, float]:
    """Return the wall and processor time of reading and folding a journal in a fresh process."""
    wall, busy, folded = _python(FOLD, folder).split()
    if int(folded) != events:
        raise SystemExit(f"folded {folded} events of {events}")
    return float(wall), float(busy)


def glance_seconds(folder: Path, events: int) -> float:
    """Return the time of a process that opens a journal and shows its summary."""
    began = time.perf_counter()
    shown = _python(GLANCE, folder)
    seconds = time.perf_counter() - began
    if int(shown) != events:
        raise SystemExit(f"the summary shows {shown} events of {events}")
    return seconds


def _python(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    return done.stdout


def machine(folder: Path) -> dict[str, object]:
    """Return what the numbers depend on."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "file_system": max(inside, key=lambda mount: len(mount[1]))[2],
        "load_before": os.getloadavg()[0],
    }


def measure_appends(folder: Path, bodies: list[Body], repeats: int) -> list[Result]:
    """Append in batches and one by one, and time the disk's own syncs beside them: they bound the latter."""
    batches, singles, syncs = [], [], []
    for repeat in range(repeats):
        batches.append(append_rate(folder / f"batch{repeat}", bodies, BATCH))
        syncs.append(sync_rate(folder))
        singles.append(append_rate(folder / f"single{repeat}", bodies[:500], 1))
    return [
        at_least(f"durable appends, {BATCH} a commit", "events/s", batches, 3000),
        at_least("durable appends, one a commit", "events/s", singles, 300),
        for_information("4 KiB writes with a sync: the disk alone", "writes/s", syncs),
    ]


def measure_folds(folder: Path, events: int, repeats: int) -> tuple[list[Result], dict[str, Counter[str]]]:
    """Fold a run as a tuner leaves it, and one without screenings, in which every event is a heavy one."""
    results, mixes = [], {}
    for name, trials in (("a tuned run", TRIALS), ("an untuned run", 0)):
        bodies = list(islice(a_run(1, trials), events))
        write(folder / name, iter(bodies), 1000)
        mixes[name] = Counter[str](body.kind for body in bodies)
        del bodies
        walls, busy = zip(*(fold_seconds(folder / name, events) for _ in range(repeats)), strict=True)
        results.append(below(f"fold {events:,} events of {name}", "s", list(walls), 2.0))
        results.append(for_information(f"processor time for {events:,} of {name}", "s", list(busy)))
    return results, mixes


def measure_glance(folder: Path, bodies: list[Body], events: int, repeats: int) -> Result:
    """Show the summary of a very long journal, made of the same events over and over: only its row is read."""
    write(folder / "long", islice(cycle(bodies), events), 5000)
    seconds = [glance_seconds(folder / "long", events) for _ in range(repeats)]
    return below(f"summary of {events:,} events, whole process", "s", seconds, 2.0)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, help="where to write the journals (default: the temporary folder)"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--fold-events", type=int, default=100_000)
    parser.add_argument("--glance-events", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        about, bodies = machine(Path(name)), list(islice(a_run(0, TRIALS), 10_000))
        results = measure_appends(Path(name), bodies, chosen.repeats)
        folds, mixes = measure_folds(Path(name), chosen.fold_events, chosen.repeats)
        results += [*folds, measure_glance(Path(name), bodies, chosen.glance_events, chosen.repeats)]
    project = tomllib.loads((RESULTS.parents[2] / "pyproject.toml").read_text())["project"]
    versions = {"kernelwright": project["version"], "sqlite": sqlite3.sqlite_version}
    versions |= {name: version(name) for name in ("sqlalchemy", "pydantic")}
    record = {
        "benchmark": "journal",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "machine": about,
        "versions": {"python": platform.python_version(), **versions},
        "events_folded_by_kind": mixes,
        "results": [asdict(result) for result in results],
    }
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(record, indent=2) + "\n")
    print(f"{'':48} {'median':>10} {'lowest':>10} {'highest':>10}  unit      required")
    for row in results:
        numbers = " ".join(f"{value:>10,.2f}" for value in (row.median, row.lowest, row.highest))
        verdict = f"{row.required:8} {'met' if row.met else 'MISSED'}" if row.required else ""
        print(f"{row.name:48} {numbers}  {row.unit:9} {verdict}".rstrip())


if __name__ == "__main__":
    main()
