"""Does the clock ever keep what is not faster? Decisions of the real judge on pairs whose truth is known.

    python -m benchmarks.judge_validity aa --count 500 --budget-s 3000 --out rows.json      # the same kernel twice
    python -m benchmarks.judge_validity effects --count 50 --budget-s 1200 --out rows.json  # known gains and losses
    python -m benchmarks.judge_validity naive --count 500 --out rows.json                   # one mean each, keep at 1 %
    python -m benchmarks.judge_validity clocks --device cuda --count 20 --out rows.json     # events against wall clock
    python -m benchmarks.judge_validity summary                                             # replays, bounds, table

`--device cuda` asks a GPU, `--tier B` candidates with host code of their own there. Challengers are raced in groups, as
a search does. Both arms of an A/A decision are built separately, from sources that differ in a comment alone. Rows
already in the output file or in benchmarks/results/judge_validity.json are kept: a run cut short goes on where it
stopped. Rows by another version of the judge's rules stay until they are decided anew, and are not summed up.
"""

import argparse
import json
import math
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from statistics import median

from benchmarks.known_kernels import BASE_SHARE, KERNELS, TIER_B, Kernel, diluted, honest, marked, problem_of

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate
from kernelwright.core.case import Case
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.stats import KeepRule, mad, standing
from kernelwright.core.verdict import JUDGE_VERSION, Comparison, Outcome, Profile, Status
from kernelwright.engine.app import versions
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import devices, usable_cores
from kernelwright.store.disk import replace_file

RESULTS = Path(__file__).parent / "results" / "judge_validity.json"
ALPHA = 0.001
MAX_PAIRS = {"aa": 20, "effects": 60, "naive": 1, "clocks": 1}
"""A keep takes thirteen pairs at least; proving a small gain on a noisy machine takes many more. By the judge's own
clock the same kernel mostly reaches the limit, and replays of what was recorded go on to REPLAYED_PAIRS; by the events
of a GPU it takes seven."""
GROUP = {"cpu": 6, "cuda": 15}
"""Challengers raced at once."""
REPLAYS, REPLAYED_PAIRS, BLOCK = 20_000, 400, 20
Row = dict[str, object]
NULL_ALPHAS = (0.001, 0.05)
NEVER = 1e-300
"""A beta that no evidence of that many pairs can reach: nobody gives up."""
PROVEN_SHARE = 0.95
"""Share of tries that must end in a keep before an effect of that size counts as seen."""
STRESSES = ("quiet", "gaps between pairs", "background load")
EFFECTS = {"cpu": (-0.10, -0.05, 0.02, 0.05, 0.10, 0.20), "cuda": (*(-0.02,) * 12, 0.02, 0.02, 0.05)}
"""Work the challengers of one race save (or add), as a share of their own."""


