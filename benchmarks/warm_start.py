"""How many evaluations lessons save: the same op families at other sizes, cold and with what an earlier run has learnt.

    python -m benchmarks.warm_start --home DIR    # 5 seeds, live, CPU, no key; about half an hour on 2 quiet cores
    python -m benchmarks.warm_start --seeds 1 --op rope --evaluations 4

1. A first run searches the sizes of `FIRST`, confirms its winners and puts what it learnt on a shelf. It is the same
   for all seeds, and may take longer than the others (`--first`): what it costs was spent before.
2. Per seed, a cold run (`lessons=False`) searches the sizes of `SECOND`: every size differs from the first by at least
   2x in one axis. A problem's speed-up is that of its best over the eager baseline, certified by the judge.
3. Per seed, a warm run of the same seed searches the same sizes with the shelf, until it has reached them all.
Both are counted the same way: evaluations (every verdict, baselines and seeds included) up to the decision after which
every problem has its kernel. The cold run has it when its last best took the title. The warm run has it when its best
is the very same kernel, or when the judge, racing the two in the same heats, finds it at most 2 % slower: a speed over
eager that was measured in another hour differs by more than that (by 12 % on a busy machine, the same kernel). The
claim is that the warm run needs at most half. Rows that are there are not measured again unless --again.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import exp
from pathlib import Path
from statistics import median

from kernelwright.core.candidate import Candidate
from kernelwright.core.config import RunConfig
from kernelwright.core.events import Body, Evaluated, ProblemFound, RunEnded, RunStarted
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.normal import key_of
from kernelwright.core.problem import Problem
from kernelwright.core.search import speeds
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import JUDGE_VERSION, Comparison
from kernelwright.engine.app import versions
from kernelwright.engine.crew import crew_of
from kernelwright.engine.judging import problem_at
from kernelwright.engine.knowing import knowledge_given, shelve
from kernelwright.engine.loop import step
from kernelwright.engine.run import Run
from kernelwright.engine.scheduler import next_problem
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import JudgeClient
from kernelwright.engine.titles import confirm
from kernelwright.hardware.calibrate import ceilings
from kernelwright.hardware.detect import cpu_device
from kernelwright.store.journal import Journal
from kernelwright.store.locate import new_run_id, runs_folder

RESULTS = Path(__file__).parent / "results" / "warm_start.json"
FIRST = {
    "rope": "1x8x128x128 fp32",
    "attention": "1x4x2x512x512x64 fp32",
    "rmsnorm": "256x512 fp32",
    "cross_entropy": "256x512 fp32",
}
SECOND = {
    "rope": "1x4x320x128 fp32",
    "attention": "1x4x2x256x256x64 fp32",
    "rmsnorm": "96x1280 fp32",
    "cross_entropy": "640x512 fp32",
}
CLOSE = 0.98
USUAL = ("rope", "attention")
"""Op families whose sizes leave a search something to find in a few evaluations."""


@dataclass
class Searched:
    """A run of the engine and its judge without the finish: no torch.compile, nothing to be put into a model."""

    tree: Tree
    seconds: float
    evaluations: int = 0
    titles: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By problem: evaluations when its present best took the title, and the best's hash."""
    curve: list[tuple[int, str, float]] = field(default_factory=list)
    """Evaluations, problem and speed over the baseline at every new best."""
    reached: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By problem: evaluations when it was as fast as was wanted, and how that is known."""


@dataclass(frozen=True)
class Wish:
    """What a run is to do."""

    config: RunConfig
    problems: Sequence[Problem]
    home: Path
    """Where the shelf is, and the run."""
    cache: Path
    """Where the device's calibration and built kernels are."""
    most: int
    """Evaluations at most."""
    confirms: bool = False
    wanted: Mapping[str, Candidate] = field(default_factory=dict)
    """Kernels by problem; when it has as fast a one for each, it ends."""


def told(text: str) -> None:
    """Show progress."""
    print(text, flush=True)


