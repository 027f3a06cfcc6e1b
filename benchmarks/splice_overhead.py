"""What splicing costs: per call over calling the same kernel directly, and the time to capture a 32-layer model.

    python benchmarks/splice_overhead.py --device cpu
    python benchmarks/splice_overhead.py --device cuda --out rows.json

Direct is what any caller must do: allocate the outputs, pass addresses. Spliced adds the guards and the views; operator
is the same behind torch's dispatcher, as Inductor calls it. Arms take turns in random order, there and back. A round is
a batch of calls; told is the median over rounds of differences and ratios within a round. On a CPU the clock is the
thread's own time, kernels run on one thread: what other processes take is not counted. On a GPU batches are timed until
the last kernel has ended, at sizes where the launch is what takes time; `graph` is the same calls replayed from CUDA
graphs. Rows that are there for a device are not measured again unless --again.
"""

import argparse
import importlib.util
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelwright.core.candidate import Origin
from kernelwright.core.device import Device
from kernelwright.core.frozen import digest
from kernelwright.core.messages.model import Winner
from kernelwright.core.stats import mad
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed
from kernelwright.hardware.detect import cpu_device, devices, usable_cores
from kernelwright.judge.builds import Builds
from kernelwright.model.capture import capture
from kernelwright.model.extract import Found, extract
from kernelwright.model.launching import open_winner
from kernelwright.model.operators import as_operator
from kernelwright.model.spliced import SplicedKernel
from kernelwright.model.tally import Tally

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "splice_overhead.json"
ROUNDS, BATCH = 60, 200
LAYERS, RUNS = 32, 3
GPU_BACKENDS = ("triton", "cuda")


class Softmax(nn.Module):
    """One input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the softmax of the rows."""
        return x.softmax(-1)


class Mlp(nn.Module):
    """Four inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(64, 96, bias=False), nn.Linear(64, 96, bias=False)
        self.down = nn.Linear(96, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated layer."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "softmax": Softmax,
    "rmsnorm": lambda: nn.RMSNorm(64, eps=1e-6),
    "swiglu_mlp": Mlp,
}


@dataclass
class Session:
    """One device and the rows so far."""

    device: Device
    out: Path
    rows: dict[str, dict[str, Any]]
    home: Path
    again: bool

    @property
    def where(self) -> str:
        """Return the device as torch calls it."""
        return "cpu" if self.device.kind.value == "cpu" else "cuda"

    def has(self, key: str) -> bool:
        """Tell whether a row need not be measured."""
        return key in self.rows and not self.again

    def save(self, key: str, told: dict[str, Any]) -> None:
        """Keep a row, on disk at once."""
        facts = {"key": key, "device": self.device.title, "versions": versions()}
        facts |= {"command": f"python benchmarks/splice_overhead.py --device {self.where}"}
        facts |= {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "load": round(os.getloadavg()[0], 2),
        }
        self.rows[key] = facts | told
        ordered = [self.rows[name] for name in sorted(self.rows)]
        self.out.write_text(json.dumps({"rows": ordered}, indent=1) + "\n")
        print(key, json.dumps(told))


def problem(op: str, session: Session) -> tuple[Found, list[Tensor]]:
    """Return the op's problem in its model, and what its region is called with."""
    torch.manual_seed(0)
    kind = torch.float32 if session.where == "cpu" else torch.float16
    model = MODELS[op]().to(session.where, kind).eval()
    x = torch.randn(8, 64).to(session.where, kind)
    found = [one for one in extract(capture(model, (x,)), with_fusions=False) if one.op == op]
    values = {tuple(parameter.shape): parameter.detach() for parameter in model.parameters()}
    weights = [one.detach() for one in model.parameters()]
    given = []
    for node in found[0].sites[0].region.inputs:
        fake = node.meta["val"]
        own = [one for one in weights if one.shape == fake.shape]
        given.append(own.pop(0) if own else x)
        weights = [one for one in weights if one is not given[-1]]
    assert len(values) <= len(given)
    return found[0], given


def winner(op: str, backend: str, one: Found, session: Session) -> Winner:
    """Return the seed of an op, built as the judge builds it."""
    candidate = seed(op, backend, Origin.AUTHOR)
    assert candidate is not None
    if backend != "cpp":
        from splice_gpu import built

        return built(candidate, one.case, session.device, session.home)
    builds = Builds(session.home / "cache", session.home, usable_cores())
    try:
        result, artefact = builds.get(candidate, candidate.values_for(one.case.hash))
    finally:
        builds.close()
    assert artefact is not None, result.log
    content = digest(artefact.read_bytes())
    return Winner(
        problem_hash="",
        candidate_hash=candidate.hash,
        backend=backend,
        case=one.case,
        artefact=str(artefact),
        artefact_hash=content,
    )


