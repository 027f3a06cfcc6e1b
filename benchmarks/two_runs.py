"""Do two runs on one machine disturb each other's timings? A kernel's certified time, alone and beside another judge.

    python -m benchmarks.two_runs --blocks 8            # from the repository's root

In every block a kernel earns its `keep` alone and beside a second judge with a home of its own, in random order; the
second builds, checks and times mutants and marked seeds without a pause, as a search does. What counts is the ratio of
the two certified times of a block. The device's lock keeps timings apart, and builders step back for whoever times.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.known_kernels import KERNELS, honest, marked, problem_of

from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.stats import block_bootstrap
from kernelwright.core.verdict import JUDGE_VERSION, Profile, Status
from kernelwright.engine.app import versions
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import cpu_device, usable_cores
from kernelwright.store.disk import replace_file

RESULTS = Path(__file__).parent / "results" / "two_runs.json"
KERNEL = KERNELS["cpu"][3]
BUSY_SECONDS = 3.0
"""How long the second judge is given to be at work before the first is asked."""


@contextmanager
def second_judge() -> Iterator[None]:
    """Have another judge at work on other candidates, in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "benchmarks.judge_speed", "--device", "cpu", "--count", "1000"]
        command = [sys.executable, *words, "--out", f"{folder}/rows.json"]
        other = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(BUSY_SECONDS)
            yield
            if other.poll() is not None:
                raise SystemExit(f"two_runs: the second judge ended by itself, code {other.returncode}")
        finally:
            other.terminate()
            other.wait()


def certified_us(client: JudgeClient, mark: str) -> tuple[float, float]:
    """Return the certified time of the kernel, and how long its verdict took."""
    started = time.monotonic()
    candidate = marked(honest(KERNEL), mark)
    found = client.evaluate(problem_of(KERNEL, cpu_device()), candidate, Profile.KEEP)
    if found.status is not Status.ACCEPTED or found.timing is None:
        raise SystemExit(f"two_runs: the kernel was not accepted: {found.failure}")
    return found.timing.cases[0].median_us, time.monotonic() - started


def main() -> None:
    """Measure block by block, and keep what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as home:
        settings = JudgeSettings(
            threads=usable_cores(),
            max_pairs=8,
            alpha=0.001,
            hidden_shapes=4,
            gate_pairs=0,
            cache_folder=f"{home}/cache",
            blob_folder=f"{home}/blobs",
        )
        client = JudgeClient(settings, lambda _: None)
        certified_us(client, "warm-up")
        for block in range(options.blocks):
            row = {}
            for way in random.sample(("alone", "beside"), 2):
                if way == "alone":
                    us, verdict_s = certified_us(client, f"{block} alone")
                else:
                    with second_judge():
                        us, verdict_s = certified_us(client, f"{block} beside")
                row |= {f"{way}_us": round(us, 3), f"{way}_verdict_s": round(verdict_s, 2)}
            rows.append(row)
            print(json.dumps(row), flush=True)
        client.close()
    ratios = [row["beside_us"] / row["alone_us"] for row in rows]
    low, high = block_bootstrap([[one] for one in ratios], random.Random(0), statistic=median, resamples=2000)
    told = {"judge": JUDGE_VERSION, "device": cpu_device().model_dump(mode="json"), "versions": versions()}
    told |= {"command": " ".join(["python -m benchmarks.two_runs", *sys.argv[1:]])}
    told |= {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": f"{KERNEL.op} {dict(KERNEL.axes)}",
    }
    told |= {
        "beside over alone": {"median": round(median(ratios), 4), "95 %": [round(low, 4), round(high, 4)]}
    }
    told |= {
        f"median verdict {way}, s": round(median(row[f"{way}_verdict_s"] for row in rows), 2)
        for way in ("alone", "beside")
    }
    replace_file(options.out, (json.dumps(told | {"rows": rows}, indent=1) + "\n").encode())
    print(json.dumps(told["beside over alone"]))


if __name__ == "__main__":
    main()
