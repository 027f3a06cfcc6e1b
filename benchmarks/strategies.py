"""The searches side by side on recorded landscapes: best kernel so far after so many verdicts, over many seeds.

    python -m benchmarks.strategies --seeds 20                 # from the repository's root; no device is needed

It is the engine's own loop with a recorded judge. Every search starts from the same seed kernels and asks the same
author, one that knows nothing: it takes one step of the landscape, drawn from its own seed. `random` lands anywhere,
with no regard to what was found (`yardstick/`). Nothing is escalated, so that a row is one strategy's from its first
choice to its last; `x4` asks for four expansions at once. A number is the speed of the best kernel accepted so far as a
share of the landscape's best; median and the middle 90 % of the seeds.
`tuner` is another author under `greedy`: it looks at values before it has any proven, and gives every case its own, so
it can pass the best single point; it ends when it has nothing to propose. Its row counts proofs, and the seconds of
every row are those the landscape recorded, looks included.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median

from kernelwright.agents.tuner import Tuner
from kernelwright.core import plugins
from kernelwright.core.landscape import Landscape
from kernelwright.core.stats import quantile
from kernelwright.testing.recorded_run import RecordedRun, Wanderer, settings

FOLDER = Path(__file__).parent / "landscapes"
YARDSTICK = Path(__file__).parent / "yardstick"
RESULTS = Path(__file__).parent / "results" / "strategies.json"
BUDGETS = (2, 4, 8, 12, 16, 24)
"""Verdicts after the baseline and the seeds."""
MOST_ASKED = 4 * max(BUDGETS)
"""Expansions after which a search ends that finds nothing new any more."""
TUNED = 6
"""Verdicts after which the tuner's search ends."""
NEARLY = 0.98
"""Share of the best speed that counts as found."""
BEHIND = {"random": "anywhere", "tuner": "greedy"}
"""The strategy of a row that is called otherwise."""


def spread(values: Sequence[float]) -> list[float]:
    """Return the 5 % quantile, the median and the 95 % quantile."""
    ordered = sorted(values)
    return [round(quantile(ordered, 0.05), 4), round(median(ordered), 4), round(quantile(ordered, 0.95), 4)]


def searched(landscape: Landscape, name: str, seed: int, workers: int) -> RecordedRun:
    """Return one search of a landscape up to the largest budget."""
    start, common = 1 + len(landscape.roots), {"strategy": BEHIND.get(name, name), "seed": seed}
    if name == "tuner":
        config = settings(**common, max_evaluations=start + TUNED, patience=5, escalations=0)
        return RecordedRun(landscape, Tuner(), config).search()
    limits = {"max_evaluations": start + max(BUDGETS), "max_expansions": MOST_ASKED}
    return RecordedRun(
        landscape, Wanderer(landscape, seed), settings(**common, **limits, workers=workers)
    ).search()


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
    verdicts = [step.verdicts - start for step in reached if step]
    return {
        "landscape": f"{landscape.problem.device.kind.value}/{landscape.problem.op}",
        "strategy": name,
        "workers": workers,
        "seeds": seeds,
        "share_of_best": {str(budget): spread(values) for budget, values in shares.items()},
        "found": round(len(seconds) / seeds, 3),
        "verdicts_to_find": spread(verdicts) if verdicts else None,
        "seconds_to_find": spread(seconds) if seconds else None,
        "verdicts": round(fmean(len(one.steps) - start for one in found), 2),
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
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tuner-seeds", type=int, default=6)
    parser.add_argument("--workers", type=int, action="append", default=[])
    parser.add_argument("--landscape", type=Path, action="append", default=[])
    parser.add_argument("--strategy", action="append", default=[])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    paths = options.landscape or sorted(path for path in FOLDER.glob("*/*.json") if "." not in path.stem)
    names = options.strategy or ["random", *plugins.names("strategies"), "tuner"]
    plugins.use([str(YARDSTICK)])
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
