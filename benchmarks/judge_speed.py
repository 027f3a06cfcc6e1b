"""How fast the judge decides: a mixed set of right and wrong candidates, one after the other, through the real judge.

    python -m benchmarks.judge_speed --device cuda --count 100 --out rows.json     # from the repository's root
    python -m benchmarks.judge_speed --device cuda --profile ship --count 20
    python -m benchmarks.judge_speed --device cpu --count 40

Two of five are seeds marked by a comment, so nothing of them is in a cache; three of five are mutants of seeds, as in
mutation.py. Each gets its verdict under one profile; building is counted apart, because it runs on other cores while
the device works on the candidate before. A run cut short goes on where it stopped, unless the rules or the device
changed. `--profile-to FILE` writes where the judge's own time goes (the judge then runs in this process).
"""

import argparse
import cProfile
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.mutation import sample

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Case, DType
from kernelwright.core.device import Device
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import JUDGE_VERSION, Evaluation, Profile, Stage, Status
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import devices, usable_cores
from kernelwright.store.disk import replace_file

RESULTS = Path(__file__).parent / "results" / "judge_speed.json"
BAD_OF_FIVE = (0, 2, 4)
"""Places among five candidates of those that are mutants."""
BACKENDS = {"cpu": ("cpp",), "cuda": ("triton", "cuda")}
MOST_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Largest input of the problems: a small one on a CPU, 16 million elements on a GPU."""
KINDS = 8
"""Mutants of a seed to choose from, of different kinds where there are enough."""
MEMORY_BOUND = ("rmsnorm", "softmax", "layernorm", "reduce", "rope", "cross_entropy")


class Entry(NamedTuple):
    """One candidate of the set."""

    name: str
    problem: Problem
    candidate: Candidate
    is_bad: bool


def problem_of(op: str, device: Device) -> Problem:
    """Return the largest public case that is small enough, in fp16 on a GPU."""
    kind = device.kind.value
    dtype = DType.FP32 if kind == "cpu" else DType.FP16
    cases: list[Case] = [
        case
        for case in plugins.load("ops", op).public_cases()
        if case.dtype is dtype and sum(spec.numel for spec in case.inputs) <= MOST_ELEMENTS[kind]
    ]
    return Problem(op=op, cases=(max(cases, key=lambda case: case.inputs[0].numel),), device=device)


def entries(device: Device, count: int, ops: Sequence[str]) -> Iterator[Entry]:
    """Yield the set, the same each time but for the marks."""
    rng, mark = random.Random(0), os.urandom(4).hex()
    places = [(op, backend) for op in ops for backend in BACKENDS[device.kind.value]]
    for number in range(count):
        op, backend = places[number % len(places)]
        base = seed(op, backend, Origin.AUTHOR)
        assert base is not None, f"there is no {backend} seed of {op}"
        is_bad = (number - 1) % 5 in BAD_OF_FIVE  # the first of all warms the judge and is not counted
        source = base.source
        if is_bad:
            source = rng.choice(sample(source, KINDS, op)).source
        source += f"\n{'#' if backend == 'triton' else '//'} {mark}{number}\n"
        candidate = base.model_copy(update={"source": source})
        yield Entry(f"{number:03d} {op}/{backend}", problem_of(op, device), candidate, is_bad)


def row_of(entry: Entry, found: Evaluation) -> dict[str, object]:
    """Return what is kept of one verdict."""
    stages = {result.stage.value: round(result.seconds, 3) for result in found.stages}
    building = stages.get(Stage.BUILD.value, 0.0)
    return {
        "name": entry.name,
        "is_bad": entry.is_bad,
        "status": found.status.value,
        "seconds": round(found.seconds, 3),
        "after_build_s": round(found.seconds - building, 3),
        "reason": found.failure.reason[:200] if found.failure else "",
        "stages": stages,
    }


def summary(rows: Sequence[dict[str, object]], profile: Profile) -> dict[str, object]:
    """Return medians and throughput."""
    wall_s = sum(float(str(row["wall_s"])) for row in rows)

    def middle(group: Sequence[dict[str, object]], key: str) -> float | None:
        return round(median(float(str(row[key])) for row in group), 2) if group else None

    wrong = [row for row in rows if row["status"] not in (Status.ACCEPTED.value, Status.BUILD_FAILED.value)]
    right = [row for row in rows if row["status"] == Status.ACCEPTED.value]
    bound = [row for row in right if any(f" {op}/" in str(row["name"]) for op in MEMORY_BOUND)]
    return {
        "candidates": len(rows),
        "bad": sum(bool(row["is_bad"]) for row in rows),
        "accepted": len(right),
        "not_built": sum(row["status"] == Status.BUILD_FAILED.value for row in rows),
        "bad_but_accepted": [row["name"] for row in right if row["is_bad"]],
        "wrong_rejected_after_build_s": middle(wrong, "after_build_s"),
        f"{profile.value}_s": middle(right, "seconds"),
        f"{profile.value}_memory_bound_s": middle(bound, "seconds"),
        f"{profile.value}_memory_bound_after_build_s": middle(bound, "after_build_s"),
        "decided_a_minute": round(60 * len(rows) / wall_s, 1),
    }


class Sheet:
    """The rows of one device and profile, in a file that holds those of others too."""

    def __init__(self, path: Path, device: Device, profile: Profile) -> None:
        self.path, self.device, self.profile = path, device, profile
        self.key = device.kind.value + ("" if profile is Profile.KEEP else f" {profile.value}")
        found = self._known().get(self.key, {})
        self.head: dict[str, object] = {
            "judge": JUDGE_VERSION,
            "device": device.model_dump(mode="json"),
            "versions": versions(),
        }
        known = found.get("device", {})
        same = found.get("judge") == JUDGE_VERSION and found.get("versions") == self.head["versions"]
        same = same and (known.get("kind"), known.get("name")) == (device.kind.value, device.name)
        self.rows = [row for row in found.get("rows", []) if same and "wall_s" in row]

    def _known(self) -> dict[str, dict[str, list[dict[str, object]]]]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def add(self, row: dict[str, object]) -> None:
        """Write a row down at once: a run that is cut short goes on from there."""
        self.rows.append(row)
        command = " ".join(["python -m benchmarks.judge_speed", *sys.argv[1:]])
        head = self.head | {"command": command, "date": datetime.now(UTC).isoformat(timespec="seconds")}
        whole = head | {"summary": summary(self.rows, self.profile), "rows": self.rows}
        replace_file(self.path, (json.dumps(self._known() | {self.key: whole}, indent=1) + "\n").encode())


def measure(
    evaluate: Callable[..., Evaluation],
    prepare: Callable[[Problem, Candidate], None],
    wanted: Sequence[Entry],
    sheet: Sheet,
    budget_s: float,
) -> None:
    """Judge what is not judged yet, each announced one ahead; the first warms the judge's children, uncounted."""
    done = {row["name"] for row in sheet.rows}
    left = [entry for entry in wanted[1:] if entry.name not in done]
    evaluate(wanted[0].problem, wanted[0].candidate, sheet.profile)
    started = last = time.perf_counter()
    for entry, coming in zip(left, (*left[1:], None), strict=True):
        if coming:
            prepare(coming.problem, coming.candidate)
        row = row_of(entry, evaluate(entry.problem, entry.candidate, sheet.profile))
        now = time.perf_counter()
        sheet.add(row | {"wall_s": round(now - last, 3)})
        print(json.dumps(row), flush=True)
        last = now
        if now - started > budget_s:
            break


