"""How much of a model's time we have names for, and kernels: known ops, fusions, what is replaced, what is left alone.

    python -m benchmarks.coverage

From the root of the repository: the zoo is the tests'. Every model of tests/cpu/model_zoo.py and of examples/models is
captured on a CPU with one thread, nothing compiled. Shares are of the captured graph's time; the rest is what its marks
do not account for, of either sign.

Replaced is the part of the known ops, and of the fusions, whose kernels really run in the model. The rules:
1. The op has a C++ seed, or one is written from the fusion's own graph. It is built for the region's own case by the
   judge's builder, in its sandbox, with the seed's first parameters. Nothing was searched for: that it is faster is not
   claimed here.
2. All of a model's seeds are spliced at once by `model/splice.compiled_with`, and the model is called on every set.
3. A region counts if its kernel was called at its sites and no guard or refusal of the seed ever sent a call back to
   the original. One fallback, and none of the region's time counts.
4. The model's answer must be the original's to 1e-4 of its norm, or nothing counts.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from tests.cpu import model_zoo as zoo

from kernelwright.core.account import Kind, Region
from kernelwright.core.candidate import Origin
from kernelwright.core.frozen import digest
from kernelwright.core.messages.model import ModelProfiled, ProfileModel, Winner
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Status
from kernelwright.engine.app import versions
from kernelwright.engine.seeds import seed, written_seeds
from kernelwright.hardware.detect import cpu_device, usable_cores
from kernelwright.judge.builds import Builds
from kernelwright.model.load import Loaded, load, loaded_from
from kernelwright.model.profile import profile
from kernelwright.model.splice import compiled_with
from kernelwright.model.tally import Tally

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "coverage.json"
ZOO = (
    *(zoo.llama, zoo.qwen2, zoo.phi3, zoo.mixtral, zoo.gpt2, zoo.gptj, zoo.bert, zoo.t5, zoo.vit),
    zoo.whisper_encoder,
)
BACKEND = "cpp"
CLOSE = 1e-4
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


class Seeds:
    """The C++ seeds, built for cases as the judge builds them."""

    def __init__(self, folder: Path) -> None:
        self.builds = Builds(folder / "cache", folder, usable_cores())

    def winner(self, region: Region) -> Winner | None:
        """Return the seed of a region as a kernel to be put into a model; None if there is none that builds."""
        case = region.case
        assert case is not None, "only problems are replaced"
        candidate = seed(case.op, BACKEND, Origin.AUTHOR)
        if region.captured is not None:
            problem = Problem(op=case.op, cases=(case,), device=cpu_device(), captured=region.captured)
            candidate = next(iter(written_seeds(problem, (BACKEND,))), None)
        if candidate is None:
            return None
        result, artefact = self.builds.get(candidate, candidate.values_for(case.hash))
        if result.status is not Status.ACCEPTED or artefact is None:
            return None
        return Winner(
            problem_hash=case.hash,
            candidate_hash=candidate.hash,
            backend=BACKEND,
            case=case,
            artefact=str(artefact),
            artefact_hash=digest(artefact.read_bytes()),
            region=region.captured.source if region.captured else "",
        )


def replaced(loaded: Loaded, found: ModelProfiled, seeds: Seeds) -> dict[str, object]:
    """Return what part of a model's time seeds really take over, by the rules above."""
    problems = {
        one.case.hash: one
        for one in found.regions
        if one.kind in (Kind.OP, Kind.FUSION) and one.case is not None
    }
    winners = [winner for one in problems.values() if (winner := seeds.winner(one)) is not None]
    tally, worst = Tally(), 0.0
    torch._dynamo.reset()
    with loaded.calling():
        compiled = compiled_with(loaded.module, winners, tally)
        for one in loaded.sets:
            expected, answer = (zoo.first(one.make(0).call(way)) for way in (loaded.module, compiled))
            distance = (answer.double() - expected.double()).norm() / expected.double().norm()
            worst = max(worst, float(distance))
    torch._dynamo.reset()
    ran = {key for key, one in tally.winners.items() if one.calls and not one.fallbacks.total()}
    is_right = worst <= CLOSE
    shares = dict.fromkeys((Kind.OP, Kind.FUSION), 0.0)
    for one in problems.values() if is_right else ():
        if one.case.hash in ran:
            shares[one.kind] += one.captured_us / found.captured.total_us
    return {
        "replaced": shares[Kind.OP],
        "fusion_replaced": shares[Kind.FUSION],
        "replaced_cases": f"{len(ran) if is_right else 0} of {len(problems)}",
        "fallbacks": {one.label: dict(one.fallbacks) for one in tally.winners.values() if one.fallbacks},
        "distance": worst,
    }


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
        json.dumps(json.loads(text, parse_float=lambda n: float(f"{float(n):.4g}")), indent=1) + "\n"
    )


def main() -> None:
    """Measure the models named, or all, and keep each row at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", default=[], help="a part of its name; may be repeated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = Seeds(Path(tempfile.mkdtemp(prefix="coverage-")))
    rows: dict[str, dict[str, object]] = {}
    if RESULTS.exists():
        rows = {row["model"]: row for row in json.loads(RESULTS.read_text())["rows"]}
    for name, build in models().items():
        if options.model and not any(word in name for word in options.model):
            continue
        loaded = build()
        request = ProfileModel(spec=loaded.spec, threads=1, with_compiled=False)
        found = profile(loaded, request, lambda _: None)
        rows[name] = row_of(name, found) | replaced(loaded, found, seeds)
        save(rows)
        print(json.dumps(rows[name]), flush=True)
    seeds.builds.close()


if __name__ == "__main__":
    main()