def searched(wish: Wish) -> Searched:
    """Carry out a run in a journal of its own and return how it went."""
    config, device = wish.config, wish.problems[0].device
    run_id = new_run_id(datetime.now(UTC), os.urandom(3))
    folder = runs_folder(wish.home) / run_id
    folder.mkdir(parents=True)
    limits = ceilings(device, wish.cache, show=told).ceilings
    found = Searched(Tree(), 0.0)
    began = time.monotonic()
    with Journal.create(folder, run_id) as journal:

        def record(bodies: Sequence[Body]) -> None:
            journal.append(bodies)
            for body in bodies:
                found.tree.apply(body)
                found.evaluations += isinstance(body, Evaluated)
            _note(found)

        seeds = Seeds(("cpp",), config.threads)
        run = Run(config, device, config.threads, folder, record, found.tree, told, seeds)
        run.crew, run.ceilings = crew_of(config), limits
        begun = RunStarted(config=config.model_dump(mode="json"), versions=versions(), device=device)
        record([begun, *(ProblemFound(problem=one) for one in wish.problems)])
        record([knowledge_given(run, wish.home)])
        settings = JudgeSettings(
            threads=config.threads,
            max_pairs=config.max_pairs,
            alpha=config.alpha,
            hidden_shapes=config.hidden_shapes,
            cache_folder=str(wish.cache / "cache" / "builds"),
            blob_folder=str(folder / "blobs"),
            ceilings=limits,
        )
        judge, tried = JudgeClient(settings, told), set[tuple[str, str]]()
        try:
            while (key := next_problem(run.tree)) is not None:
                if found.evaluations >= wish.most:
                    break
                if wish.wanted and found.reached.keys() == wish.wanted.keys():
                    break
                step(run, judge, run.tree.problems[key])
                _check(found, wish, judge, tried)
            for problem in wish.problems if wish.confirms else ():
                confirm(run, judge, problem)
        finally:
            judge.close()
        record([RunEnded(reason="the benchmark has seen enough")])
        shelve(run, wish.home)
    found.seconds = time.monotonic() - began
    return found


def _note(found: Searched) -> None:
    """Keep when every problem's best took its title."""
    for key, best in found.tree.best.items():
        if found.titles.get(key, (0, ""))[1] != best:
            found.titles[key] = (found.evaluations, best)
            label = found.tree.problems[key].cases[0].label
            found.curve.append((found.evaluations, label, _speed(found.tree, key) or 1.0))


def _check(found: Searched, wish: Wish, judge: JudgeClient, tried: set[tuple[str, str]]) -> None:
    """Hold every new best against the kernel that is wanted, once."""
    for key, wanted in wish.wanted.items():
        best = found.tree.best.get(key)
        if best is None or key in found.reached or (key, best) in tried:
            continue
        tried.add((key, best))
        kernel = found.tree.nodes[key, best].candidate
        done, how = is_reached(judge, found.tree.problems[key], wanted, kernel)
        if done:
            found.reached[key] = (found.titles[key][0], how)


def _speed(tree: Tree, key: str) -> float | None:
    """Return the certified speed of a problem's best over its baseline."""
    known = speeds(tree, key).certified(tree.best[key])
    return None if known is None else exp(known)


def is_reached(judge: JudgeClient, problem: Problem, wanted: Candidate, best: Candidate) -> tuple[bool, str]:
    """Tell whether a kernel is as fast as the one wanted, and how that is known."""
    if key_of(wanted) == key_of(best):
        return True, "the same kernel"
    found = judge.compare(problem, wanted, best)
    if not isinstance(found, Comparison):
        return False, found.reason
    return (
        found.ratio >= CLOSE,
        f"x{found.ratio:.3f} [{found.ci_low:.3f}, {found.ci_high:.3f}] over {found.pairs} pairs",
    )


def last_title(run: Searched) -> int:
    """Return the evaluations after which every problem had the kernel that was its best in the end."""
    return max(count for count, _ in run.titles.values())


