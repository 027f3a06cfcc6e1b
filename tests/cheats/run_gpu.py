"""The GPU specimens on a real GPU, each judged with and without guards and audit; needs no pytest.

    PYTHONPATH=build/offline python3 tests/cheats/run_gpu.py [--out rows.json] [--budget-s 540] [--only TF1] [--slow]
    PYTHONPATH=build/offline python3 tests/cheats/run_gpu.py --zoo

With `--zoo` it is the honest kernels' turn: each must earn its `keep`, time and all.

Rows already in the output file, or else among the committed results, are not judged again unless their specimen or the
judge changed; a run cut short goes on where it stopped. After each specimen the device must still serve an honest
kernel. The exit code is 0 if every row is as it should be and nothing is left to judge, 1 if a row is not, 2 if the
budget ran out first.
"""

import argparse
import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.append(str(ROOT))  # a script's own folder is on the path, the repository is not

from kernelwright.core.device import Device, DeviceKind  # noqa: E402
from kernelwright.core.errors import KernelwrightError  # noqa: E402
from kernelwright.core.frozen import digest  # noqa: E402
from kernelwright.core.messages.judge import JudgeSettings  # noqa: E402
from kernelwright.core.verdict import JUDGE_VERSION, Profile, Status  # noqa: E402
from kernelwright.engine.app import versions  # noqa: E402
from kernelwright.engine.service import JudgeClient  # noqa: E402
from kernelwright.hardware.detect import devices  # noqa: E402
from kernelwright.store.disk import replace_file  # noqa: E402
from tests.cheats.specimen import (  # noqa: E402
    Specimen,
    author_candidate,
    honest_source,
    problem_of,
    specimens,
)
from tests.cheats.trial import PLANTED, SERVER, judged  # noqa: E402
from tests.cheats.zoo import ANIMALS, Animal  # noqa: E402

Row = dict[str, str | float | bool]
Task = tuple[Specimen | Animal, bool]


@dataclass
class Bar:
    """Two judges, started when they are first needed and again when one has died."""

    device: Device
    home: Path
    clients: dict[bool, JudgeClient] = field(default_factory=dict)

    def client(self, *, guarded: bool) -> JudgeClient:
        """Return the judge with or without static guards; they share their builds."""
        if guarded not in self.clients:
            settings = JudgeSettings(
                threads=4,
                max_pairs=8,
                alpha=0.001,
                hidden_shapes=4,
                gate_pairs=0,
                guards_off=not guarded,
                audit_off=not guarded,
                cache_folder=str(self.home / "cache"),
                blob_folder=str(self.home / "blobs"),
            )
            self.clients[guarded] = JudgeClient(settings, lambda _: None)
        return self.clients[guarded]

    def close(self) -> None:
        """End the judges."""
        for client in self.clients.values():
            client.close()
        self.clients.clear()

    def row(self, specimen: Specimen, *, guarded: bool) -> Row:
        """Judge one specimen once."""
        started = time.monotonic()
        way = specimen.judged if guarded else specimen.unguarded
        row: Row = {"name": specimen.name, "id": specimen.id, "guarded": guarded, "way": way}
        row["judge"] = JUDGE_VERSION
        try:
            earned = judged(self.client(guarded=guarded), specimen, self.device, way)
        except KernelwrightError as error:
            self.close()
            row |= {"status": "judge_died", "reason": str(error)[:500], "is_right": False}
        else:
            as_told = earned.status in specimen.earns if guarded else earned.is_where(specimen.behind)
            is_right = as_told and not earned.is_a_win
            row |= {"status": earned.status.value, "reason": earned.reason[:500], "is_right": is_right}
        return row | {"seconds": round(time.monotonic() - started, 2), "source": stamp(specimen)}

    def any_row(self, item: Specimen | Animal, *, guarded: bool) -> Row:
        """Judge one file once, whatever it is."""
        return self.row(item, guarded=guarded) if isinstance(item, Specimen) else self.honest_row(item)

    def honest_row(self, item: Animal) -> Row:
        """Judge one kernel of the honest zoo."""
        started = time.monotonic()
        row: Row = {"name": item.name, "op": item.op, "backend": item.backend, "guarded": True}
        row["judge"] = JUDGE_VERSION
        candidate = author_candidate(item.op, item.backend, item.source)
        try:
            found = self.client(guarded=True).evaluate(
                problem_of(item.op, self.device), candidate, Profile.KEEP
            )
        except KernelwrightError as error:
            self.close()
            row |= {"status": "judge_died", "reason": str(error)[:500], "is_right": False}
        else:
            reason = f"{found.failure.stage}: {found.failure.reason}"[:500] if found.failure else ""
            is_right = found.status is Status.ACCEPTED and found.timing is not None
            row |= {"status": found.status.value, "reason": reason, "is_right": is_right}
        return row | {"seconds": round(time.monotonic() - started, 2), "source": honest_stamp(item)}

    def is_healthy(self, backend: str) -> bool:
        """Tell whether an honest kernel, with host code if the specimen has some, is still accepted on this device."""
        language = "python" if backend == "python" else "cuda"
        candidate = author_candidate("softmax", language, honest_source("softmax", language))
        problem = problem_of("softmax", self.device)
        try:
            found = self.client(guarded=True).evaluate(problem, candidate, Profile.QUICK)
        except KernelwrightError:
            self.close()
            return False
        return found.status is Status.ACCEPTED


