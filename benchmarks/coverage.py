"""How much of a model's time we have names for: known ops, fusions found in its graph, and what is left alone.

    python -m benchmarks.coverage

From the root of the repository: the zoo is the tests'. Every model of tests/cpu/model_zoo.py and of examples/models is
captured on a CPU with one thread, nothing compiled. Shares are of the captured graph's time; the rest is what its marks
do not account for, of either sign.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from tests.cpu import model_zoo as zoo

from kernelwright.core.account import Kind
from kernelwright.core.messages.model import ModelProfiled, ProfileModel
from kernelwright.engine.app import versions
from kernelwright.hardware.detect import usable_cores
from kernelwright.model.load import Loaded, load, loaded_from
from kernelwright.model.profile import profile

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "coverage.json"
ZOO = (
    *(zoo.llama, zoo.qwen2, zoo.phi3, zoo.mixtral, zoo.gpt2, zoo.gptj, zoo.bert, zoo.t5, zoo.vit),
    zoo.whisper_encoder,
)
EXAMPLES = ("llama", "gpt2", "bert", "recommender")


def models() -> dict[str, Callable[[], Loaded]]:
    """Return every model by name, with what builds it."""

    def of_zoo(make: Callable[[], zoo.Built]) -> Callable[[], Loaded]:
        return lambda: loaded_from(*zoo.built(make))

    found = {f"transformers {make.__name__}, tiny": of_zoo(make) for make in ZOO}
    for name in EXAMPLES:
        spec = f"{ROOT}/examples/models/{name}.py:build"
        found[f"examples/models/{name}.py"] = lambda spec=spec: load(spec)  # type: ignore[misc]
    return found


def row_of(name: str, found: ModelProfiled) -> dict[str, object]:
    """Return the shares of one model."""
    account, shares = found.captured, dict.fromkeys(("op", "fusion", "alone"), 0.0)
    column = {Kind.OP: "op", Kind.FUSION: "fusion"}
    for one in found.regions:
        shares[column.get(one.kind, "alone")] += one.captured_us / account.total_us
    return {
        "model": name,
        **shares,
        "gaps": account.gaps_us / account.total_us,
        "rest": account.rest_us / account.total_us,
        "total_us": account.total_us,
        "low_us": sum(one.weight * one.captured.low_us for one in found.sets),
        "high_us": sum(one.weight * one.captured.high_us for one in found.sets),
        "calls": sum(one.captured.calls for one in found.sets),
        "operations": found.operations,
        "graphs": found.graphs,
        "load_average": round(os.getloadavg()[0], 2),
    }


def save(rows: dict[str, dict[str, object]]) -> None:
    """Write every row, rounded, with what it rests on."""
    head = {
        "command": "python -m benchmarks.coverage",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": f"{platform.machine()}, one thread of {usable_cores()} cores",
    }
    text = json.dumps(head | {"rows": [rows[name] for name in models() if name in rows]}, indent=1)
    RESULTS.write_text(
        json.dumps(json.loads(text, parse_float=lambda n: round(float(n), 4)), indent=1) + "\n"
    )


def main() -> None:
    """Measure the models named, or all, and keep each row at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", default=[], help="a part of its name; may be repeated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, object]] = {}
    if RESULTS.exists():
        rows = {row["model"]: row for row in json.loads(RESULTS.read_text())["rows"]}
    for name, build in models().items():
        if options.model and not any(word in name for word in options.model):
            continue
        loaded = build()
        request = ProfileModel(spec=loaded.spec, threads=1, with_compiled=False)
        rows[name] = row_of(name, profile(loaded, request, lambda _: None))
        save(rows)
        print(json.dumps(rows[name]), flush=True)


if __name__ == "__main__":
    main()
