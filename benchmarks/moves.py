"""Every move on every seed it applies to: judged like any candidate, then raced against the unmoved parent.

    python -m benchmarks.moves --device cpu --budget-s 1500
    python -m benchmarks.moves --device cuda --budget-s 540 --shard 1/3 --out rows.json
    python -m benchmarks.moves --merge rows.json

A row is a move, a way of making it, a seed and a case. Rows that are in the output file (or in the committed results)
for the same sources and the same judge are not measured again, so that a run cut short continues where it stopped. The
rows where a gain is expected come first. A gain is certified if the judge accepts the moved seed under `keep` and
finds it faster than the parent. A row is structural if the way changed code: what is left of the two sources without
their `PARAMS` differs.
"""

import argparse
import ast
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelwright.agents.mover import carried, declined
from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, Origin
from kernelwright.core.case import Case, DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.frozen import digest
from kernelwright.core.messages.judge import Disqualified, JudgeSettings
from kernelwright.core.plan_language import (
    CLOSING,
    OPENING,
    PlanFault,
    named_kernels,
    parse_plan,
    python_part,
)
from kernelwright.core.plan_run import run_plan
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import JUDGE_VERSION, Outcome, Profile, Status
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import devices

RESULTS = Path(__file__).parent / "results" / "moves.json"
LANGUAGES = {DeviceKind.CPU: ("cpp",), DeviceKind.CUDA: ("triton", "cuda")}
WAYS = 2
"""Ways of one move that are measured on a seed."""
THREADS = 2


@dataclass(frozen=True)
class Spot:
    """One size of one op."""

    op: str
    axes: tuple[int, ...]
    dtype: DType = DType.FP32
    scalars: tuple[tuple[str, bool | float], ...] = ()

    def case(self) -> Case:
        """Return the case."""
        op = plugins.load("ops", self.op)
        names = AXES[self.op]
        return op.case(dict(zip(names, self.axes, strict=True)), self.dtype, dict(self.scalars) or None)


AXES = {
    "attention": ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim"),
    "cross_entropy": ("rows", "vocab"),
    "layernorm": ("rows", "cols"),
    "matmul": ("m", "n", "k"),
    "reduce": ("rows", "cols"),
    "rmsnorm": ("rows", "cols"),
    "rope": ("batch", "heads", "seq", "head_dim"),
    "softmax": ("rows", "cols"),
    "swiglu_mlp": ("m", "k", "n"),
}
SUM, HALVES = (("is_max", False),), (("interleaved", False),)
FULL, CAUSAL = (("causal", False), ("scale", 0.125)), (("causal", True), ("scale", 0.125))

BOARD = (
    Spot("softmax", (4096, 50257), DType.FP16),
    Spot("cross_entropy", (8192, 50257), DType.FP16),
    Spot("rope", (2, 32, 2048, 128), DType.FP16, HALVES),
)
"""What a search from the seeds is shown on."""

