"""The judge under siege: many evaluations, a fifth of them hostile, and what is left afterwards.

    python -m benchmarks.soak --count 1000 --budget-s 2400 --out rows.json      # from the repository's root
    python -m benchmarks.soak --device cuda --count 200 --budget-s 460 --out rows.json

Every fifth evaluation is hostile: the specimens of tests/cheats that crash, hang, fork, fill memory and disk, call
home, read planted secrets and kill their parents take turns. Static guards and audit are off, so that all of them run.
After each evaluation no process may live that is not one of the judge's services, nobody may have read what was planted
or called, and the judge must have the memory it had; a GPU must still count to a thousand. A run cut short goes on
where it stopped.
"""

import argparse
import ctypes
import json
import os
import random
import socket
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tests.cheats.specimen import AXES, all_specimens, author_candidate, honest_source, problem_of
from tests.cheats.trial import PLANTED, SERVER

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.verdict import JUDGE_VERSION, Profile, Status
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import devices, usable_cores
from kernelwright.judge.runners import SPARES
from kernelwright.store.disk import replace_file

RESULTS = Path(__file__).parent / "results"
FILES = {"cpu": RESULTS / "soak.json", "cuda": RESULTS / "soak_gpu.json"}
EVERY = 5
"""One evaluation of so many is hostile."""
WRONG_SHARE, KEEP_SHARE = 0.375, 0.08
"""Of the others: how many are broken, and how many get their `keep`, times and all, instead of a screening."""
HOSTILE = frozenset({"RF13", "RF14", "RF15", "MS10", "MS13", "TF2", "TF22", "ME3"})
"""Beside all of the classes HA and ET."""
OUTLIVE_SECONDS = 10.0
BECOME_REAPER = 36
"""Of prctl: whoever loses its parent becomes this process's child."""
NO_WAIT, IS_READ = os.O_NONBLOCK | os.O_CLOEXEC, 1
"""Of inotify: how it is opened, and the one event asked for."""
BREAKS = (
    (" + eps", ""),
    ("+=", "="),
    ("< cols", "<= cols"),
    ("return KW_OK;", "return KW_UNSUPPORTED_SHAPE;"),
)


def relations() -> dict[int, tuple[int, int]]:
    """Return parent and session of every process; one that ended and waits to be buried is none."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in the second field may hold anything; what follows stands behind its closing bracket.
            state, parent, _, session, *_ = stat.read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(stat.parent.name)] = (int(parent), int(session))
    return found


def household(judge: int) -> tuple[int, set[int]]:
    """Return how many processes the judge and its services have, and those of our descendants that are neither.

    A service is a child of the judge's in a session of its own. Builders, runners and launchers leave that session
    before they load anything, and nothing they start can come back.
    """
    known, ours, grown = relations(), {os.getpid()}, 0
    while len(ours) > grown:
        grown = len(ours)
        ours |= {pid for pid, (parent, _) in known.items() if parent in ours}
    ours = (ours - {os.getpid()}) & known.keys()
    services = {judge} | {
        pid for pid, (parent, session) in known.items() if parent == judge and session == pid
    }
    staff = {pid for pid in ours if known[pid][1] in services}
    return len(staff), ours - staff


class Temptations:
    """Secrets that lie about, watched for readers, and a server that counts its callers."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.prctl(BECOME_REAPER, 1, 0, 0, 0)
        self.watch = self.libc.inotify_init1(NO_WAIT)
        self.places: dict[Path, int] = {}
        self.texts: set[str] = set()
        self.server = socket.create_server(SERVER, reuse_port=True)
        self.server.setblocking(False)
        self.plant()
        next(iter(PLANTED)).read_text()
        if not self.reads():
            raise SystemExit("soak: a file read here is not seen to be read; the siege would prove nothing")

    def plant(self) -> None:
        """Put the secrets where they belong, if they are not there."""
        for path in PLANTED:
            if not path.exists() or path.stat().st_ino != self.places.get(path):
                path.unlink(missing_ok=True)
                text = os.urandom(16).hex()
                path.write_text(text)
                path.chmod(0o644)
                self.texts.add(text)
                self.places[path] = path.stat().st_ino
                self.libc.inotify_add_watch(self.watch, os.fsencode(path), IS_READ)

    def reads(self) -> int:
        """Return how often somebody read a secret since this was last asked."""
        try:
            news = os.read(self.watch, 1 << 16)
        except BlockingIOError:
            return 0
        # A file watched under its own name brings events of one size; a file that was deleted says so too.
        return sum(bool(mask & IS_READ) for _, mask, _, _ in struct.iter_unpack("iIII", news))

    def callers(self) -> int:
        """Return how many called the server since it was last asked."""
        count = 0
        with suppress(BlockingIOError):
            while True:
                self.server.accept()[0].close()
                count += 1
        return count

    def are_told(self, words: str) -> bool:
        """Tell whether a text holds one of the secrets."""
        return any(text in words for text in self.texts)

    def close(self) -> None:
        """Leave nothing behind."""
        self.server.close()
        os.close(self.watch)
        for path in PLANTED:
            path.unlink(missing_ok=True)


