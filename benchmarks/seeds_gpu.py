"""The GPU seeds on a real GPU: correct on every public and edge case, and their time beside baselines and floor.

    python benchmarks/seeds_gpu.py correctness --op softmax --budget-s 460 --out rows.json
    python benchmarks/seeds_gpu.py board --op softmax --modes default,max-autotune --arm NAME=FILE --out rows.json

Rows already in the output file (or in benchmarks/results/seeds_gpu.json) are not measured again unless --again or
unless a seed changed since: every row names the sources it rests on. A run cut short continues where it stopped. A
rival's file holds `kernel_fn` and is timed like every other arm.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Case, Distribution, DType
from kernelwright.core.device import Ceilings
from kernelwright.core.frozen import digest
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.roofline import floor_us
from kernelwright.core.stats import mad
from kernelwright.core.verdict import JUDGE_VERSION, Status
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed
from kernelwright.hardware.calibrate import ceilings
from kernelwright.hardware.detect import devices
from kernelwright.judge.children import Lost
from kernelwright.judge.device_heat import DeviceHeats, Rival
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.execution import open_runner
from kernelwright.judge.heat import TimingFailed
from kernelwright.judge.stages import CALL_SECONDS, Bench, Failure, check_call

RESULTS = Path(__file__).parent / "results" / "seeds_gpu.json"
SEEDS = ("triton", "cuda", "gluon")
"""File names of GPU seeds; Gluon is a dialect of the Triton backend and has a seed for rmsnorm alone."""
BOARD_BYTES = 12 << 20
"""Cases that move at least this much, or compute at least BOARD_FLOPS, are the board; smaller ones are for checking."""
BOARD_FLOPS = 5e9
ROUNDS = 12
"""There and back: every arm of the board is replayed twice as often."""
ATTEMPTS = 6
"""A kernel that kills its context is restarted on the remaining cases this often before the rest counts as failed."""


@dataclass
class Session:
    """One device, one judge, rows so far."""

    judge: Judge
    device: object
    home: Path
    known: dict[str, dict[str, object]]
    """Rows of earlier runs, to be left alone."""
    rows: dict[str, dict[str, object]]
    """Rows of the output file: what is merged later must not carry anybody else's."""
    out: Path
    deadline: float

    def has(self, key: str, sources: dict[str, str]) -> bool:
        """Tell whether a row of these very sources exists; what was judged was judged by the present rules."""
        found = [row for rows in (self.rows, self.known) if (row := rows.get(key))]
        return any(
            row.get("sources") == sources and row.get("judge", JUDGE_VERSION) == JUDGE_VERSION
            for row in found
        )

    def save(self, row: dict[str, object]) -> None:
        """Keep a row, on disk at once."""
        self.rows[str(row["key"])] = row
        found = {"device": self.device.model_dump(mode="json"), "versions": versions()}
        found |= {"command": " ".join(sys.argv), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.out.write_text(json.dumps(found | {"rows": list(self.rows.values())}, indent=1))


def source_of(candidate: Candidate) -> str:
    """Return what tells two versions of a seed apart."""
    return digest(candidate.source)[:12]


def seeds_of(op_name: str) -> dict[str, Candidate]:
    """Return the GPU seeds of an op by file name."""
    found = {}
    for name in SEEDS:
        backend = "triton" if name == "gluon" else name
        if candidate := seed(op_name, backend, Origin.AUTHOR, name):
            found[name] = candidate
    return found


def bench_of(session: Session, candidate: Candidate, cases: Sequence[Case]) -> Bench:
    """Return what the judge's stages work on."""
    problem = Problem(op=candidate.op, cases=tuple(cases), device=session.device)
    return session.judge.bench(problem, candidate)


def sweep(
    bench: Bench, wanted: list[tuple[Case, Distribution]]
) -> Iterator[tuple[Case, Distribution, Failure | None]]:
    """Yield every case with its failure; a dead context is replaced and the sweep goes on."""
    op = plugins.load("ops", bench.problem.op)
    place = attempts = 0
    while place < len(wanted) and attempts < ATTEMPTS:
        attempts += 1
        part = wanted[place:]
        with bench.arena([case for case, _ in part], range(len(part))) as arena:
            for number, (case, kind) in enumerate(part):
                arena.write_inputs(number, op.make_inputs(case, kind, bench.rng.getrandbits(62)))
            arena.poison_outputs()
            try:
                with open_runner(
                    bench.candidate, arena, bench.problem.device, bench.builds, bench.nursery, bench.home
                ) as runner:
                    for number, (case, kind) in enumerate(part):
                        runner.run(number, 1, CALL_SECONDS)
                        yield case, kind, check_call(bench, arena, number, kind)
                        place += 1
            except Lost as lost:
                yield *wanted[place], Failure(lost.status, lost.reason, wanted[place][0])
                place += 1
    for case, kind in wanted[place:]:
        yield case, kind, Failure(Status.CRASHED, "not reached: the context died too often", case)


def correctness(
    session: Session, op_name: str, name: str, candidate: Candidate, distributions: Sequence[Distribution]
) -> None:
    """Check a seed on every public and edge case it must serve, and on every distribution for the small ones."""
    key, sources = f"correctness/{op_name}/{name}", {name: source_of(candidate)}
    if session.has(key, sources):
        return
    op = plugins.load("ops", op_name)
    cases = [*op.public_cases(), *op.edge_cases()]
    wanted = [(case, Distribution.SIGNED) for case in cases]
    small = [case for case in op.public_cases() if sum(spec.numel for spec in case.inputs) < 1 << 17]
    wanted += [(case, kind) for kind in distributions for case in small]
    started = time.perf_counter()
    failures = [
        {
            "case": case.label,
            "scalars": case.scalars,
            "distribution": kind.value,
            "status": failure.status.value,
            "reason": failure.reason[:600],
        }
        for case, kind, failure in sweep(bench_of(session, candidate, cases[:1]), wanted)
        if failure
    ]
    row = {"key": key, "op": op_name, "seed": name, "checked": len(wanted), "failed": len(failures)}
    row |= {"judge": JUDGE_VERSION, "sources": sources}
    session.save(row | {"failures": failures[:12], "seconds": round(time.perf_counter() - started, 1)})
    print(
        f"{key}: {len(wanted) - len(failures)} of {len(wanted)} right, {time.perf_counter() - started:.0f} s"
    )
    for failure in failures[:6]:
        print(
            "   ",
            failure["case"],
            failure["scalars"],
            failure["distribution"],
            failure["status"],
            failure["reason"][:300],
        )


def is_board(case: Case) -> bool:
    """Tell whether a case is large enough to be timed."""
    work = plugins.load("ops", case.op).work(case)
    return case.dtype is DType.FP16 and (work.bytes_moved >= BOARD_BYTES or work.flops >= BOARD_FLOPS)


def board(session: Session, op_name: str, rivals: Sequence[Rival], limits: Ceilings) -> None:
    """Time every board case of an op: all seeds and all baselines in one launcher, there and back."""
    op, seeds = plugins.load("ops", op_name), seeds_of(op_name)
    sources = {name: source_of(candidate) for name, candidate in seeds.items()}
    for case in filter(is_board, op.public_cases()):
        key = board_key(case)
        if session.has(key, sources) or time.monotonic() > session.deadline:
            continue
        benches = [bench_of(session, candidate, [case]) for candidate in seeds.values()]
        try:
            with DeviceHeats(rivals, boxes=1) as heats:
                size = heats.size(benches[0], case)
                replays = heats.replays(case, benches, size, rounds=ROUNDS)
        except (Lost, TimingFailed) as error:
            print(f"{key}: {error}")
            continue
        names = [*seeds, *(rival.name for rival in rivals)]
        arms = {
            name: {"median_us": round(median(times), 3), "mad_us": round(mad(times), 3)}
            for name, times in zip(names, replays, strict=True)
        }
        floor = floor_us(op.work(case), limits)
        row = {"key": key, "op": op_name, "case": case.label, "scalars": case.scalars, "sources": sources}
        session.save(row | {"floor_us": round(floor, 3), "arms": arms})
        cells = "  ".join(f"{name} {cell['median_us']:.1f}" for name, cell in arms.items())
        print(f"{key}: floor {floor:.1f}  {cells}")


def rivals_of(op_name: str, modes: Sequence[str], files: dict[str, str]) -> list[Rival]:
    """Return the baselines of an op and the rivals' files given from outside."""
    eager = seed(op_name, "eager", Origin.BASELINE)
    assert eager is not None
    found = [Rival("eager", "eager", eager.source)]
    found += [Rival(f"compile-{mode}", "compiled", eager.source, mode) for mode in modes]
    return found + [Rival(name, "eager", text) for name, text in files.items()]


def board_key(case: Case) -> str:
    """Return the row's name: op, size and the options that matter."""
    options = {
        name: value for name, value in case.scalars.items() if name in ("causal", "is_max", "interleaved")
    }
    return f"board/{case.label}" + "".join(f" {name}={value}" for name, value in options.items())


def rows_of(path: Path) -> dict[str, dict[str, object]]:
    """Return the rows of a result file by key; none if there is no file."""
    return {row["key"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}


def merge(files: Sequence[Path], out: Path) -> None:
    """Put the rows of several runs into one file; a later row of the same key wins."""
    found = [json.loads(path.read_text()) for path in (out, *files) if path.exists()]
    rows = {row["key"]: row for part in found for row in part["rows"]}
    commands = sorted({command for part in found for command in part.get("commands", [part.get("command")])})
    head = {key: found[-1][key] for key in ("device", "versions", "date")}
    ordered = [rows[key] for key in sorted(rows)]
    out.write_text(json.dumps(head | {"commands": commands, "rows": ordered}, indent=1) + "\n")


def main() -> None:
    """Measure what was asked for until the budget is spent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("calibrate", "correctness", "board", "merge"))
    parser.add_argument("files", nargs="*", type=Path, help="result files to merge into the output file")
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--seed", action="append", default=[])
    parser.add_argument("--modes", default="default")
    parser.add_argument("--arm", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--budget-s", type=float, default=460)
    parser.add_argument("--home", type=Path, default=Path("/tmp/kernelwright-gpu"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    if options.part == "merge":
        merge(options.files, options.out)
        return
    if options.again and options.out == RESULTS:
        parser.error("--again writes rows of its own: name a file with --out, and merge it afterwards")
    device = devices()[0]
    known, rows = {} if options.again else rows_of(RESULTS), rows_of(options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    settings = JudgeSettings(
        threads=8,
        max_pairs=60,
        alpha=0.001,
        hidden_shapes=0,
        cache_folder=str(options.home / "cache"),
        blob_folder=str(options.home / "blobs"),
    )
    judge = Judge(settings, lambda _: None)
    session = Session(
        judge, device, options.home, known, rows, options.out, time.monotonic() + options.budget_s
    )
    try:
        ops = options.op or [name for name in plugins.names("ops") if seeds_of(name)]
        if options.part == "correctness":
            hard = [Distribution.OFFSET, Distribution.HEAVY_TAILED, Distribution.SPARSE, Distribution.INTEGER]
            for op_name in ops:
                for name, candidate in seeds_of(op_name).items():
                    if time.monotonic() < session.deadline and name in (options.seed or SEEDS):
                        correctness(session, op_name, name, candidate, hard)
        else:
            calibration = ceilings(device, options.home)
            session.save({"key": "calibration", "ceilings": calibration.ceilings.model_dump(mode="json")})
            print(calibration.ceilings)
            files = {
                name: Path(path).read_text() for name, _, path in (arm.partition("=") for arm in options.arm)
            }
            for op_name in ops if options.part == "board" else []:
                modes = [mode for mode in options.modes.split(",") if mode]
                board(session, op_name, rivals_of(op_name, modes, files), calibration.ceilings)
    finally:
        judge.close()


if __name__ == "__main__":
    random.seed()
    main()