def stamp(specimen: Specimen) -> str:
    """Return what a row rests on: the specimen's source, what it may earn, and the judge's rules."""
    earns = sorted(status.value for status in specimen.earns)
    return digest(f"{JUDGE_VERSION} {earns} {specimen.source()}")[:16]


def honest_stamp(item: Animal) -> str:
    """Return what a row of the zoo rests on."""
    return digest(f"{JUDGE_VERSION} keep {item.source}")[:16]


def zoo_waiting(rows: list[Row], *, only: str) -> list[Animal]:
    """Return the honest kernels for a GPU that are not judged yet."""
    done = {(row["name"], row["source"]) for row in rows}
    wanted = [item for item in ANIMALS if item.runs == "gpu" and item.name.startswith(only)]
    return [item for item in wanted if (item.name, honest_stamp(item)) not in done]


def waiting(rows: list[Row], *, only: str, slow: bool) -> Iterator[tuple[Specimen, bool]]:
    """Yield what is not judged yet, what hangs on purpose last."""
    done = {(row["name"], row["guarded"], row["source"]) for row in rows}
    for specimen in sorted(specimens("gpu"), key=lambda item: item.slow):
        if specimen.name.startswith(only) and (slow or not specimen.slow):
            for guarded in (True, False):
                if (specimen.name, guarded, stamp(specimen)) not in done:
                    yield specimen, guarded


def known_rows(*places: Path) -> list[Row]:
    """Return the rows of the first file that is there."""
    found = next((place for place in places if place.exists()), None)
    return json.loads(found.read_text())["rows"] if found else []


def save(out: Path, device: Device, rows: list[Row]) -> None:
    """Write all rows, and what they were found with."""
    command = " ".join(["python3 tests/cheats/run_gpu.py", *sys.argv[1:]])
    head = {"command": command, "device": device.title, "versions": versions()}
    head |= {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    head |= {"right": sum(bool(row["is_right"]) for row in rows)}
    replace_file(out, (json.dumps(head | {"rows": rows}, indent=1) + "\n").encode())


def main() -> int:
    """Judge what is waiting within the budget."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, help="JSON file of rows; continued if it is there")
    options.add_argument(
        "--budget-s", type=float, default=540, help="start nothing new after so many seconds"
    )
    options.add_argument("--only", default="", help="judge specimens whose name starts with this")
    options.add_argument("--zoo", action="store_true", help="the honest zoo instead of the specimens")
    options.add_argument("--slow", action="store_true", help="also those that hang until they are killed")
    given = options.parse_args()
    gpu = next((device for device in devices() if device.kind is DeviceKind.CUDA), None)
    if gpu is None:
        options.error("no NVIDIA GPU here")
    deadline = time.monotonic() + given.budget_s
    committed = RESULTS / ("zoo_gpu.json" if given.zoo else "cheats_gpu.json")
    out = given.out or committed
    rows = known_rows(out, committed)
    if given.zoo:
        todo: list[Task] = [(item, True) for item in zoo_waiting(rows, only=given.only)]
    else:
        todo = list(waiting(rows, only=given.only, slow=given.slow))
    left = 0
    for path, text in PLANTED.items():
        path.write_text(text)
    server = socket.create_server(SERVER, reuse_port=True)
    with tempfile.TemporaryDirectory(prefix="kernelwright-zoo-") as home, server:
        bar = Bar(gpu, Path(home))
        for place, (specimen, guarded) in enumerate(todo):
            if time.monotonic() > deadline:
                left = len(todo) - place
                break
            row = bar.any_row(specimen, guarded=guarded)
            if place + 1 == len(todo) or todo[place + 1][0] is not specimen:
                row["is_healthy_after"] = bar.is_healthy(specimen.backend)
                row["is_right"] = bool(row["is_right"] and row["is_healthy_after"])
            rows = [old for old in rows if (old["name"], old["guarded"]) != (row["name"], row["guarded"])]
            rows.append(row)
            save(out, gpu, rows)
            words = [str(row[name]) for name in ("is_right", "guarded", "name", "status", "seconds")]
            print(*words, str(row["reason"])[:160].replace("\n", " | "), flush=True)
        bar.close()
    for path in PLANTED:
        path.unlink(missing_ok=True)
    wrong = [row for row in rows if not row["is_right"]]
    print(f"{len(rows)} rows, {len(wrong)} not as they should be, {left} left to judge")
    return 1 if wrong else 2 if left else 0


if __name__ == "__main__":
    sys.exit(main())
