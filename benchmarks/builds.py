"""How long a build takes, cold and from the cache, per language and seed, through the judge's own builder and cache.

    python benchmarks/builds.py --backend cuda --backend cpp

Cold: an empty cache, a fresh builder process, every kernel one case needs, three times. Warm: the same request once
the artefact is there. Triton and CUDA are compiled for an H200 (sm_90, which CUDA builds as sm_90a); no GPU is needed.
A row whose seed has not changed is not measured again unless --again: a run cut short continues where it stopped.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from tests.devices import H200

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Case, DType
from kernelwright.core.frozen import digest
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Status
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import compiled_baseline, seed
from kernelwright.hardware.detect import cpu_device, usable_cores
from kernelwright.judge.builds import Builds
from kernelwright.judge.execution import plan_for, units_of

RESULTS = Path(__file__).parent / "results" / "builds.json"
BACKENDS = ("cpp", "cuda", "triton", "compiled")
RUNS, WARM_HITS = 3, 50


def candidate_of(op: str, backend: str, case: Case) -> Candidate | None:
    """Return the seed of an op in a language; torch.compile has the eager source."""
    if backend == "compiled":
        return compiled_baseline(Problem(op=op, cases=(case,), device=cpu_device()), usable_cores())
    return seed(op, backend, Origin.AUTHOR)


def case_of(op: str, backend: str) -> Case:
    """Return the largest public case in fp16 for GPUs, the largest one of CPU size in fp32 otherwise."""
    cases = plugins.load("ops", op).public_cases()
    if plugins.load("backends", backend).TIER == "A":
        return [case for case in cases if case.dtype is DType.FP16][-1]
    return [case for case in cases if case.dtype is DType.FP32][-1]


def request(builds: Builds, candidate: Candidate, case: Case) -> Callable[[], list[Status]]:
    """Return the build of everything one case needs, as a call that answers with a status per artefact."""
    if plugins.load("backends", candidate.backend).TIER == "A":
        units = units_of(plan_for(candidate, case, H200), case)
        return lambda: [one.status for one in builds.get_units(candidate, units, H200.arch).values()]
    values = candidate.values_for(case.hash)
    return lambda: [builds.get(candidate, values)[0].status]


def measured(call: Callable[[], list[Status]]) -> tuple[float, int]:
    """Return seconds and number of artefacts of one build; a failure ends the benchmark."""
    started = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - started
    assert all(status is Status.ACCEPTED for status in found), found
    return seconds, len(found)


def row_of(op: str, backend: str) -> dict[str, object] | None:
    """Measure one seed."""
    case = case_of(op, backend)
    candidate = candidate_of(op, backend, case)
    if candidate is None:
        return None
    cold, warm, loads, artefacts = [], [], [], 0
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            builds = Builds(Path(folder) / "cache", Path(folder), os.cpu_count() or 1)
            builds.key(candidate, {})  # asks the compiler for its version, once in a judge's life
            call = request(builds, candidate, case)
            loads.append(round(os.getloadavg()[0], 2))
            seconds, artefacts = measured(call)
            cold.append(seconds)
            warm += [measured(call)[0] for _ in range(WARM_HITS)]
    return {
        "key": f"{backend}/{op}",
        "backend": backend,
        "op": op,
        "case": case.label,
        "artefacts": artefacts,
        "cold_s": {"median": median(cold), "min": min(cold), "max": max(cold), "runs": RUNS},
        "warm_ms": {"median": 1e3 * median(warm), "max": 1e3 * max(warm), "runs": len(warm)},
        "load_average": loads,
        "source": digest(candidate.source)[:12],
    }


def save(rows: dict[str, dict[str, object]], command: str) -> None:
    """Write every row, rounded, with what it rests on."""
    head = {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": f"{platform.machine()}, {usable_cores()} cores",
    }
    text = json.dumps(head | {"rows": [rows[key] for key in sorted(rows)]}, indent=1)
    RESULTS.write_text(
        json.dumps(json.loads(text, parse_float=lambda n: round(float(n), 4)), indent=1) + "\n"
    )


def main() -> None:
    """Measure what is missing and keep each row at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", action="append", default=[])
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    rows = {}
    if RESULTS.exists():
        rows = {row["key"]: row for row in json.loads(RESULTS.read_text())["rows"]}
    for backend in options.backend or BACKENDS:
        for op in options.op or [
            name for name in plugins.names("ops") if seed(name, "eager", Origin.BASELINE)
        ]:
            known = rows.get(f"{backend}/{op}")
            candidate = candidate_of(op, backend, case_of(op, backend))
            if candidate is None or (
                known and not options.again and known["source"] == digest(candidate.source)[:12]
            ):
                continue
            row = row_of(op, backend)
            assert row is not None
            rows[str(row["key"])] = row
            save(rows, "python benchmarks/builds.py")
            print(f"{row['key']}: cold {row['cold_s']}, warm {row['warm_ms']}, load {row['load_average']}")


if __name__ == "__main__":
    main()