EXPECTED: dict[DeviceKind, dict[str, tuple[Spot, ...]]] = {
    DeviceKind.CPU: {
        "scaled_exponent": (Spot("cross_entropy", (128, 4096)),),
        "openmp_schedule": (Spot("cross_entropy", (64, 256)), Spot("cross_entropy", (64, 1000))),
        "pipeline_depth": (Spot("softmax", (128, 1024)), Spot("rmsnorm", (512, 4096))),
        "two_pass": (Spot("layernorm", (2, 2097152)),),
        "loop_order": (
            Spot("attention", (1, 1, 1, 128, 128, 256), scalars=CAUSAL),
            Spot("attention", (1, 1, 1, 224, 224, 256), scalars=CAUSAL),
        ),
        "plain_maximum": (Spot("softmax", (60, 256)), Spot("cross_entropy", (128, 4096))),
        "tile_shapes": (Spot("matmul", (64, 48, 512)),),
        "unrolling": (Spot("layernorm", (512, 128)), Spot("softmax", (60, 256))),
        "native_rounding": (Spot("rmsnorm", (512, 128), DType.BF16),),
        "no_staging": (Spot("rope", (1, 8, 128, 128), scalars=HALVES),),
        "plain_sums": (Spot("reduce", (128, 1024), scalars=SUM), Spot("layernorm", (128, 1024))),
        "vector_width": (Spot("softmax", (2048, 50)), Spot("layernorm", (512, 100))),
        "split_k": (Spot("matmul", (32, 32, 16384)),),
        "non_temporal_stores": (Spot("rmsnorm", (2048, 4096)),),
        "online_softmax": (Spot("softmax", (2, 1048576)), Spot("softmax", (2, 4194304))),
    },
    DeviceKind.CUDA: {
        "pipeline_depth": (*BOARD[:2], Spot("matmul", (2048, 2048, 2048), DType.FP16)),
        "unrolling": BOARD[:2],
        "vector_width": BOARD,
        "persistent_grid": (
            Spot("rmsnorm", (131072, 512), DType.FP16),
            Spot("reduce", (262144, 128), DType.FP16, SUM),
            *BOARD,
        ),
        "cache_hints": BOARD,
        "multi_row_blocks": (
            BOARD[2],
            Spot("softmax", (65536, 128), DType.FP16),
            Spot("rmsnorm", (65536, 256), DType.FP16),
            Spot("layernorm", (65536, 256), DType.FP16),
        ),
        "tile_shapes": (*BOARD[:2], Spot("matmul", (256, 256, 8192), DType.FP16)),
        "l2_swizzle": (
            Spot("matmul", (4096, 4096, 4096), DType.FP32),
            Spot("matmul", (4096, 4096, 4096), DType.FP16),
        ),
    },
}
"""Where a move is expected to pay; these rows are measured first."""
USUAL: dict[DeviceKind, tuple[Spot, ...]] = {
    DeviceKind.CPU: (
        Spot("softmax", (128, 1024)),
        Spot("layernorm", (128, 1024)),
        Spot("rmsnorm", (128, 1024)),
        Spot("reduce", (128, 1024), scalars=SUM),
        Spot("rope", (1, 8, 128, 128), scalars=HALVES),
        Spot("cross_entropy", (128, 4096)),
        Spot("matmul", (256, 192, 160)),
        Spot("attention", (1, 4, 4, 128, 128, 64), scalars=CAUSAL),
        Spot("swiglu_mlp", (128, 256, 688)),
    ),
    DeviceKind.CUDA: (
        *BOARD,
        Spot("softmax", (8192, 8192), DType.FP16),
        Spot("layernorm", (8192, 4096), DType.FP16),
        Spot("rmsnorm", (2048, 4096), DType.FP16),
        Spot("reduce", (4096, 4096), DType.FP16, SUM),
        Spot("matmul", (2048, 2048, 2048), DType.FP16),
        Spot("matmul", (2048, 2048, 2048), DType.FP32),
        Spot("attention", (2, 32, 32, 1024, 1024, 64), DType.FP16, CAUSAL),
        Spot("swiglu_mlp", (2048, 2048, 5504), DType.FP16),
    ),
}
"""The one or two sizes of every op on which all moves are measured."""


@dataclass(frozen=True)
class Job:
    """One row to be measured."""

    move: str
    spot: Spot
    backend: str
    way: Moved
    parent: Candidate

    @property
    def key(self) -> str:
        """Return what names the row."""
        return (
            f"{self.move}/{self.backend}/{self.spot.case().label}/{dict(self.spot.scalars)}/{self.way.note}"
        )

    @property
    def source(self) -> str:
        """Return what the row rests on: parent and moved source."""
        return digest(f"{digest(self.parent.source)}:{digest(self.way.source)}")[:12]


def jobs(device: Device, usual: Sequence[Spot]) -> Iterator[Job]:
    """Yield the rows of a device: those with an expected gain, then every move on the usual sizes."""
    seen = set()
    expected = EXPECTED[device.kind]
    for move, spots in expected.items():
        for spot in spots:
            yield from (
                job for job in _ways(device, move, spot, WAYS) if not (job.key in seen or seen.add(job.key))
            )
    for spot in usual:
        for move in plugins.names("moves"):
            yield from (
                job for job in _ways(device, move, spot, WAYS) if not (job.key in seen or seen.add(job.key))
            )


def _ways(device: Device, move: str, spot: Spot, most: int) -> Iterator[Job]:
    """Yield what a move makes of the seeds of an op, as far as their plans serve the case."""
    loaded = plugins.load("moves", move)
    for backend in LANGUAGES[device.kind]:
        parent = seed(spot.op, backend, Origin.AUTHOR)
        if parent is None or backend not in loaded.BACKENDS:
            continue
        case = spot.case()
        found = loaded.apply(Subject(parent.source, backend, spot.op, (case,), device))
        made = () if isinstance(found, str) else (Job(move, spot, backend, way, parent) for way in found)
        yield from itertools.islice((job for job in made if not is_same(job, case, device)), most)