def row_of(run: Searched, needed: int | None) -> dict[str, object]:
    """Return what a run came to."""
    looks = sum(len(node.screenings) for node in run.tree.nodes.values())
    return {
        "evaluations_needed": needed,
        "evaluations": run.evaluations,
        "looks": looks,
        "seconds": round(run.seconds, 1),
        "reached": {run.tree.problems[key].cases[0].label: how for key, (_, how) in run.reached.items()},
        "curve": [[count, label, round(speed, 4)] for count, label, speed in run.curve],
        "lessons_given": len(run.tree.given.lessons),
        "starts_given": [one.candidate.note for one in run.tree.given.starts],
        "lessons_learnt": [f"{one.claim} {one.effect}" for one in run.tree.lessons],
    }


def summary(rows: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """Return the claim over all seeds."""
    ratios = {key: row["share"] for key, row in rows.items() if isinstance(row.get("share"), float)}
    shares = [share for share in ratios.values() if isinstance(share, float)]
    return {
        "seeds": len(rows),
        "shares": ratios,
        "median_share": median(shares) if shares else None,
        "worst_share": max(shares) if len(shares) == len(rows) and shares else None,
        "holds": len(shares) == len(rows) and bool(shares) and max(shares) <= 0.5,
    }


def main() -> None:
    """Run what is missing, and keep one row per seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--op", action="append", choices=tuple(FIRST))
    parser.add_argument("--evaluations", type=int, default=6, help="of a search, per problem")
    parser.add_argument("--first", type=int, default=24, help="the same of the run that teaches")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--home", type=Path, default=Path("/tmp/kernelwright-warm-start"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    ops, device = options.op or list(USUAL), cpu_device()
    first, second = ([problem_at(op, (sizes[op],), device) for op in ops] for sizes in (FIRST, SECOND))
    base = RunConfig(
        threads=options.threads, max_pairs=options.pairs, hidden_shapes=4, budget_s=1e6, op=ops[0]
    )
    most = options.evaluations * len(ops)
    kept = json.loads(options.out.read_text()) if options.out.exists() and not options.again else {"rows": {}}

    def save() -> None:
        kept.update(
            {
                "command": " ".join(["python -m benchmarks.warm_start", *sys.argv[1:]]),
                "device": device.title,
                "judge": JUDGE_VERSION,
                "versions": versions(),
                "first": {op: FIRST[op] for op in ops},
                "second": {op: SECOND[op] for op in ops},
                "summary": summary(kept["rows"]),
            }
        )
        options.out.write_text(json.dumps(kept, indent=1) + "\n")

    taught = options.home / "taught"
    if "lessons" not in kept:
        config = base.model_copy(update={"seed": 1000})
        run = searched(Wish(config, first, taught, options.home, options.first * len(ops), confirms=True))
        kept["lessons"] = row_of(run, None)
        save()
    for seed in range(options.seeds):
        if str(seed) in kept["rows"]:
            continue
        config = base.model_copy(update={"seed": seed})
        alone = config.model_copy(update={"lessons": False})
        cold = searched(Wish(alone, second, options.home / "cold", options.home, most))
        wanted = {key: cold.tree.nodes[key, best].candidate for key, best in cold.tree.best.items()}
        home = _copied(taught, options.home / f"warm-{seed}")
        warm = searched(Wish(config, second, home, options.home, most, wanted=wanted))
        is_done = warm.reached.keys() == wanted.keys()
        needs = last_title(cold), max(count for count, _ in warm.reached.values()) if is_done else None
        kept["rows"][str(seed)] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "load": round(os.getloadavg()[0], 1),
            "cold": row_of(cold, needs[0]),
            "warm": row_of(warm, needs[1]),
            "share": None if needs[1] is None else round(needs[1] / needs[0], 4),
        }
        save()
        print(json.dumps(kept["rows"][str(seed)], indent=1), flush=True)


def _copied(taught: Path, home: Path) -> Path:
    """Return a home with the shelf alone: what one seed learns no other one is given."""
    home.mkdir(parents=True, exist_ok=True)
    for path in taught.glob("lessons.db*"):
        (home / path.name).write_bytes(path.read_bytes())
    return home


if __name__ == "__main__":
    main()