def main() -> None:
    """Measure, and keep the result of this kind of device beside that of the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--op", action="append")
    parser.add_argument("--profile", choices=("keep", "ship"), default="keep")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--budget-s", type=float, default=1200)
    parser.add_argument("--profile-to", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = next(one for one in devices() if one.kind.value == options.device)
    wanted = list(entries(device, options.count + 1, options.op or plugins_with_seeds()))
    sheet = Sheet(options.out, device, Profile(options.profile))
    with tempfile.TemporaryDirectory() as home:
        settings = JudgeSettings(
            threads=usable_cores(),
            max_pairs=60,
            alpha=0.001,
            hidden_shapes=8,
            gate_pairs=0,
            cache_folder=f"{home}/cache",
            blob_folder=f"{home}/blobs",
        )
        if options.profile_to:
            from kernelwright.judge.evaluate import Judge

            judge, profile = Judge(settings, lambda _: None), cProfile.Profile()
            profile.runcall(measure, judge.evaluate, lambda *_: None, wanted, sheet, options.budget_s)
            profile.dump_stats(options.profile_to)
            judge.close()
        else:
            client = JudgeClient(settings, lambda _: None)
            measure(client.evaluate, client.prepare, wanted, sheet, options.budget_s)
            client.close()
    print(json.dumps(summary(sheet.rows, sheet.profile), indent=1))


def plugins_with_seeds() -> tuple[str, ...]:
    """Return the ops that have seeds in every language."""
    return (*MEMORY_BOUND, "matmul", "attention", "swiglu_mlp")


if __name__ == "__main__":
    main()
