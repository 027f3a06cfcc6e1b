"""GPU seeds put back into models on a real GPU: every op, Triton and CUDA, right in every way a model can be run.

    python benchmarks/splice_gpu.py --budget-s 220 --out rows.json

For every op a small model in bf16 that contains it, and its seed, built by the judge's own builder in its sandbox. The
seed is spliced with the rest of the graph run by the framework and by Inductor, each plainly and replayed from a CUDA
graph with other inputs, and called as a drop-in module. An answer may be 1.5 times as far from float64 as that of the
original, and nothing may fall back. Nothing is timed, so several processes run at once; one that dies is a row, not the
end. Rows of unchanged seeds are not measured again unless --again.
"""

import argparse
import copy
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.frozen import digest
from kernelwright.core.manifest import FOLDER, Certificate
from kernelwright.core.messages.model import Winner, WinnerUnit
from kernelwright.core.verdict import JUDGE_VERSION, Profile, Status
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed
from kernelwright.hardware.detect import devices
from kernelwright.judge.builds import Builds
from kernelwright.judge.execution import compile_cases, units_of
from kernelwright.model.capture import capture
from kernelwright.model.extract import extract
from kernelwright.model.seen_through import hindrance
from kernelwright.model.splice import Tally, compiled_with
from kernelwright.report import drop_in

RESULTS = Path(__file__).parent / "results" / "splice_gpu.json"
BATCH, SEQ, WIDTH, HEADS = 2, 128, 256, 4
DRIFT = 1.5
"""How much further from float64 than the original a spliced answer may be."""
RESTS = ("eager", "inductor")
ROW_SECONDS = 150
WARM_UP = 3


class OneOp(nn.Module):
    """One op between operations that stay, by name."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op
        self.rms, self.norm = nn.RMSNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)
        angle = torch.rand(SEQ, WIDTH // HEADS // 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for parameter in (self.rms.weight, self.norm.weight, self.norm.bias):
            nn.init.uniform_(parameter, 0.5, 1.5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return what the op makes of x, and a little more."""
        heads = x.view(BATCH, SEQ, HEADS, WIDTH // HEADS).transpose(1, 2)
        match self.op:
            case "rmsnorm":
                return self.rms(x * 2) + x
            case "layernorm":
                return self.norm(x * 2) + x
            case "softmax":
                return (x * 2).softmax(-1) + 1
            case "reduce":
                return (x * 2).amax(-1) + 1
            case "matmul":
                return self.wide(x * 2) + 1
            case "swiglu_mlp":
                x = x + 0.5
                return self.down(F.silu(self.gate(x)) * self.up(x)) + x
            case "attention":
                return F.scaled_dot_product_attention(heads, heads, heads * 2, is_causal=True) + 1
            case "rope":
                a, b = heads.chunk(2, -1)
                return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1) + 1
        return F.cross_entropy((x * 2).view(-1, WIDTH), labels) + 1


OPS = (
    "rmsnorm",
    "layernorm",
    "softmax",
    "reduce",
    "matmul",
    "swiglu_mlp",
    "attention",
    "rope",
    "cross_entropy",
)
BACKENDS = ("triton", "cuda")


def built(candidate: Candidate, case: Case, device: Device, home: Path) -> Winner:
    """Return a candidate as a winner for a case, compiled where the judge compiles."""
    builds = Builds(home / "cache", home, 2)
    folder = home / f"units-{candidate.backend}-{case.op}"
    folder.mkdir(exist_ok=True)
    try:
        (plan,) = compile_cases(candidate, [case], device, builds)
        units = {unit.hash: unit for unit in units_of(plan, case)}.values()
        builds.collect_units(candidate, list(units), device.arch, folder)
    finally:
        builds.close()
    made = []
    for unit in units:
        binary, facts = (folder / f"{unit.hash[:16]}.{kind}" for kind in ("cubin", "json"))
        hashes = {"binary_hash": digest(binary.read_bytes()), "facts_hash": digest(facts.read_bytes())}
        made.append(WinnerUnit(key=unit.hash[:16], binary=str(binary), facts=str(facts), **hashes))
    return Winner(
        problem_hash=case.hash,
        candidate_hash=candidate.hash,
        backend=candidate.backend,
        case=case,
        source=candidate.source,
        values=candidate.values_for(case.hash),
        plan=plan,
        units=tuple(made),
        device=device,
    )


