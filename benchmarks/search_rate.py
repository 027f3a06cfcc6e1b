"""How many decisions a search makes a minute, and how far it gets from the seeds without a key.

    python -m benchmarks.search_rate --device cuda --op softmax --budget 290s --home DIR --out rows.json
    python -m benchmarks.search_rate --device cpu --op softmax --budget 150s

One search per op, through the real engine and judge. Rejects, screenings and certificates are counted apart, with the
time each took; the curve is the best so far over the eager baseline, at every keep. A row that is there is not measured
again unless --again.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelwright.core.candidate import Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.events import (
    Compared,
    Decided,
    Evaluated,
    Event,
    ExpansionAnswered,
    ProblemEnded,
    Screened,
)
from kernelwright.core.search import speeds
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import JUDGE_VERSION, Profile, Status
from kernelwright.engine.app import start, versions
from kernelwright.engine.budget import floor_share
from kernelwright.store.journal import Journal

RESULTS = Path(__file__).parent / "results" / "search_rate.json"
SHAPES = {
    "cuda": {
        "softmax": "4096x50257 bf16",
        "cross_entropy": "8192x50257 bf16",
        "rope": "2x32x2048x128 bf16",
    },
    "cpu": {"softmax": "256x512 fp32", "rmsnorm": "256x256 fp32", "rope": "1x4x256x64 fp32"},
}


KINDS = ("baselines", "screenings", "rejects", "certificates", "comparisons", "confirmations", "answers")
"""Sorts of steps that are counted apart."""


def counts_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Return the steps of a row by sort; what did not happen is 0, where an earlier row leaves it out."""
    return {kind: row["counts"].get(kind, 0) for kind in KINDS}


def kind_of(event: Event, tree: Tree) -> str | None:
    """Return what sort of step ended with an event; None for what took no time of its own."""
    match event.body:
        case Screened():
            return "screenings"
        case Evaluated(evaluation=verdict):
            node = tree.nodes[verdict.problem_hash, verdict.candidate_hash]
            if node.candidate.origin is Origin.BASELINE:
                return "baselines"
            if verdict.profile is Profile.SHIP:
                return "confirmations"
            return "certificates" if verdict.status is Status.ACCEPTED else "rejects"
        case Compared():
            return "comparisons"
        case ExpansionAnswered():
            return "answers"
        case _:
            return None


def measured(events: Sequence[Event]) -> dict[str, object]:
    """Return counts, times and the curve of one search."""
    tree, counts, seconds = Tree(), Counter[str](), Counter[str]()
    curve: list[tuple[float, float]] = []
    first, before, stop = events[0].at, events[0].at, events[-1].at
    begun: datetime | None = None
    for event in events:
        tree.apply(event.body)
        if (kind := kind_of(event, tree)) is not None:
            counts[kind] += 1
            seconds[kind] += (event.at - before).total_seconds()
        before = event.at
        match event.body:
            case Decided(decision=decision) if decision.kept:
                speed = speeds(tree, decision.problem_hash).certified(decision.candidate_hash)
                if speed is not None:
                    curve.append((round((event.at - first).total_seconds(), 1), round(math.exp(speed), 4)))
            case ProblemEnded():
                stop = event.at
            case _:
                pass
        if kind == "baselines" and set(counts) == {"baselines"}:
            begun = event.at
    (problem,) = tree.problems.values()
    best = tree.nodes[problem.hash, tree.best[problem.hash]]
    searching = (stop - (begun or first)).total_seconds()
    decided = counts["screenings"] + counts["rejects"] + counts["certificates"]
    reached = floor_share(tree, problem)
    return {
        "case": problem.cases[0].label,
        "counts": counts_of({"counts": counts}),
        "seconds_each": {kind: round(seconds[kind] / counts[kind], 2) for kind in counts},
        "searching_s": round(searching, 1),
        "took_s": round((events[-1].at - first).total_seconds(), 1),
        "decisions_a_minute": round(60 * decided / max(1e-9, searching), 1),
        "with_baselines_a_minute": round(
            60 * (decided + counts["baselines"]) / max(1e-9, (stop - first).total_seconds()), 1
        ),
        "curve": curve,
        "floor_share": None if reached is None else round(reached, 4),
        "kept_by": f"{best.candidate.backend} by {best.candidate.author.name}: {best.candidate.note}"[:300],
        "uncertified_keeps": sum(
            node.decision is not None
            and node.decision.kept
            and not any(one.status is Status.ACCEPTED for one in node.evaluations)
            for node in tree.nodes.values()
        ),
        "ended": [quest.ended.reason for quest in tree.quests.values() if quest.ended],
    }


def main() -> None:
    """Search, and keep one row per op and device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--op", action="append")
    parser.add_argument("--budget", default="290s")
    parser.add_argument("--strategy", default="mcts")
    parser.add_argument("--author", default="auto")
    parser.add_argument("--home", type=Path, default=Path("/tmp/kernelwright-search"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    kept = json.loads(path.read_text()) if (path := options.out).exists() else {"rows": {}}
    for op in options.op or list(SHAPES[options.device]):
        key = f"{options.device}/{op}/{options.strategy}/{options.author}"
        if key in kept["rows"] and not options.again:
            print(f"{key}, known: {json.dumps(counts_of(kept['rows'][key]))}", flush=True)
            continue
        config = RunConfig.model_validate(
            {
                "op": op,
                "shape": (SHAPES[options.device][op],),
                "device": options.device,
                "budget_s": options.budget,
                "strategy": options.strategy,
                "author": options.author,
                "lessons": False,  # rows do not depend on the order they are made in
            }
        )
        folder = start(config, options.home, lambda text: print(text, flush=True))
        journal = Journal.open(folder)
        events = list(journal.events())
        started = journal.tree().started
        assert started is not None
        kept["rows"][key] = {
            "device": started.device.title,
            "versions": versions(),
            "judge": JUDGE_VERSION,
            "command": " ".join(["python -m benchmarks.search_rate", *sys.argv[1:]]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **measured(events),
        }
        path.write_text(json.dumps(kept, indent=1) + "\n")
        row = kept["rows"][key]
        print(json.dumps({**row, "counts": counts_of(row)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
