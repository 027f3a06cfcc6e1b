"""Does the clock ever keep what is not faster? Decisions of the real judge on pairs whose truth is known.

    python benchmarks/judge_validity.py aa --count 500 --budget-s 3000 --out rows.json      # the same kernel twice
    python benchmarks/judge_validity.py effects --budget-s 1200 --out rows.json             # known gains and losses
    python benchmarks/judge_validity.py naive --count 500 --out rows.json                   # one mean each, keep at 1 %
    python benchmarks/judge_validity.py summary                                             # replays, bounds, table

Both arms of an A/A decision are built separately, from sources that differ in a comment alone. Rows already in the
output file or in benchmarks/results/judge_validity.json are kept: a run cut short goes on where it stopped.
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
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Case, DType
from kernelwright.core.messages import JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.stats import KeepRule, standing
from kernelwright.core.verdict import JUDGE_VERSION, Comparison, Outcome
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import cpu_device, usable_cores

RESULTS = Path(__file__).parent / "results" / "judge_validity.json"
SIZES = {"rmsnorm": (256, 256), "softmax": (512, 512), "layernorm": (128, 1024), "reduce": (1024, 1024)}
"""Kernels of about 10 to 300 microseconds."""
ALPHA, MAX_PAIRS = 0.001, 60
EFFECTS = (-0.10, -0.05, 0.02, 0.05, 0.10, 0.20)
"""Work the challenger saves (or adds), as a share of the incumbent's."""
REPLAYS, BLOCK = 20_000, 20
STRESSES = ("quiet", "idle gaps", "background load")
ENTRIES = {
    "rmsnorm": "const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out",
}


def problem_of(op_name: str) -> Problem:
    """Return the problem decisions are made on."""
    rows, cols = SIZES[op_name]
    case: Case = plugins.load("ops", op_name).case({"rows": rows, "cols": cols}, DType.FP32)
    return Problem(op=op_name, cases=(case,), device=cpu_device())


def marked(candidate: Candidate, mark: str) -> Candidate:
    """Return the same kernel from a source that differs in a comment: another artefact, built on its own."""
    return candidate.model_copy(update={"source": f"{candidate.source}\n// {mark}\n"})


def honest(op_name: str) -> Candidate:
    """Return the C++ seed of an op."""
    found = seed(op_name, "cpp", Origin.AUTHOR)
    assert found is not None
    return found


def diluted(share: float) -> Candidate:
    """Return the rmsnorm seed that does a share of its rows again: a known amount of work more."""
    base = honest("rmsnorm")
    entry = f'extern "C" int kernel_fn({ENTRIES["rmsnorm"]}) {{'
    assert entry in base.source
    renamed = base.source.replace(entry, entry.replace('extern "C" int kernel_fn', "static int once"))
    again = f"""
{entry}
    const int code = once(x, weight, eps, out);
    kw_tensor part = *x, target = *out;
    part.shape[0] = target.shape[0] = static_cast<int64_t>(x->shape[0] * {share} + 0.5);
    return code == KW_OK && part.shape[0] > 0 ? once(&part, weight, eps, &target) : code;
}}
"""
    return base.model_copy(update={"source": renamed + again})