class Session:
    """One judge, the rows so far, and a deadline."""

    def __init__(self, device: Device, max_pairs: int, out: Path, home: Path, budget_s: float) -> None:
        self.device, self.out, self.home = device, out, home
        self.deadline = time.monotonic() + budget_s
        earlier = [
            row for path in (RESULTS, out) if path.exists() for row in json.loads(path.read_text())["rows"]
        ]
        self.rows = {row["key"]: row for row in present(earlier)}
        self.retired = {row["key"]: row for row in earlier}
        """Those of other versions stay on record until they are decided anew."""
        settings = JudgeSettings(
            threads=usable_cores(),
            max_pairs=max_pairs,
            alpha=ALPHA,
            hidden_shapes=0,
            gate_pairs=0,
            cache_folder=str(home / "cache"),
            blob_folder=str(home / "blobs"),
        )
        self.judge = JudgeClient(settings, lambda _: None)
        self.accepted: set[str] = set()

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that have no row yet; none once the budget is spent."""
        return [key for key in keys if key not in self.rows] if time.monotonic() < self.deadline else []

    def accept(self, kernel: Kernel, candidates: Sequence[Candidate]) -> None:
        """Have candidates judged before they are compared, as in a run: host code compiles its kernels there."""
        for candidate in candidates:
            self.judge.prepare(problem_of(kernel, self.device), candidate)
        for candidate in candidates:
            if candidate.hash not in self.accepted:
                found = self.judge.evaluate(problem_of(kernel, self.device), candidate, Profile.QUICK)
                assert found.status is Status.ACCEPTED, found.failure
                self.accepted.add(candidate.hash)

    def decide(
        self,
        kernel: Kernel,
        incumbent: Candidate,
        challengers: Mapping[str, Candidate],
        facts: Mapping[str, Mapping[str, object]],
    ) -> None:
        """Race challengers, by the key of their rows, and keep what was decided, on disk at once."""
        started = time.perf_counter()
        found = self.judge.race(problem_of(kernel, self.device), incumbent, tuple(challengers.values()))
        seconds = round((time.perf_counter() - started) / len(found), 2)
        for key, one in zip(challengers, found, strict=True):
            if not isinstance(one, Comparison):
                print(f"{key}: {one.status.value}, not counted: {one.reason}", flush=True)
                continue
            row: dict[str, object] = {"key": key, **facts[key], "op": kernel.op, "backend": kernel.backend}
            row |= {"device": self.device.title, "judge": JUDGE_VERSION, "clock": one.clock}
            row |= {"outcome": one.outcome.value, "ratio": round(one.ratio, 5), "pairs": one.pairs}
            row |= {"log_ratios": [round(value, 5) for value in one.log_ratios]}
            row |= {"load": round(os.getloadavg()[0], 1), "seconds": seconds}
            self.rows[key] = row
        self.save()
        told = ", ".join(
            f"{one.outcome.value} x{one.ratio:.4f} ({one.pairs})"
            for one in found
            if isinstance(one, Comparison)
        )
        print(f"{next(iter(challengers))}: {told}; {seconds} s each", flush=True)

    def save(self) -> None:
        """Write all rows."""
        head = {"versions": versions(), "command": " ".join(sys.argv)}
        head |= {"date": datetime.now(UTC).isoformat(timespec="seconds")}
        replace_file(
            self.out, (json.dumps(head | {"rows": list((self.retired | self.rows).values())}) + "\n").encode()
        )


def present(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Return the rows that the present judge decided, and those in which no judge took part."""
    return [row for row in rows if row["judge"] == JUDGE_VERSION or str(row["key"]).startswith("naive/")]