def is_same(job: Job, case: Case, device: Device) -> bool:
    """Tell whether a move changes nothing on a case: the same kernels, launched in the same way."""
    try:
        plans = [
            run_plan(parse_plan(one.source), case, one.values_for(case.hash), device)
            for one in (job.parent, candidate_of(job))
        ]
    except PlanFault:
        return False
    launched = {launch.kernel for launch in plans[0].launches}
    return plans[0] == plans[1] and _kernels(job.parent, launched) == _kernels(candidate_of(job), launched)


def _kernels(candidate: Candidate, launched: set[str]) -> object:
    """Return the device code of a source: in Python its launched functions and those that are never launched."""
    if candidate.backend != "triton":
        return candidate.source.partition("*/")[2]
    tree, plan = ast.parse(candidate.source), parse_plan(candidate.source)
    others = named_kernels(plan) - launched
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != "plan"]
    return [ast.dump(node) for node in functions if node.name not in others]


def is_structural(before: str, after: str) -> bool:
    """Tell whether a move changed code: without their `PARAMS` the sources differ."""
    return _without_params(before) != _without_params(after)


def _without_params(source: str) -> tuple[str, ...]:
    """Return the Python of a source but its `PARAMS`, and in a C-like file also the text around it."""
    body = ast.parse(python_part(source)).body
    python = [
        ast.unparse(node)
        for node in body
        if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARAMS")
    ]
    if OPENING not in source:
        return tuple(python)
    above, rest = source.split(OPENING, 1)
    return (*python, above, rest.split(CLOSING, 1)[1])


def candidate_of(job: Job) -> Candidate:
    """Return the moved seed."""
    return job.parent.model_copy(
        update={
            "source": job.way.source,
            "choices": carried(job.parent, job.way),
            "parents": (job.parent.hash,),
            "author": Author(name="mover", detail=f"{job.move}: {job.way.note}"),
            "note": job.way.note,
        }
    )


