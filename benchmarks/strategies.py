"""The searches side by side on recorded landscapes: best kernel so far after so many decisions, over many seeds.

    python -m benchmarks.strategies --seeds 60                 # from the repository's root; no device is needed

Every search starts from the same seed kernels and asks the same author, one that knows nothing: it takes one step of
the landscape, drawn from its own seed. `random` lands anywhere, with no regard to what was found. A number is the speed
of the best kernel accepted so far as a share of the landscape's best; median and the middle 90 % of the seeds.
`tuner` is another author under `greedy`: it looks at values before it has any proven, and gives every case its own, so
it can pass the best single point. Its row counts proofs, and the seconds of every row are those the landscape recorded,
looks included.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median

from kernelwright.agents.tuner import Tuner
from kernelwright.core import plugins
from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.landscape import Landscape
from kernelwright.core.ports import Strategy
from kernelwright.core.search import prospects
from kernelwright.core.stats import quantile
from kernelwright.core.tree import Tree
from kernelwright.testing.simulation import Simulation, Wanderer

FOLDER = Path(__file__).parent / "landscapes"
RESULTS = Path(__file__).parent / "results" / "strategies.json"
BUDGETS = (2, 4, 8, 12, 16, 24)
"""Decisions after the baseline and the seeds."""
NEARLY = 0.98
"""Share of the best speed that counts as found."""


class RandomSearch:
    """The yardstick: a fresh start anywhere, every time."""

    SUMMARY = "anywhere, every time"

    def choose(self, tree: Tree, budget: Allowance, rng: random.Random) -> list[Expansion]:
        """Return clean starts from a kernel drawn at random."""
        parents = list(prospects(tree, budget))
        return [
            Expansion(problem_hash=budget.problem_hash, parents=(rng.choice(parents),), memory=Memory.CLEAN)
            for _ in range(budget.expansions)
        ]


def strategy_of(name: str) -> Strategy:
    """Return a search by name."""
    return RandomSearch() if name == "random" else plugins.load("strategies", name)


def spread(values: Sequence[float]) -> list[float]:
    """Return the 5 % quantile, the median and the 95 % quantile."""
    ordered = sorted(values)
    return [round(quantile(ordered, 0.05), 4), round(median(ordered), 4), round(quantile(ordered, 0.95), 4)]


def searched(landscape: Landscape, name: str, seed: int, workers: int) -> Simulation:
    """Return one search of a landscape up to the largest budget."""
    author, strategy = Wanderer(landscape, seed), strategy_of("greedy" if name == "tuner" else name)
    start = 1 + len(landscape.roots)
    if name == "tuner":
        return Simulation(landscape, strategy, Tuner(), seed, workers).run(start + 6, patience=2)
    return Simulation(landscape, strategy, author, seed, workers).run(start + max(BUDGETS))


def row(landscape: Landscape, name: str, seeds: int, workers: int) -> dict[str, object]:
    """Return what many seeds of one search give on one landscape."""
    started, start = time.perf_counter(), 1 + len(landscape.roots)
    found = [searched(landscape, name, seed, workers) for seed in range(seeds)]
    shares = {
        budget: [one.best_at(start + budget) / landscape.best_speed for one in found] for budget in BUDGETS
    }
    reached = [
        next((step for step in one.steps if step.kernel_speed >= NEARLY * landscape.best_speed), None)
        for one in found
    ]
    seconds = [step.seconds for step in reached if step]
    decisions = [step.decisions - start for step in reached if step]
    return {
        "landscape": f"{landscape.problem.device.kind.value}/{landscape.problem.op}",
        "strategy": name,
        "workers": workers,
        "seeds": seeds,
        "share_of_best": {str(budget): spread(values) for budget, values in shares.items()},
        "found": round(len(seconds) / seeds, 3),
        "decisions_to_find": spread(decisions) if decisions else None,
        "seconds_to_find": spread(seconds) if seconds else None,
        "decisions": round(fmean(len(one.steps) - start for one in found), 2),
        "took_s": round(time.perf_counter() - started, 2),
    }


def summary(rows: Sequence[dict[str, object]]) -> dict[str, object]:
    """Return, per search, the mean over landscapes of its median share, and of how often it finds the best."""
    found: dict[str, object] = {}
    for name in dict.fromkeys(f"{row['strategy']} x{row['workers']}" for row in rows):
        mine = [row for row in rows if f"{row['strategy']} x{row['workers']}" == name]
        medians = {
            budget: round(fmean(row["share_of_best"][str(budget)][1] for row in mine), 4)
            for budget in BUDGETS
        }
        lows = {
            budget: round(fmean(row["share_of_best"][str(budget)][0] for row in mine), 4)
            for budget in BUDGETS
        }
        seconds = [row["seconds_to_find"][1] for row in mine if row["seconds_to_find"]]
        found[name] = {
            "median_share": medians,
            "low_share": lows,
            "found": round(fmean(row["found"] for row in mine), 3),
            "seconds_to_find": round(fmean(seconds), 1) if seconds else None,
            "landscapes": len(mine),
        }
    return found


def main() -> None:
    """Run every search on every landscape and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--tuner-seeds", type=int, default=12)
    parser.add_argument("--workers", type=int, action="append", default=[])
    parser.add_argument("--landscape", type=Path, action="append", default=[])
    parser.add_argument("--strategy", action="append", default=[])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    paths = options.landscape or sorted(path for path in FOLDER.glob("*/*.json") if "." not in path.stem)
    names = options.strategy or ["random", *plugins.names("strategies"), "tuner"]
    rows, about = [], {}
    for path in paths:
        landscape = Landscape.model_validate_json(path.read_text())
        kernels = [place for place in range(len(landscape.spots)) if place != landscape.baseline]
        about[f"{path.parent.name}/{path.stem}"] = {
            "spots": len(landscape.spots),
            "edges": len(landscape.edges),
            "cases": [case.label for case in landscape.problem.cases],
            "best_speed": round(landscape.best_speed, 4),
            "start_speed": round(max(landscape.speed(place) or 0 for place in landscape.roots), 4),
            "failed": sum(landscape.speed(place) is None for place in kernels),
            "device": landscape.recorded.get("device", ""),
            "date": landscape.recorded.get("date", ""),
        }
        for name in names:
            for workers in (1,) if name == "tuner" else options.workers or (1, 4):
                seeds = options.tuner_seeds if name == "tuner" else options.seeds
                rows.append(row(landscape, name, seeds, workers))
                print(
                    rows[-1]["landscape"],
                    name,
                    workers,
                    rows[-1]["share_of_best"],
                    rows[-1]["found"],
                    flush=True,
                )
    answer = {
        "command": " ".join(["python -m benchmarks.strategies", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "landscapes": about,
        "summary": summary(rows),
        "rows": rows,
    }
    options.out.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