class Session:
    """One judge, the rows so far, and a deadline."""

    def __init__(self, out: Path, home: Path, budget_s: float) -> None:
        self.out, self.home, self.deadline = out, home, time.monotonic() + budget_s
        self.rows = {row["key"]: row for path in (RESULTS, out) if path.exists() for row in rows_of(path)}
        settings = JudgeSettings(
            threads=usable_cores(),
            max_pairs=MAX_PAIRS,
            alpha=ALPHA,
            hidden_shapes=0,
            gate_pairs=0,
            cache_folder=str(home / "cache"),
            blob_folder=str(home / "blobs"),
        )
        self.judge = JudgeClient(settings, lambda _: None)

    def wanted(self, keys: Sequence[str]) -> Iterator[str]:
        """Yield the keys that have no row yet, until the budget is spent."""
        for key in keys:
            if key not in self.rows and time.monotonic() < self.deadline:
                yield key

    def decide(self, key: str, incumbent: Candidate, challenger: Candidate, **facts: object) -> None:
        """Make one decision and keep its row, on disk at once."""
        started = time.perf_counter()
        found = self.judge.compare(problem_of(incumbent.op), incumbent, challenger)
        assert isinstance(found, Comparison), found
        row: dict[str, object] = {"key": key, **facts, "op": incumbent.op, "judge": JUDGE_VERSION}
        row |= {"outcome": found.outcome.value, "ratio": round(found.ratio, 5), "pairs": found.pairs}
        row |= {"log_ratios": [round(value, 5) for value in found.log_ratios]}
        row |= {"load": round(os.getloadavg()[0], 1), "seconds": round(time.perf_counter() - started, 1)}
        self.save(row)
        print(
            f"{key}: {found.outcome.value} x{found.ratio:.4f} after {found.pairs} pairs, {row['seconds']} s"
        )

    def save(self, row: dict[str, object]) -> None:
        """Keep a row."""
        self.rows[str(row["key"])] = row
        head = {"device": cpu_device().model_dump(mode="json"), "versions": versions()}
        head |= {"command": " ".join(sys.argv), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.out.write_text(json.dumps(head | {"rows": list(self.rows.values())}) + "\n")


def rows_of(path: Path) -> list[dict[str, object]]:
    """Return the rows of a result file that the present judge wrote."""
    rows: list[dict[str, object]] = json.loads(path.read_text())["rows"]
    return [row for row in rows if row["judge"] == JUDGE_VERSION]


def same_kernel(session: Session, count: int) -> None:
    """Decide on a kernel against itself, quiet, with idle gaps, and beside a busy process."""
    keys = [f"aa/{number:04d}" for number in range(count)]
    for key in session.wanted(keys):
        number = int(key.split("/")[1])
        op_name = list(SIZES)[number % len(SIZES)]
        stress = STRESSES[number // len(SIZES) % len(STRESSES)]
        base = honest(op_name)
        if stress == "idle gaps":
            time.sleep(random.uniform(0, 2))
        busy = subprocess.Popen([sys.executable, "-c", BUSY]) if stress == "background load" else None
        try:
            # A handful of builds serve all decisions: what counts is that two artefacts are never one.
            session.decide(key, marked(base, f"a{number % 8}"), marked(base, f"b{number % 8}"), stress=stress)
        finally:
            if busy is not None:
                busy.kill()
                busy.wait()


BUSY = "import time\nwhile True:\n    end = time.time() + 0.05\n    while time.time() < end: pass\n    time.sleep(0.05)"


def known_effects(session: Session, count: int) -> None:
    """Decide on challengers that do a known share of work less or more."""
    keys = [f"effect/{effect:+.2f}/{number:03d}" for number in range(count) for effect in EFFECTS]
    for key in session.wanted(keys):
        effect = float(key.split("/")[1])
        plain, more = diluted(0.0), diluted(abs(effect))
        incumbent, challenger = (more, plain) if effect > 0 else (plain, more)
        session.decide(key, incumbent, challenger, effect=effect)


def summary(rows: Sequence[dict[str, object]], rng: random.Random) -> dict[str, object]:
    """Return counts, bounds and replays."""
    same = [row for row in rows if str(row["key"]).startswith("aa/")]
    recorded = [value for row in same for value in row["log_ratios"]]  # type: ignore[union-attr]
    rule, kept = KeepRule(alpha=ALPHA, max_pairs=MAX_PAIRS), 0
    for _ in range(REPLAYS if len(recorded) > BLOCK else 0):
        drawn: list[float] = []
        while len(drawn) < MAX_PAIRS:
            start = rng.randrange(len(recorded) - BLOCK)
            drawn += recorded[start : start + BLOCK]
        kept += standing(drawn[:MAX_PAIRS], rule).outcome is Outcome.FASTER
    false_keeps = sum(row["outcome"] == Outcome.FASTER.value for row in same)
    found: dict[str, object] = {
        "aa_decisions": len(same),
        "aa_false_keeps": false_keeps,
        "aa_false_keep_rate_upper_95": round(upper_bound(false_keeps, len(same)), 5) if same else None,
        "aa_pairs": len(recorded),
        "replays": REPLAYS if recorded else 0,
        "replay_false_keeps": kept,
        "median_abs_log_ratio_of_a_pair": round(median(map(abs, recorded)), 5) if recorded else None,
    }
    naive = [row for row in rows if str(row["key"]).startswith("naive/")]
    if naive:
        found |= {"naive_decisions": len(naive), "naive_false_keeps": sum(bool(row["kept"]) for row in naive)}
    for effect in EFFECTS:
        group = [row for row in rows if row.get("effect") == effect]
        if group:
            keeps = sum(row["outcome"] == Outcome.FASTER.value for row in group)
            ratios = [float(str(row["ratio"])) for row in group]
            found[f"effect {effect:+.0%}"] = {
                "decisions": len(group),
                "kept": keeps,
                "median_ratio": round(median(ratios), 4),
                "median_pairs": median(int(str(row["pairs"])) for row in group),
            }
    return found


def upper_bound(hits: int, count: int) -> float:
    """Return the Clopper-Pearson 95 % upper bound of a rate, by bisection on the binomial tail."""
    low, high = hits / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        tail = sum(math.comb(count, k) * middle**k * (1 - middle) ** (count - k) for k in range(hits + 1))
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return high


def naive(session: Session, count: int) -> None:
    """Make the same decisions the usual way: one mean per arm, each in a process of its own, kept at 1 % better."""
    for key in session.wanted([f"naive/{number:04d}" for number in range(count)]):
        base = honest(list(SIZES)[int(key.split("/")[1]) % len(SIZES)])
        times = [
            one_mean(marked(base, mark), session.home / "naive" / f"{base.op}-{mark}")
            for mark in ("a0", "b0")
        ]
        kept = times[0] / times[1] >= 1.01
        session.save({"key": key, "op": base.op, "judge": JUDGE_VERSION, "times_us": times, "kept": kept})


def one_mean(candidate: Candidate, folder: Path) -> float:
    """Return the mean time of a call over 100 ms after 25 ms of warm-up, measured in a forked process."""
    (case,) = problem_of(candidate.op).cases
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


def main() -> None:
    """Decide until the count or the budget is reached, or sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("aa", "effects", "naive", "summary"))
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--budget-s", type=float, default=3000)
    parser.add_argument("--home", type=Path, default=Path("/tmp/kernelwright-validity"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.part == "summary":
        found = json.loads(options.out.read_text())
        found["summary"] = summary(rows_of(options.out), random.Random(0))
        options.out.write_text(json.dumps(found) + "\n")
        print(json.dumps(found["summary"], indent=1))
        return
    session = Session(options.out, options.home, options.budget_s)
    try:
        parts = {"aa": same_kernel, "effects": known_effects, "naive": naive}
        parts[options.part](session, options.count)
    finally:
        session.judge.close()


if __name__ == "__main__":
    main()