def same_kernel(session: Session, count: int, tier: str) -> None:
    """Decide on a kernel against itself, quiet, with idle gaps between pairs, and beside a busy process."""
    kind = session.device.kind.value
    size = GROUP[kind]
    for group in range(-(-count // size)):
        keys = [f"aa/{kind}/{tier}/{number:05d}" for number in range(group * size, (group + 1) * size)]
        if not (keys := session.missing(keys)):
            continue
        kernel = TIER_B if tier == "B" and kind == "cuda" else KERNELS[kind][group % len(KERNELS[kind])]
        stress = STRESSES[group // len(KERNELS[kind]) % len(STRESSES)]
        base = honest(kernel)
        beside = {"gaps between pairs": IDLE, "background load": BUSY[kind]}.get(stress)
        words = [sys.executable, "-c", beside or "", session.device.model_dump_json()]
        busy = subprocess.Popen(words) if beside else None
        try:
            # Two sets of builds serve all decisions in turn: what counts is that two artefacts are never one.
            turn = group // len(KERNELS[kind]) % 2 if tier == "A" or kind == "cpu" else 0
            challengers = {key: marked(base, f"b{turn}{place}") for place, key in enumerate(keys)}
            facts = {key: {"stress": stress} for key in keys}
            if kernel is TIER_B:
                session.accept(kernel, [marked(base, f"a{turn}"), *challengers.values()])
            session.decide(kernel, marked(base, f"a{turn}"), challengers, facts)
        finally:
            if busy is not None:
                busy.kill()
                busy.wait()


IDLE = """import random, sys, time
from kernelwright.core.device import Device, DeviceKind
from kernelwright.hardware.lock import DeviceLock
lock = DeviceLock(Device.model_validate_json(sys.argv[1]))
while True:
    time.sleep(random.uniform(0, 2))
    with lock:
        time.sleep(random.uniform(0, 1))
"""
"""Has the device stand idle between two pairs now and then: a race gives it back after each."""
BUSY = {
    "cpu": "import time\nwhile True:\n    end = time.time() + 0.05\n"
    "    while time.time() < end: pass\n    time.sleep(0.05)",
    "cuda": "import time, torch\nx = torch.zeros(1 << 26, device='cuda')\nwhile True:\n"
    "    for _ in range(20): x.add_(1)\n    torch.cuda.synchronize()\n    time.sleep(0.02)",
}
"""Half of a core, or a quarter of a GPU's time."""


def known_effects(session: Session, count: int) -> None:
    """Decide on challengers that do a known share of work less or more."""
    kind = session.device.kind.value
    kernel, incumbent = diluted(session.device, BASE_SHARE)
    for number in range(count):
        effects = {
            f"effect/{kind}/{number:03d}/{place}": effect for place, effect in enumerate(EFFECTS[kind])
        }
        if not (keys := session.missing(list(effects))):
            continue
        shares = {key: (1 + BASE_SHARE) / (1 + effects[key]) - 1 for key in keys}
        challengers = {
            key: marked(diluted(session.device, share)[1], key.rpartition("/")[2])
            for key, share in shares.items()
        }
        session.decide(kernel, incumbent, challengers, {key: {"effect": effects[key]} for key in keys})


def summary(rows: Sequence[dict[str, object]], rng: random.Random) -> dict[str, object]:
    """Return counts, bounds and replays, per device and tier."""
    found: dict[str, object] = {}
    for group in sorted(
        {str(row["key"]).rpartition("/")[0] for row in rows if str(row["key"]).startswith("aa/")}
    ):
        found[group] = same_kernel_summary(
            [row for row in rows if str(row["key"]).startswith(f"{group}/")], rng
        )
    naive = [row for row in rows if str(row["key"]).startswith("naive/")]
    if naive:
        keeps = sum(bool(row["kept"]) for row in naive)
        found["one mean per arm, kept at 1 %"] = {"decisions": len(naive), "false keeps": keeps}
    for kind, effects in EFFECTS.items():
        for effect in sorted(set(effects)):
            own = [
                row
                for row in rows
                if row.get("effect") == effect and str(row["key"]).startswith(f"effect/{kind}/")
            ]
            if own:
                keeps = sum(row["outcome"] == Outcome.FASTER.value for row in own)
                found[f"effect {effect:+.0%} on {kind}"] = {
                    "decisions": len(own),
                    "kept": keeps,
                    "kept rate, lower 95 %": round(lower_bound(keeps, len(own)), 5),
                    "median ratio": round(median(float(str(row["ratio"])) for row in own), 4),
                    "median pairs": median(int(str(row["pairs"])) for row in own),
                }
    found["smallest effect proven in 95 % of the tries"] = {
        kind: smallest_proven(rows, kind) for kind in EFFECTS
    }
    return found | clocks_summary(rows)


def smallest_proven(rows: Sequence[Mapping[str, object]], kind: str) -> str:
    """Return the smallest gain that was kept in at least 95 % of its tries on a kind of device."""
    outcomes: dict[float, list[bool]] = {}
    for row in rows:
        if str(row["key"]).startswith(f"effect/{kind}/"):
            kept = row["outcome"] == Outcome.FASTER.value
            outcomes.setdefault(float(str(row["effect"])), []).append(kept)
    proven = [
        effect for effect, own in outcomes.items() if effect > 0 and sum(own) >= PROVEN_SHARE * len(own)
    ]
    if not proven:
        return "none" if outcomes else "none: not tried"
    return f"{min(proven):+.0%}"


def same_kernel_summary(rows: Sequence[dict[str, object]], rng: random.Random) -> dict[str, object]:
    """Return how often a kernel was kept against itself, live and in replays of the recorded pairs."""
    recorded: list[float] = [value for row in rows for value in row["log_ratios"]]  # type: ignore[attr-defined]
    rule = KeepRule(alpha=ALPHA, max_pairs=REPLAYED_PAIRS)
    kept = sum(is_kept(replay(rows, rng), rule) for _ in range(REPLAYS))
    false_keeps = sum(row["outcome"] == Outcome.FASTER.value for row in rows)
    return {
        "decisions": len(rows),
        "false keeps": false_keeps,
        "false keep rate, upper 95 %": round(upper_bound(false_keeps, len(rows)), 5),
        "pairs": len(recorded),
        "replays": REPLAYS,
        "false keeps of replays": kept,
        "replays at the null boundary": null_replays(rows, rng, REPLAYS),
        "median absolute log ratio of a pair": round(median(map(abs, recorded)), 5),
    }


class Exchange(StrEnum):
    """Whose arms change places by lot in a replay."""

    NONE = "as recorded"
    """Nobody's: the median is what it happened to be."""
    BLOCK = "arms of a block exchanged by lot"
    """Those of a whole block: the median is zero, and neighbours hang together as they did."""
    PAIR = "arms of a pair exchanged by lot"
    """Those of every pair: the median is zero, and no pair knows of another."""


def replay(rows: Sequence[Row], rng: random.Random, exchange: Exchange = Exchange.NONE) -> list[float]:
    """Return the pairs of a long decision, made of blocks of recorded ones."""
    drawn: list[float] = []
    while len(drawn) < REPLAYED_PAIRS:
        # Never across decisions: neighbours were raced against the same incumbent in the same heats.
        pairs: list[float] = rng.choice(rows)["log_ratios"]  # type: ignore[assignment]
        start = rng.randrange(len(pairs))
        block = pairs[start : start + BLOCK]
        if exchange is Exchange.BLOCK:
            side = rng.choice((-1, 1))
            block = [side * value for value in block]
        elif exchange is Exchange.PAIR:
            block = [rng.choice((-1, 1)) * value for value in block]
        drawn += block
    return drawn[:REPLAYED_PAIRS]


def is_kept(log_ratios: Sequence[float], rule: KeepRule) -> bool:
    """Tell whether a challenger with these pairs would be kept."""
    return standing(log_ratios, rule).outcome is Outcome.FASTER


def null_replays(rows: Sequence[Row], rng: random.Random, count: int) -> dict[str, object]:
    """Return how often chance alone is kept where a gain of any size would be enough and nobody gives up.

    The margin of the smallest gain hides what the evidence itself does.
    """
    found: dict[str, object] = {"replays": count}
    for exchange in (Exchange.PAIR, Exchange.BLOCK, Exchange.NONE):
        for alpha in NULL_ALPHAS:
            rule = KeepRule(smallest_gain=0.0, alpha=alpha, beta=NEVER, max_pairs=REPLAYED_PAIRS)
            kept = sum(is_kept(replay(rows, rng, exchange), rule) for _ in range(count))
            found[f"{exchange.value}, alpha {alpha}"] = {
                "false keeps": kept,
                "rate, lower 95 %": round(lower_bound(kept, count), 5),
                "rate, upper 95 %": round(upper_bound(kept, count), 5),
            }
    return found


def upper_bound(hits: int, count: int) -> float:
    """Return the Clopper-Pearson 95 % upper bound of a rate, by bisection on the binomial tail."""
    if hits == count:
        return 1.0
    # By logarithms: ways to choose a thousand of 20,000 are no float.
    ways = [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(hits + 1)]
    low, high = hits / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        yes, no = math.log(middle), math.log1p(-middle)
        tail = math.fsum(math.exp(way + k * yes + (count - k) * no) for k, way in enumerate(ways))
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return high


def lower_bound(hits: int, count: int) -> float:
    """Return the Clopper-Pearson 95 % lower bound of a rate."""
    return 1 - upper_bound(count - hits, count)


def naive(session: Session, count: int) -> None:
    """Make the same decisions the usual way: one mean per arm, each in a process of its own, kept at 1 % better."""
    if session.device.kind is not DeviceKind.CPU:
        raise SystemExit("naive: this is measured on a CPU alone. Leave --device out.")
    for number in range(count):
        if not (keys := session.missing([f"naive/{number:04d}"])):
            continue
        kernel = KERNELS["cpu"][number % len(KERNELS["cpu"])]
        base, (case,) = honest(kernel), problem_of(kernel, session.device).cases
        times = [
            one_mean(marked(base, mark), case, session.home / "naive" / f"{base.op}-{mark}")
            for mark in ("a0", "b0")
        ]
        kept = times[0] / times[1] >= 1.01
        row = {"key": keys[0], "op": base.op, "judge": JUDGE_VERSION, "times_us": times, "kept": kept}
        session.rows[keys[0]] = row
        session.save()


def one_mean(candidate: Candidate, case: Case, folder: Path) -> float:
    """Return the mean time of a call over 100 ms after 25 ms of warm-up, measured in a forked process."""
    backend = plugins.load("backends", "cpp")
    if not (folder / "kernel.so").exists():
        folder.mkdir(parents=True)
        backend.build(candidate.source, candidate.values_for(case.hash), folder)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        import torch

        specs = (*case.inputs, *case.outputs)
        tensors = {spec.name: torch.empty(spec.numel).uniform_(0.5, 1.5) for spec in specs}
        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        (call,) = backend.bind(folder / "kernel.so", [case], [(0, addresses)])
        for seconds in (0.025, 0.1):
            calls, started = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - started) < seconds:
                call()
                calls += 1
        os.write(writer, struct.pack("d", elapsed / calls * 1e6))
        os._exit(0)
    os.close(writer)
    raw = os.read(reader, 8)
    os.close(reader)
    os.waitpid(child, 0)
    mean: float = struct.unpack("d", raw)[0]
    return round(mean, 3)


CLOCKED = (*KERNELS["cuda"][:3], *KERNELS["cuda"][4:6])
"""Five trusted kernels of about 5 to 100 microseconds."""


def two_clocks(session: Session, count: int) -> None:
    """Hold the launcher's events against the judge's own wall clock on trusted kernels, in launchers of their own."""
    import torch

    from kernelwright.hardware.lock import DeviceLock
    from kernelwright.judge.device_heat import DeviceHeats, clocks, repeats_for
    from kernelwright.judge.evaluate import Judge

    judge = Judge(session.judge.settings, lambda _: None)
    try:
        for number, kernel in ((number, kernel) for number in range(count) for kernel in CLOCKED):
            if not session.missing([key := f"clocks/cuda/{kernel.op}-{kernel.backend}/{number:04d}"]):
                continue
            problem = problem_of(kernel, session.device)
            (case,), bench = problem.cases, judge.bench(problem, honest(kernel))
            with DeviceLock(session.device), torch.device(bench.where), DeviceHeats(boxes=1) as heats:
                call_us = median(heats.replays(case, [bench], heats.size(bench, case))[0])
                track = heats.tracks[case.hash, 0]
                repeats = repeats_for(call_us, len(track.boxes[0].filled))
                events, slope = clocks(track, repeats)
            row = {"key": key, "op": kernel.op, "backend": kernel.backend, "device": session.device.title}
            row |= {"judge": JUDGE_VERSION, "call_us": round(call_us, 3), "repeats": repeats}
            row |= {"events_ms": round(events * 1e3, 5), "slope_ms": round(slope * 1e3, 5)}
            session.rows[key] = row
            session.save()
            print(f"{key}: {call_us:.2f} us, wall clock over events x{slope / events:.4f}", flush=True)
    finally:
        judge.close()


def clocks_summary(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return, per kernel, the judge's wall clock over the launcher's events, and how far the worst median is off."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if str(row["key"]).startswith("clocks/"):
            ratio = float(str(row["slope_ms"])) / float(str(row["events_ms"]))
            ratios.setdefault(str(row["key"]).split("/")[2], []).append(ratio)
    if not ratios:
        return {}
    found: dict[str, object] = {
        name: {
            "looks": len(own),
            "median ratio": round(median(own), 5),
            "spread (median deviation)": round(mad(own), 5),
        }
        for name, own in sorted(ratios.items())
    }
    worst = max(abs(median(own) - 1) for own in ratios.values())
    return {"wall clock over events": found | {"worst median off by": round(worst, 5)}}


def main() -> None:
    """Decide until the count or the budget is reached, or sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("aa", "effects", "naive", "clocks", "summary"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tier", choices=("A", "B"), default="")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--budget-s", type=float, default=3000)
    parser.add_argument("--home", type=Path, default=Path("/tmp/kernelwright-validity"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.part == "summary":
        found = json.loads(options.out.read_text())
        found["summary"] = summary(present(found["rows"]), random.Random(0))
        options.out.write_text(json.dumps(found) + "\n")
        print(json.dumps(found["summary"], indent=1))
        return
    if options.part == "clocks" and options.device != "cuda":
        parser.error("a CPU has one clock only: pass --device cuda")
    device = next(one for one in devices() if one.kind.value == options.device)
    session = Session(device, MAX_PAIRS[options.part], options.out, options.home, options.budget_s)
    try:
        if options.part == "aa":
            same_kernel(session, options.count, options.tier or ("B" if options.device == "cpu" else "A"))
        else:
            {"effects": known_effects, "naive": naive, "clocks": two_clocks}[options.part](
                session, options.count
            )
    finally:
        session.judge.close()


if __name__ == "__main__":
    main()
