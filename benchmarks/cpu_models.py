"""The shipped models on a CPU, end to end, with a budget of ten minutes each and no key.

    python -m benchmarks.cpu_models --model llama --budget 10m --home DIR
    python -m benchmarks.cpu_models                                   # all that have no row yet

LLaMA and GPT-2 with 4 layers of 256 at 1x512, BERT at 4x128, the recommender at a batch of 2048; fp32, every core.
A row says what was shipped and the speed-up over eager and over torch.compile with intervals; where nothing could be
proven, it says that, and what the whole model did with the winners in it. Rows that are there are not measured again
unless --again.
"""

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from kernelwright.core.candidate import Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.verdict import JUDGE_VERSION, Profile, Status
from kernelwright.engine.app import start, versions
from kernelwright.hardware.detect import usable_cores
from kernelwright.store.journal import Journal

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "cpu_models.json"
MODELS = {
    "llama": None,
    "gpt2": "sample_inputs_long",
    "bert": "sample_inputs_long",
    "recommender": "sample_inputs_long",
}
"""Models of examples/, and the function that makes the inputs if it is not the usual one."""


def row_of(journal: Journal) -> dict[str, object]:
    """Return what a run proved of its model, and how long it took after the model was ranked."""
    tree, events = journal.tree(), list(journal.events())
    assert tree.started is not None
    kernels = []
    for key, problem in tree.problems.items():
        held = tree.titles.get(key, [])
        best = tree.nodes[key, held[-1]] if held else None
        won = best is not None and best.candidate.origin is Origin.AUTHOR
        found = best.comparisons[-1] if best and won and best.comparisons else None
        kernels.append(
            {
                "case": problem.cases[0].label,
                "count": problem.count,
                "share": round(problem.share, 4),
                "winner": f"{best.candidate.backend} by {best.candidate.author.name}" if best else "none",
                "ratio": [round(value, 4) for value in (found.ratio, found.ci_low, found.ci_high)]
                if found
                else None,
                "is_certified": won
                and any(
                    one.profile is Profile.SHIP and one.status is Status.ACCEPTED for one in best.evaluations
                ),
                "judged": sum(owner == key for owner, _ in tree.nodes),
                "stopped": quest.ended.reason if (quest := tree.quests[key]).ended else "",
            }
        )
    verified = tree.verified.model_dump(mode="json") if tree.verified else None
    return {
        "device": tree.started.device.title,
        "took_s": round((events[-1].at - events[0].at).total_seconds()),
        "shipped": bool(tree.verified and tree.verified.shipped),
        "model": verified,
        "kernels": kernels,
        "ended": tree.ended.reason if tree.ended else "",
    }


def main() -> None:
    """Optimise, and keep one row per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--against", default="compiled", choices=("compiled", "eager"))
    parser.add_argument("--home", type=Path, default=Path("/tmp/kernelwright-cpu-models"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"rows": {}}
    for name in options.model or MODELS:
        key = f"{name}/{options.against}"
        if key in kept["rows"] and not options.again:
            continue
        config = RunConfig.model_validate(
            {
                "model": str(ROOT / "examples" / "models" / f"{name}.py:build"),
                "device": "cpu",
                "dtype": "fp32",
                "input_function": MODELS[name],
                "budget_s": options.budget,
                "against": options.against,
                "threads": usable_cores(),
                "lessons": False,  # rows do not depend on the order they are made in
            }
        )
        folder = start(config, options.home, lambda text: print(text, flush=True))
        kept["rows"][key] = {
            "versions": versions(),
            "judge": JUDGE_VERSION,
            "command": " ".join(["python -m benchmarks.cpu_models", *sys.argv[1:]]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "load": round(os.getloadavg()[0], 1),
            **row_of(Journal.open(folder)),
        }
        options.out.write_text(json.dumps(kept, indent=1) + "\n")
        print(json.dumps(kept["rows"][key], indent=1), flush=True)


if __name__ == "__main__":
    main()