def arms_of(one: Found, made: Winner, given: list[Tensor]) -> dict[str, Callable[[], Any]]:
    """Return one call of the kernel by every way."""
    site, tally = one.sites[0], Tally()
    assert site.match is not None
    kernel = open_winner(made, given[0].device)
    spliced = SplicedKernel(one.case, kernel, (site.region, site.match), tally)
    operator = as_operator(spliced, made.candidate_hash)
    shapes = [(shape, kind) for _, shape, kind in spliced.outputs]
    tensors = [bound.view.applied(given[bound.place]) for bound in spliced.inputs]
    device = given[0].device

    def direct() -> list[Tensor]:
        outs = [torch.empty(shape, dtype=kind, device=device) for shape, kind in shapes]
        kernel(*(one.data_ptr() for one in tensors), *(out.data_ptr() for out in outs))
        return outs

    found = {
        "direct": direct,
        "spliced": lambda: spliced(*given),
        "operator": lambda: operator.operator(given, operator.key),
    }
    expected = direct()
    for name, arm in found.items():
        for mine, theirs in zip(arm(), expected, strict=True):
            assert torch.equal(mine.reshape(-1), theirs.reshape(-1)), name
    assert (tally.fallbacks, tally.spliced) == (0, 2)
    return found


def waited(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def rounds_of(arms: dict[str, Callable[[], Any]], device: str, batch: int) -> dict[str, list[float]]:
    """Return microseconds per call, round by round: every arm there and back in random order."""
    rng, times = random.Random(0), {name: [] for name in arms}
    now = time.perf_counter_ns if device == "cuda" else time.thread_time_ns
    for number in range(ROUNDS + 5):
        order = rng.sample(list(arms), len(arms))
        taken = dict.fromkeys(arms, 0.0)
        for name in (*order, *reversed(order)):
            waited(device)
            started = now()
            for _ in range(batch):
                arms[name]()
            waited(device)
            taken[name] += (now() - started) / 1e3 / batch / 2
        for name, value in taken.items() if number >= 5 else ():
            times[name].append(value)
    return times


def told(times: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians, and what each arm takes more than the direct call."""
    found: dict[str, Any] = {
        f"{name}_us": {"median": round(median(values), 3), "mad": round(mad(values), 3)}
        for name, values in times.items()
    }
    for name in times.keys() - {"direct"}:
        more = [a - b for a, b in zip(times[name], times["direct"], strict=True)]
        ratios = [a / b for a, b in zip(times[name], times["direct"], strict=True)]
        found[f"{name}_more_us"] = {"median": round(median(more), 3), "mad": round(mad(more), 3)}
        found[f"{name}_ratio"] = round(median(ratios), 4)
    return found | {"rounds": ROUNDS}


def graphs_of(arms: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Return the same calls, many at a time, as CUDA graphs."""
    found: dict[str, Callable[[], Any]] = {}
    for name, arm in arms.items():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            arm()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [arm() for _ in range(BATCH)]
        graph.kept = (arm, kept)  # what the graph refers to must outlive it
        found[name] = graph.replay
    return found


def overhead(op: str, backend: str, session: Session) -> None:
    """Measure one op's kernel by every way of calling it."""
    key = f"overhead/{session.where}/{backend}/{op}"
    wants_graph = session.where == "cuda" and not session.has(f"{key}/graph")
    if session.has(key) and not wants_graph:
        return
    one, given = problem(op, session)
    arms = arms_of(one, winner(op, backend, one, session), given)
    if not session.has(key):
        session.save(
            key, {"case": one.case.label, **told(rounds_of(arms, session.where, BATCH)), "batch": BATCH}
        )
    if wants_graph:
        times = rounds_of(graphs_of(arms), session.where, 1)
        per_call = {name: [value / BATCH for value in values] for name, values in times.items()}
        session.save(f"{key}/graph", {"case": one.case.label, **told(per_call), "calls_per_graph": BATCH})


def captured(session: Session) -> None:
    """Measure how long it takes to capture a model of 32 layers and to find its problems."""
    key = f"capture/{session.where}/llama-{LAYERS}"
    if session.has(key):
        return
    spec = importlib.util.spec_from_file_location("llama", ROOT / "examples" / "models" / "llama.py")
    assert spec is not None and spec.loader is not None
    llama = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(llama)
    model = llama.build(layers=LAYERS)
    inputs = llama.sample_inputs()
    if session.where == "cuda":
        model, inputs = model.to("cuda", torch.bfloat16), tuple(one.to("cuda") for one in inputs)
    seconds: dict[str, list[float]] = {"capture": [], "extract": [], "total": []}
    for _ in range(RUNS):
        started = time.perf_counter()
        found = capture(model, inputs)
        waited(session.where)
        between = time.perf_counter()
        problems = extract(found)
        waited(session.where)
        ended = time.perf_counter()
        for name, value in (("capture", between - started), ("extract", ended - between)):
            seconds[name].append(value)
        seconds["total"].append(ended - started)
    nodes = sum(node.op == "call_function" for one in found.graphs for node in one.graph.graph.nodes)
    facts = {
        f"{name}_s": {"median": round(median(values), 2), "max": round(max(values), 2)}
        for name, values in seconds.items()
    }
    session.save(key, {**facts, "operations": nodes, "problems": len(problems), "runs": RUNS})


def main() -> None:
    """Measure what is missing for a device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    rows = {}
    if options.out.exists():
        rows = {row["key"]: row for row in json.loads(options.out.read_text())["rows"]}
    torch.set_num_threads(1)
    device = cpu_device() if options.device == "cpu" else devices()[0]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kernelwright-splice-") as home, torch.inference_mode():
        session = Session(device, options.out, rows, Path(home), options.again)
        for op in MODELS:
            for backend in ("cpp",) if options.device == "cpu" else GPU_BACKENDS:
                overhead(op, backend, session)
        captured(session)


if __name__ == "__main__":
    main()