def inputs(number: int) -> tuple[Tensor, Tensor]:
    """Return other inputs for another number."""
    rng = torch.Generator().manual_seed(number)
    x = torch.randn(BATCH, SEQ, WIDTH, generator=rng)
    labels = torch.randint(WIDTH, (BATCH * SEQ,), generator=rng)
    return x.to("cuda", torch.bfloat16), labels.to("cuda")


def far(found: Tensor, exact: Tensor) -> float:
    """Return how far an answer is from float64, relative to it."""
    return float((found.double() - exact).norm() / exact.norm())


class Trial:
    """One op with one seed."""

    def __init__(self, op: str, backend: str, home: Path) -> None:
        torch.manual_seed(0)
        self.home, self.device = home, devices()[0]
        self.model = OneOp(op).to("cuda", torch.bfloat16).eval()
        self.exact = copy.deepcopy(self.model).double()
        candidate = seed(op, backend, Origin.AUTHOR)
        assert candidate is not None
        found = [one for one in extract(capture(self.model, inputs(0)), with_fusions=False) if one.op == op]
        if not found:
            raise LookupError(f"{op} was not recognised in its model")
        self.winner = built(candidate, found[0].case, self.device, home)

    def drift(self, answer: Tensor, number: int) -> float:
        """Return how much further from float64 an answer is than the original's."""
        x, labels = inputs(number)
        exact = self.exact(x.double(), labels)
        return far(answer, exact) / max(far(self.model(x, labels), exact), 1e-30)

    def spliced(self, rest: str) -> dict[str, object]:
        """Return what comes of the model with the kernel in it, plainly and from a CUDA graph."""
        torch._dynamo.reset()
        tally = Tally()
        compiled = compiled_with(copy.copy(self.model), [self.winner], tally, rest)
        started = time.perf_counter()
        drifts = [self.drift(compiled(*inputs(number)), number) for number in range(3)]
        seconds = time.perf_counter() - started
        replayed = self.replayed(compiled)
        (count,) = tally.winners.values()
        return {
            "drift": round(max(drifts), 4),
            "graph_drift": round(replayed, 4),
            "calls": count.calls,
            "sites": len(count.sites),
            "fallbacks": dict(count.fallbacks),
            "first_calls_s": round(seconds, 1),
            "passed": max(*drifts, replayed) <= DRIFT and count.calls > 0 and not count.fallbacks,
        }

    def replayed(self, compiled: Callable[..., Tensor]) -> float:
        """Return the drift of answers replayed from a CUDA graph, with inputs it was not captured with."""
        given, side = inputs(0), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                compiled(*given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer = compiled(*given)
        worst = 0.0
        for number in (7, 8):
            for target, value in zip(given, inputs(number), strict=True):
                target.copy_(value)
            graph.replay()
            worst = max(worst, self.drift(answer, number))
        return worst

    def dropped_in(self) -> dict[str, object]:
        """Return what comes of calling the kernel as a drop-in module."""
        certificate = Certificate(judge_version=JUDGE_VERSION, profile=Profile.SHIP, status=Status.ACCEPTED)
        drop_in.write(self.home / FOLDER, [self.winner], {self.winner.candidate_hash: certificate})
        sys.path.insert(0, str(self.home))
        module = importlib.import_module(f"{FOLDER}.{self.winner.case.op}")
        case, kinds = self.winner.case, {"fp32": torch.float32, "bf16": torch.bfloat16, "int64": torch.int64}
        made = []
        for spec in case.inputs:
            kind = kinds[spec.dtype.value]
            values = torch.randn(spec.shape) if kind.is_floating_point else torch.randint(WIDTH, spec.shape)
            base = torch.empty_strided(spec.shape, spec.element_strides, dtype=kind, device="cuda")
            made.append(base.copy_(values.to("cuda", kind)))
        found = module.call(*made, **case.scalars)
        op = importlib.import_module(f"kernelwright.ops.{case.op}")
        named = {spec.name: one for spec, one in zip(case.inputs, made, strict=True)}
        wide = {name: one.double() if one.is_floating_point() else one for name, one in named.items()}
        exact, original = op.reference(wide, case.scalars), op.reference(named, case.scalars)
        answers = found if isinstance(found, tuple) else (found,)
        ratios = [
            far(mine, true) / max(far(theirs, true), 1e-30)
            for mine, true, theirs in zip(answers, exact, original, strict=True)
        ]
        return {"drift": round(max(ratios), 4), "passed": max(ratios) <= DRIFT}


def row_of(op: str, backend: str) -> dict[str, object]:
    """Return the row of one op and one seed; whatever goes wrong in a part is that part's result."""
    parts: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="kernelwright-splice-") as home, torch.inference_mode():
        trial = Trial(op, backend, Path(home))
        arms: dict[str, Callable[[], dict[str, object]]] = {
            rest: lambda rest=rest: trial.spliced(rest)  # type: ignore[misc]
            for rest in RESTS
        }
        for name, part in {**arms, "drop_in": trial.dropped_in}.items():
            try:
                parts[name] = part()
            except Exception as error:  # noqa: BLE001 - the benchmark's outermost frame: a crash is a result
                words = " ".join(f"{type(error).__name__}: {error}".split())
                parts[name] = {"passed": False, "error": words[:600]}
        opaque = hindrance(trial.winner)
        label, launches = (
            trial.winner.case.label,
            len(trial.winner.plan.launches if trial.winner.plan else ()),
        )
    return {
        "op": op,
        "backend": backend,
        "case": label,
        "launches": launches,
        "seen_through": not opaque,
        "opaque_because": opaque,
        "source": digest(trial.winner.source)[:12],
        "passed": all(part["passed"] for part in parts.values() if isinstance(part, dict)),
        **parts,
    }