def measured(
    judge: JudgeClient, device: Device, job: Job, parents: dict[str, bool], pairs: int
) -> dict[str, Any]:
    """Return the row of a job; `parents` remembers which seeds were found right on which case."""
    case, started = job.spot.case(), time.perf_counter()
    problem = Problem(op=job.spot.op, cases=(case,), device=device)
    moved = candidate_of(job)
    row: dict[str, Any] = {
        "key": job.key,
        "move": job.move,
        "way": job.way.note,
        "structural": is_structural(job.parent.source, job.way.source),
        "op": job.spot.op,
        "backend": job.backend,
        "case": case.label,
        "scalars": dict(job.spot.scalars),
        "device": f"{device.kind.value} {device.arch} {device.name}",
        "sources": job.source,
        "judge": JUDGE_VERSION,
        "versions": versions(),
        "command": f"python -m benchmarks.moves --device {device.kind.value} --move {job.move} --pairs {pairs}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if reason := declined(moved, problem):
        return row | {"status": "declined", "reason": reason}
    own = f"{job.parent.hash}:{case.hash}"
    if own not in parents:
        parents[own] = judge.evaluate(problem, job.parent, Profile.QUICK).status is Status.ACCEPTED
    verdict = judge.evaluate(problem, moved, Profile.KEEP)
    row |= {"status": verdict.status.value, "reason": verdict.failure.reason if verdict.failure else ""}
    if verdict.status is Status.ACCEPTED and parents[own]:
        found = judge.compare(problem, job.parent, moved)
        if isinstance(found, Disqualified):
            row |= {"status": "disqualified", "reason": found.model_dump_json()}
        else:
            row |= {
                "outcome": found.outcome.value,
                "ratio": round(found.ratio, 4),
                "interval": [round(found.ci_low, 4), round(found.ci_high, 4)],
                "pairs": found.pairs,
                "parent_us": round(found.cases[0].incumbent_us, 3),
                "moved_us": round(found.cases[0].challenger_us, 3),
                "load": found.telemetry.get("load"),
            }
    return row | {"took_s": round(time.perf_counter() - started, 1)}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return, per move, its largest certified gain and on what, and how often it lost or was refused."""
    found: dict[str, Any] = {}
    for name in sorted({row["move"] for row in rows}):
        mine = [row for row in rows if row["move"] == name]
        gains = [row for row in mine if row.get("outcome") == Outcome.FASTER.value]
        best = max(gains, key=lambda row: row["interval"][0], default=None)
        found[name] = {
            "rows": len(mine),
            "certified": len(gains),
            "structural": sum(bool(row.get("structural")) for row in gains),
            "refused": sum(row["status"] != Status.ACCEPTED.value for row in mine),
            "best": best
            and {
                name: best[name]
                for name in ("case", "backend", "way", "ratio", "interval", "pairs", "device")
            },
        }
    return found


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by key, none if it does not exist."""
    if not path.is_file():
        return {}
    return {f"{row['device']}/{row['key']}": row for row in json.loads(path.read_text())["rows"]}


def save(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    """Write the rows with their summary."""
    ordered = [rows[key] for key in sorted(rows)]
    found, now = summary(ordered), summary([row for row in ordered if row["judge"] == JUDGE_VERSION])
    answer = {
        "command": "python -m benchmarks.moves --device DEVICE; every row names its own",
        "judge": JUDGE_VERSION,
        "certified_moves": [name for name, one in found.items() if one["certified"]],
        "structural_moves": [name for name, one in found.items() if one["structural"]],
        "structural_moves_of_this_judge": [name for name, one in now.items() if one["structural"]],
        "summary": found,
        "rows": ordered,
    }
    path.write_text(json.dumps(answer, indent=1) + "\n")


def main() -> None:
    """Measure what is missing, within a budget."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--merge", type=Path, nargs="+", help="measure nothing, put the rows of files together"
    )
    parser.add_argument("--budget-s", type=float, default=1e9, help="no row is begun after so many seconds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--shard", default="1/1", help="K/N: every N-th row from the K-th on")
    parser.add_argument("--move", action="append", default=[], help="these moves alone")
    parser.add_argument("--pairs", type=int, default=80, help="most pairs of a comparison")
    parser.add_argument("--expected", action="store_true", help="only where a gain is expected")
    parser.add_argument("--again", action="store_true", help="also rows that were not proven")
    options = parser.parse_args()
    if options.merge:
        save(
            options.out,
            {key: row for path in (RESULTS, *options.merge) for key, row in rows_of(path).items()},
        )
        return
    device = next(one for one in devices() if one.kind.value == options.device)
    place, shards = (int(word) for word in options.shard.split("/"))
    rows = rows_of(RESULTS) | rows_of(options.out)
    started, parents = time.monotonic(), dict[str, bool]()
    name = f"{device.kind.value} {device.arch} {device.name}"
    with tempfile.TemporaryDirectory(prefix="kernelwright-moves-") as folder:
        settings = JudgeSettings(
            threads=THREADS if device.kind is DeviceKind.CPU else 1,
            max_pairs=options.pairs,
            alpha=0.001,
            hidden_shapes=4,
            cache_folder=f"{folder}/cache",
            blob_folder=f"{folder}/blobs",
        )
        judge = JudgeClient(settings, lambda _: None)
        spots = () if options.expected else USUAL[device.kind]
        waiting = [job for job in jobs(device, spots) if not options.move or job.move in options.move]
        for number, job in enumerate(waiting):
            known = rows.get(f"{name}/{job.key}")
            is_known = known is not None and (known["sources"], known["judge"]) == (job.source, JUDGE_VERSION)
            is_open = options.again and known is not None and known.get("outcome") == Outcome.NOT_PROVEN.value
            if number % shards != place - 1 or (is_known and not is_open):
                continue
            if time.monotonic() - started > options.budget_s:
                break
            try:
                row = measured(judge, device, job, parents, options.pairs)
            except (
                KernelwrightError
            ) as error:  # the judge's own trouble: told, and the next row has a fresh one
                print(f"{job.key}: {error}", flush=True)
                judge.close()
                judge = JudgeClient(settings, lambda _: None)
                continue
            rows[f"{name}/{job.key}"] = row
            save(options.out, rows)
            told = row.get("outcome", row["status"])
            print(f"{number + 1}/{len(waiting)} {job.key}: {told} {row.get('ratio', '')} {row.get('interval', '')} "
                  f"{row['reason'][:90]} {row.get('took_s', 0)} s", flush=True)  # fmt: skip
        judge.close()


if __name__ == "__main__":
    main()
