"""A model with the kernels of a run, launched in every way a user can have it, beside torch's own.

    PYTHONPATH=build/offline python3 -m benchmarks.launching --kernels FOLDER --out rows.json

Arms: as it is, torch.compile, torch.compile with mode="reduce-overhead" (CUDA graphs of its own), and the kernels of a
folder put in by `kernelwright.apply` with the rest compiled, launched one by one and as one CUDA graph. Every call gets
other inputs and is waited for; all arms take turns, there and back, in random order. Answers are compared with float64.
"""

import argparse
import copy
import json
import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import kernelwright
from kernelwright.core.model_spec import ModelOptions
from kernelwright.engine.app import versions
from kernelwright.hardware.detect import devices
from kernelwright.model.load import load
from kernelwright.store.disk import replace_file

RESULTS = Path(__file__).parent / "results" / "launching.json"
MODEL = "examples/models/llama.py:build_loss"
WARM_UP, ROUNDS, VALUES = 5, 200, 4
BASELINE = "torch.compile, reduce-overhead"


def arms(module: torch.nn.Module, kernels: Path) -> dict[str, Callable[..., Any]]:
    """Return every way of calling the model; each has a module of its own, the weights are shared."""
    found: dict[str, Callable[..., Any]] = {"eager": module}
    found["torch.compile"] = torch.compile(copy.copy(module), dynamic=False)
    found[BASELINE] = torch.compile(copy.copy(module), dynamic=False, mode="reduce-overhead")
    for rest in ("eager", "inductor"):
        for launch in ("plain", "graph"):
            name = f"apply, rest={rest}, launch={launch}"
            found[name] = kernelwright.apply(copy.copy(module), kernels, rest, launch)
    return found


def turns(calls: dict[str, Callable[..., Any]], inputs: list[tuple[Any, ...]]) -> dict[str, list[float]]:
    """Return the microseconds of each arm, round by round: the mean of its two calls."""
    rng, names = random.Random(0), list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(WARM_UP + ROUNDS):
        spent, order = dict.fromkeys(names, 0.0), rng.sample(names, len(names))
        for name in (*order, *reversed(order)):
            torch.cuda.synchronize()
            torch.compiler.cudagraph_mark_step_begin()
            begun = time.perf_counter()
            calls[name](*inputs[number % VALUES])
            torch.cuda.synchronize()
            spent[name] += (time.perf_counter() - begun) / 2
        if number >= WARM_UP:
            for name in names:
                times[name].append(1e6 * spent[name])
    return times


def drift(
    module: torch.nn.Module, calls: dict[str, Callable[..., Any]], inputs: list[tuple[Any, ...]]
) -> dict[str, float]:
    """Return how far each arm is from float64, at most; every arm is called often enough to be replayed."""
    exact = copy.deepcopy(module).double()
    found = dict.fromkeys(calls, 0.0)
    for _ in range(2):
        for given in inputs:
            right = exact(*given)
            for name, call in calls.items():
                torch.compiler.cudagraph_mark_step_begin()
                error = float((call(*given).double() - right).abs().max() / right.abs().max())
                found[name] = max(found[name], error)
    return found


def main() -> None:
    """Time all arms and write one row each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=Path, required=True)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    loaded = load(options.model, ModelOptions(device="cuda"))
    module = loaded.module
    with torch.inference_mode():
        inputs = [loaded.sets[0].make(number).args for number in range(VALUES)]
        calls = arms(module, options.kernels)
        errors, times = drift(module, calls, inputs), turns(calls, inputs)
    base, rows = times[BASELINE], []
    for name, call in calls.items():
        ratios = sorted(old / new for old, new in zip(base, times[name], strict=True))
        low, high = (ratios[round(share * (ROUNDS - 1))] for share in (0.25, 0.75))
        row = {
            "arm": name,
            "us": round(statistics.median(times[name]), 1),
            "faster_than_reduce_overhead": round(statistics.median(ratios), 4),
            "quartiles": [round(low, 4), round(high, 4)],
            "error": errors[name],
        }
        if name.startswith("apply"):
            row["told"] = kernelwright.spliced(call).lines()
        rows.append(row)
        print(row, flush=True)
    content = {
        "command": f"python -m benchmarks.launching --model {options.model}",
        "device": next(one for one in devices() if one.kind.value == "cuda").title,
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": ROUNDS,
        "rows": rows,
    }
    replace_file(options.out, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
