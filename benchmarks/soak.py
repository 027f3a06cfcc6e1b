"""The judge under siege: many evaluations, a fifth of them hostile, and what is left afterwards.

    python -m benchmarks.soak --count 1000 --budget-s 2400 --out rows.json      # from the repository's root
    python -m benchmarks.soak --device cuda --count 200 --budget-s 460 --out rows.json

Hostile ones are specimens of tests/cheats that crash, hang, fork, fill memory and disk, call home, read planted secrets
and kill their parents. After each evaluation no process of its may live, and the judge must have the memory it had; a
GPU must still count to a thousand. A run cut short goes on where it stopped.
"""

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from tests.cheats.specimen import AXES, all_specimens, author_candidate, honest_source, problem_of

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.verdict import JUDGE_VERSION, Profile, Status
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import devices, usable_cores

RESULTS = Path(__file__).parent / "results" / "soak.json"
HOSTILE_SHARE, WRONG_SHARE = 0.2, 0.3
HOSTILE = ("HA", "RF13", "RF14", "RF15", "ET", "MS10", "MS13", "TF2", "TF22", "ME3")
SECRETS = (Path("/tmp/kernelwright-planted-key"), Path("/tmp/kernelwright-planted-answer"))
OUTLIVE_SECONDS = 10.0
FIRST_USER = 0x4000_0000
"""Runners have users of their own from here on, where the system allows it."""
BREAKS = (
    (" + eps", ""),
    ("+=", "="),
    ("< cols", "<= cols"),
    ("return KW_OK;", "return KW_UNSUPPORTED_SHAPE;"),
)


def guests() -> set[int]:
    """Return the processes that run as one of the users made for candidates."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if int(lines["Uid"].split()[0]) >= FIRST_USER:
            found.add(int(status.parent.name))
    return found


def resident_mib(pid: int) -> float:
    """Return the memory a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


class Siege:
    """One judge and what was done to it."""

    def __init__(self, client: JudgeClient, device: Device, out: Path) -> None:
        self.client, self.device, self.out = client, device, out
        self.rng = random.Random()
        self.rows: list[dict[str, object]] = []
        if out.exists():
            found = json.loads(out.read_text())
            self.rows = found["rows"] if found["judge"] == JUDGE_VERSION else []
        self.hostile = [
            item
            for item in all_specimens()
            if item.runs == ("cpu" if device.kind is DeviceKind.CPU else "gpu")
            and item.judged == "verdict"
            and item.id.startswith(HOSTILE)
        ]

    def step(self) -> None:
        """Judge one candidate and look around afterwards."""
        draw = self.rng.random()
        op = self.rng.choice([name for name in AXES if name != "attention"])
        candidate, problem = self.honest(op), problem_of(op, self.device)
        kind, profile, name = "honest", Profile.QUICK, op
        if draw < HOSTILE_SHARE:
            item = self.rng.choice(self.hostile)
            candidate, problem, profile = item.candidate(), item.problem(self.device), item.profile
            kind, name = "hostile", item.name
        elif draw < HOSTILE_SHARE + WRONG_SHARE:
            old, new = self.rng.choice([pair for pair in BREAKS if pair[0] in candidate.source])
            candidate = candidate.model_copy(update={"source": candidate.source.replace(old, new, 1)})
            kind, name = "wrong", f"{op}: {old!r} -> {new!r}"
        before, started = guests(), time.perf_counter()
        verdict = self.client.evaluate(problem, candidate, profile)
        seconds, ended = time.perf_counter() - started, time.monotonic()
        while guests() - before and time.monotonic() - ended < OUTLIVE_SECONDS:
            time.sleep(0.01)
        row = {"kind": kind, "name": name, "status": verdict.status.value, "seconds": round(seconds, 2)}
        row |= {"outlived_s": round(time.monotonic() - ended, 2), "is_healthy": self.is_healthy()}
        row |= {"judge_mib": round(resident_mib(self.client.child.process.pid), 1)}
        self.rows.append(row)

    def honest(self, op: str) -> Candidate:
        """Return a right kernel for the device: the plain one on a CPU, a seed on a GPU."""
        if self.device.kind is DeviceKind.CPU:
            return author_candidate(op, "cpp", honest_source(op))
        found = seed(op, self.rng.choice(("triton", "cuda")), Origin.AUTHOR)
        assert found is not None
        return found

    def is_healthy(self) -> bool:
        """Tell whether the device still computes; a CPU shows it by our being here."""
        if self.device.kind is DeviceKind.CPU:
            return True
        import torch

        return int(torch.arange(1001, device="cuda").sum()) == 500500

    def save(self) -> None:
        """Write all rows and what they come to."""
        head = {
            "judge": JUDGE_VERSION,
            "device": self.device.model_dump(mode="json"),
            "versions": versions(),
        }
        head |= {"command": " ".join(["python -m benchmarks.soak", *sys.argv[1:]])}
        head |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "summary": self.summary()}
        self.out.write_text(json.dumps(head | {"rows": self.rows}) + "\n")

    def summary(self) -> dict[str, object]:
        """Return what the siege came to."""
        half = len(self.rows) // 2
        memory = [float(str(row["judge_mib"])) for row in self.rows]
        accepted = Counter(str(row["kind"]) for row in self.rows if row["status"] == Status.ACCEPTED.value)
        return {
            "evaluations": len(self.rows),
            "kinds": Counter(str(row["kind"]) for row in self.rows),
            "accepted": accepted,
            "statuses": Counter(str(row["status"]) for row in self.rows),
            "device_failures": sum(not row["is_healthy"] for row in self.rows),
            "longest_outlived_s": max(float(str(row["outlived_s"])) for row in self.rows),
            "judge_mib_at_a_tenth_half_end": [
                memory[min(len(memory) - 1, place)] for place in (len(memory) // 10, half, len(memory) - 1)
            ],
        }


def main() -> None:
    """Besiege the judge until the count or the budget is reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--budget-s", type=float, default=2400)
    parser.add_argument("--home", type=Path, default=Path("/tmp/kernelwright-soak"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for secret in SECRETS:
        secret.write_text(os.urandom(16).hex())
        secret.chmod(0o644)
    settings = JudgeSettings(
        threads=usable_cores(),
        max_pairs=60,
        alpha=0.001,
        hidden_shapes=4,
        cache_folder=str(options.home / "cache"),
        blob_folder=str(options.home / "blobs"),
        guards_off=True,
    )
    client = JudgeClient(settings, lambda _: None)
    device = next(one for one in devices() if one.kind.value == options.device)
    siege, deadline = Siege(client, device, options.out), time.monotonic() + options.budget_s
    try:
        while len(siege.rows) < options.count and time.monotonic() < deadline:
            siege.step()
            if len(siege.rows) % 20 == 0:
                siege.save()
                print(len(siege.rows), siege.rows[-1])
    finally:
        client.close()
        for secret in SECRETS:
            secret.unlink(missing_ok=True)
    siege.save()
    print(json.dumps(siege.summary(), indent=1))


if __name__ == "__main__":
    main()
