"""What is measured on a GPU, part by part within a time: each goes on from its committed rows.

    PYTHONPATH=build/offline python3 -m benchmarks.on_gpu --into DIR --budget-s 480 --part soak --part aa
    python -m benchmarks.on_gpu --list

Every part is a benchmark of its own, whose rows lie in a file of benchmarks/results. The file is copied into DIR and
continued there; whoever likes what came of it copies it back. Parts run in the order they are named in, each until it
is done or the time is up; what it printed lies beside its rows. The exit code is 1 if a part failed, 2 if one is not
done.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LAST_SECONDS = 40.0
"""What a part is given beyond its budget to end what it is at; no part is begun with less than twice that left."""


class Part(NamedTuple):
    """A benchmark with its file of rows; `{s}` stands for the seconds it may begin something new in."""

    file: str
    words: tuple[str, ...]


VALIDITY = ("-m", "benchmarks.judge_validity")
GPU = ("--device", "cuda", "--budget-s", "{s}")
PARTS = {
    "speed": Part("judge_speed.json", ("-m", "benchmarks.judge_speed", *GPU, "--count", "100")),
    "ship": Part(
        "judge_speed.json", ("-m", "benchmarks.judge_speed", *GPU, "--count", "20", "--profile", "ship")
    ),
    "zoo": Part("zoo_gpu.json", ("tests/cheats/run_gpu.py", "--zoo", "--budget-s", "{s}")),
    "cheats": Part("cheats_gpu.json", ("tests/cheats/run_gpu.py", "--slow", "--budget-s", "{s}")),
    "soak": Part("soak_gpu.json", ("-m", "benchmarks.soak", *GPU, "--count", "200")),
    "clocks": Part("judge_validity.json", (*VALIDITY, "clocks", *GPU, "--count", "20")),
    "aa": Part("judge_validity.json", (*VALIDITY, "aa", *GPU, "--count", "3000")),
    "aa-host": Part("judge_validity.json", (*VALIDITY, "aa", *GPU, "--tier", "B", "--count", "105")),
    "effects": Part("judge_validity.json", (*VALIDITY, "effects", *GPU, "--count", "84")),
    **{
        f"search-{op}": Part(
            "search_rate.json",
            ("-m", "benchmarks.search_rate", "--device", "cuda", "--op", op, "--budget", "290s", "--again"),
        )
        for op in ("softmax", "cross_entropy", "rope")
    },
    "mutation": Part(
        "mutation.json", ("-m", "benchmarks.mutation", "run", "--backend", "triton", "--budget-s", "{s}")
    ),
    "mutation-cuda": Part(
        "mutation.json", ("-m", "benchmarks.mutation", "run", "--backend", "cuda", "--budget-s", "{s}")
    ),
    "make-run": Part("make_run.json", ("-m", "benchmarks.make_run", *GPU)),
}


def run(name: str, into: Path, deadline: float) -> int | None:
    """Run a part until its end or the deadline; return its exit code, None if it was not begun or was ended."""
    part, left = PARTS[name], deadline - time.monotonic()
    if left < 2 * LAST_SECONDS:
        return None
    rows = into / part.file
    if not rows.exists() and (RESULTS / part.file).exists():
        shutil.copy(RESULTS / part.file, rows)
    words = [word.replace("{s}", str(int(left - LAST_SECONDS))) for word in part.words]
    with (into / "log.txt").open("a") as log:
        log.write(f"=== {name}: {' '.join(words)}\n")
        log.flush()
        try:
            done = subprocess.run(
                [sys.executable, *words, "--out", str(rows)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=left,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
    return done.returncode


def main() -> int:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--budget-s", type=float, default=480)
    parser.add_argument("--part", action="append", choices=tuple(PARTS))
    parser.add_argument("--list", action="store_true", help="print the parts and what they run")
    options = parser.parse_args()
    if options.list:
        for name, part in PARTS.items():
            print(f"{name:14} {part.file:22} {' '.join(part.words)}")
        return 0
    options.into.mkdir(parents=True, exist_ok=True)
    begun, deadline = time.monotonic(), time.monotonic() + options.budget_s
    codes = {}
    for name in options.part or PARTS:
        codes[name] = run(name, options.into, deadline)
        print(f"[{time.monotonic() - begun:5.0f} s] {name}: {codes[name]}", flush=True)
    if any(code not in (0, 2, None) for code in codes.values()):
        return 1
    return 0 if all(code == 0 for code in codes.values()) else 2


if __name__ == "__main__":
    sys.exit(main())