def resident_mib(pid: int) -> float:
    """Return the memory a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


class Siege:
    """One judge and what was done to it."""

    def __init__(self, client: JudgeClient, device: Device, bait: Temptations, out: Path) -> None:
        self.client, self.device, self.bait, self.out = client, device, bait, out
        self.rng = random.Random()
        self.spares = 0 if device.kind is DeviceKind.CPU else SPARES
        """Launchers the judge keeps ready: they have sessions of their own, and nothing of a candidate in them."""
        self.rows: list[dict[str, object]] = []
        if out.exists():
            found = json.loads(out.read_text())
            is_ours = found["judge"] == JUDGE_VERSION and found["device"]["kind"] == device.kind.value
            is_ours = is_ours and all("judge_pid" in row for row in found["rows"])
            self.rows = found["rows"] if is_ours else []
        self.hostile = [
            item
            for item in all_specimens()
            if item.runs == ("cpu" if device.kind is DeviceKind.CPU else "gpu")
            and item.unguarded == "verdict"
            and not item.needs_audit
            and (
                not item.slow or device.kind is DeviceKind.CPU or item.id == "HA5"
            )  # a hang is slow by nature
            and (item.id.startswith(("HA", "ET")) or item.id in HOSTILE)
        ]

    def step(self) -> None:
        """Judge one candidate and look around afterwards."""
        turn, place = divmod(len(self.rows), EVERY)
        op = self.rng.choice([name for name in AXES if name != "attention"])
        candidate, problem = self.honest(op), problem_of(op, self.device)
        kind, name = "honest", op
        profile = Profile.KEEP if self.rng.random() < KEEP_SHARE else Profile.QUICK
        if place == EVERY - 1:
            item = self.hostile[turn % len(self.hostile)]
            candidate, problem, profile = item.candidate(), item.problem(self.device), item.profile
            kind, name = "hostile", item.name
        elif self.rng.random() < WRONG_SHARE and (
            breaks := [pair for pair in BREAKS if pair[0] in candidate.source]
        ):
            old, new = self.rng.choice(breaks)
            candidate = candidate.model_copy(update={"source": candidate.source.replace(old, new, 1)})
            kind, name = "wrong", f"{op}: {old!r} -> {new!r}"
        self.bait.plant()
        started, judge = time.perf_counter(), self.client.child.process.pid
        verdict = self.client.evaluate(problem, candidate, profile)
        seconds, ended = time.perf_counter() - started, time.monotonic()
        while len((left := household(judge))[1]) > self.spares and time.monotonic() - ended < OUTLIVE_SECONDS:
            time.sleep(0.01)
        row: dict[str, object] = {"kind": kind, "name": name, "profile": profile.value}
        row |= {"status": verdict.status.value, "seconds": round(seconds, 2)}
        row |= {
            "outlived_s": round(time.monotonic() - ended, 2),
            "survivors": max(0, len(left[1]) - self.spares),
        }
        told = self.bait.are_told(verdict.model_dump_json())
        row |= {"secrets_read": self.bait.reads(), "secrets_told": told}
        row |= {"callers": self.bait.callers(), "is_healthy": self.is_healthy()}
        row |= {"judge_pid": judge, "staff": left[0], "judge_mib": round(resident_mib(judge), 1)}
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
        replace_file(self.out, (json.dumps(head | {"rows": self.rows}) + "\n").encode())

    def summary(self) -> dict[str, object]:
        """Return what the siege came to."""
        half = len(self.rows) // 2
        memory = [float(str(row["judge_mib"])) for row in self.rows]
        asked = Counter(f"{row['kind']}, {row['profile']}" for row in self.rows)
        accepted = Counter(
            f"{row['kind']}, {row['profile']}" for row in self.rows if row["status"] == Status.ACCEPTED.value
        )
        return {
            "evaluations": len(self.rows),
            "asked": asked,
            "accepted": accepted,
            "statuses": Counter(str(row["status"]) for row in self.rows),
            "hostile": Counter(
                f"{row['name']}: {row['status']}" for row in self.rows if row["kind"] == "hostile"
            ),
            "judges": len({row["judge_pid"] for row in self.rows}),
            "secrets_read_or_told": sum(
                bool(row["secrets_read"] or row["secrets_told"]) for row in self.rows
            ),
            "callers": sum(int(str(row["callers"])) for row in self.rows),
            "survivors": sum(int(str(row["survivors"])) for row in self.rows),
            "staff_at_most": max(int(str(row["staff"])) for row in self.rows),
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
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = JudgeSettings(
        threads=usable_cores(),
        max_pairs=60,
        alpha=0.001,
        hidden_shapes=4,
        cache_folder=str(options.home / "cache"),
        blob_folder=str(options.home / "blobs"),
        guards_off=True,
        audit_off=True,
    )
    bait, client = Temptations(), JudgeClient(settings, lambda _: None)
    device = next(one for one in devices() if one.kind.value == options.device)
    out = options.out or FILES[options.device]
    siege, deadline = Siege(client, device, bait, out), time.monotonic() + options.budget_s
    try:
        while len(siege.rows) < options.count and time.monotonic() < deadline:
            siege.step()
            siege.save()
            print(len(siege.rows), siege.rows[-1], flush=True)
    finally:
        client.close()
        bait.close()
    print(json.dumps(siege.summary(), indent=1))


if __name__ == "__main__":
    main()