def apart(op: str, backend: str) -> dict[str, object]:
    """Return a row made in a process of its own; one that dies or hangs is a row as well."""
    started = time.perf_counter()
    command = [sys.executable, str(Path(__file__)), "--one", f"{op}/{backend}"]
    told: dict[str, Any] = {"op": op, "backend": backend, "passed": False}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ROW_SECONDS, check=False)
        lines = done.stdout.splitlines()
        if done.returncode == 0 and lines:
            told = json.loads(lines[-1])
        else:
            told["error"] = f"exit {done.returncode}: {done.stderr.strip()[-600:]}"
    except subprocess.TimeoutExpired:
        told["error"] = f"no answer after {ROW_SECONDS} s"
    return {"key": f"{op}/{backend}", **told, "seconds": round(time.perf_counter() - started, 1)}


def known_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a result file by key."""
    return {row["key"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}


def wanted(rows: dict[str, dict[str, Any]], ops: Sequence[str]) -> list[tuple[str, str]]:
    """Return what is still to be measured: seeds that exist and whose row is missing, failed, or of another source."""
    found = []
    for op in ops:
        for backend in BACKENDS:
            candidate = seed(op, backend, Origin.AUTHOR)
            row = rows.get(f"{op}/{backend}", {})
            is_known = candidate and row.get("passed") and row.get("source") == digest(candidate.source)[:12]
            if candidate is not None and not is_known:
                found.append((op, backend))
    return found


def main() -> None:
    """Measure every op and seed until the budget is spent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op", action="append", choices=OPS)
    parser.add_argument("--budget-s", type=float, default=220)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        op, backend = options.one.split("/")
        print(json.dumps(row_of(op, backend)))
        return
    deadline = time.monotonic() + options.budget_s
    rows = {} if options.again else known_rows(options.out)
    head = {"command": "python benchmarks/splice_gpu.py", "versions": versions()}
    head |= {"device": devices()[0].model_dump(mode="json")}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lock = Lock()

    def measure(pair: tuple[str, str]) -> None:
        if time.monotonic() > deadline - 15:
            print(f"{'/'.join(pair)}: no time left")
            return
        row = apart(*pair)
        with lock:
            rows[str(row["key"])] = row
            told = head | {"date": datetime.now(UTC).isoformat(timespec="seconds")}
            told["rows"] = [rows[key] for key in sorted(rows)]
            options.out.write_text(json.dumps(told, indent=1) + "\n")
        print(f"{row['key']}: {'passed' if row['passed'] else 'FAILED'} {row.get('error', '')}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(measure, wanted(rows, options.op or OPS)))
    print(f"{sum(bool(row['passed']) for row in rows.values())} of {len(rows)} rows passed")


if __name__ == "__main__":
    main()
