"""The winners of a run: which there are, what goes into the model of each, and what was proven of it."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin, ParamValue
from kernelwright.core.case import Case
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device
from kernelwright.core.errors import BlobMissing
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.manifest import FOLDER, Certificate
from kernelwright.core.messages.model import Winner, WinnerUnit
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node, Tree
from kernelwright.report.drop_in import write
from kernelwright.report.usage import is_alone, is_handed_over
from kernelwright.store.blobs import Blobs
from kernelwright.store.disk import disk_errors


def winner_of(node: Node, case: Case, device: Device, blobs: Blobs, region: str = "") -> Winner:
    """Return a candidate as it goes into the model for a case: the very artefacts that were certified.

    `region` is the text of what is replaced, where the case alone does not say it.
    """
    candidate, kept = node.candidate, node.evaluations[-1].artefact_hashes
    values = candidate.values_for(case.hash)
    whose = {
        "problem_hash": node.problem_hash,
        "candidate_hash": candidate.hash,
        "backend": candidate.backend,
        "case": case,
        "source": candidate.source,
        "values": values,
        "device": device,
        "region": region,
    }
    if plugins.load("backends", candidate.backend).TIER == "A":
        plan = run_plan(parse_plan(candidate.source), case, values, device)
        keys = {kernel_unit(launch, case).hash[:16] for launch in plan.launches}
        units = tuple(_unit(key, kept, blobs) for key in sorted(keys))
        return Winner.model_validate(whose | {"plan": plan, "units": units})
    content = kept[digest(canonical_json(values))]
    return Winner.model_validate(whose | {"artefact": str(blobs.path(content)), "artefact_hash": content})


def _unit(key: str, kept: dict[str, str], blobs: Blobs) -> WinnerUnit:
    """Return one compiled kernel: the JSON beside it says how to launch it."""
    files = {Path(name).suffix: content for name, content in kept.items() if Path(name).stem == key}
    facts = files.pop(".json", None)
    if facts is None or len(files) != 1:
        raise BlobMissing(key, "was not kept by the judge with both its files")
    (binary,) = files.values()
    return WinnerUnit(
        key=key,
        binary=str(blobs.path(binary)),
        binary_hash=binary,
        facts=str(blobs.path(facts)),
        facts_hash=facts,
    )


def expected_gain(tree: Tree, problem_hash: str) -> float:
    """Return the share of the model's time that a problem's best saves, by what the judge measured of it."""
    node = tree.nodes[problem_hash, tree.best[problem_hash]]
    ratio = node.comparisons[-1].ratio if node.comparisons else 1.0
    return tree.problems[problem_hash].share * (1 - 1 / ratio)


def winners(tree: Tree, blobs: Blobs) -> list[tuple[Winner, ...]]:
    """Return every problem's best that is no baseline, one entry per case of it, largest expected gain first."""
    chosen = [
        key
        for key, best in tree.best.items()
        if tree.nodes[key, best].candidate.origin is not Origin.BASELINE
    ]
    chosen.sort(key=lambda key: -expected_gain(tree, key))
    return [_by_case(tree, key, blobs) for key in chosen]


def _by_case(tree: Tree, key: str, blobs: Blobs) -> tuple[Winner, ...]:
    problem, best = tree.problems[key], tree.nodes[key, tree.best[key]]
    return tuple(winner_of(best, case, problem.device, blobs, region_of(problem)) for case in problem.cases)


@dataclass(frozen=True)
class Returning:
    """A winner on its way back into the file its search began with."""

    original: Path
    winner: Path
    """The winner's source, in the run folder."""
    values: dict[str, ParamValue]
    """Values it was proven with where they are not those its source says first."""


def write_regions_of_winner(folder: Path, tree: Tree) -> Returning | None:
    """Write the winner of a search that began with a file, beside the journal; None if the file is still the best."""
    config = RunConfig.model_validate(tree.started.config) if tree.started else None
    if config is None or config.source is None:
        return None
    for key, best in tree.best.items():
        candidate, original = tree.nodes[key, best].candidate, Path(config.source)
        if best == tree.titles[key][0] or candidate.origin is Origin.BASELINE:
            continue
        winner = folder / f"winner{original.suffix}"
        with disk_errors(winner):
            winner.write_bytes(candidate.source.encode())
        return Returning(original, winner, _other_values(candidate, tree.problems[key]))
    return None


def _other_values(candidate: Candidate, problem: Problem) -> dict[str, ParamValue]:
    """Return the values a winner was proven with where they are not its source's first; by case if cases differ."""
    first = first_values(candidate.source)
    chosen = [candidate.values_for(case.hash) for case in problem.cases]
    is_one = all(values == chosen[0] for values in chosen)
    return {
        name if is_one else f"{name} at {case.label}": value
        for case, values in zip(problem.cases, chosen, strict=True)
        for name, value in values.items()
        if first.get(name) != value
    }


def region_of(problem: Problem) -> str:
    """Return the text of the region a problem was made of; empty if its op says what it is."""
    return problem.captured.source if problem.captured else ""


def certificates(tree: Tree) -> dict[str, Certificate]:
    """Return what was proven of every problem's best, by problem: one candidate may serve several."""
    found = {}
    for key, best in tree.best.items():
        node, first = tree.nodes[key, best], tree.nodes[key, tree.titles[key][0]]
        verdict = node.evaluations[-1]
        against = [one for one in node.comparisons if one.incumbent_hash == first.candidate.hash]
        proof = against[-1] if against else None
        found[key] = Certificate(
            judge_version=verdict.judge_version,
            profile=verdict.profile,
            status=verdict.status,
            baseline=baseline_words(first.candidate) if proof else "",
            ratio=proof.ratio if proof else None,
            ci_low=proof.ci_low if proof else None,
            ci_high=proof.ci_high if proof else None,
            pairs=proof.pairs if proof else 0,
            environment=verdict.environment,
        )
    return found


def baseline_words(candidate: Candidate) -> str:
    """Return a baseline's name as a sentence has it."""
    return {"eager": "PyTorch eager", "compiled": "torch.compile"}.get(candidate.backend, candidate.backend)


def write_drop_in(folder: Path, tree: Tree, stay: Sequence[Winner]) -> Path:
    """Write the winners that stay as modules of their own, and return where."""
    place = folder / FOLDER
    write(place, stay, certificates(tree))
    return place


def write_alone(folder: Path, tree: Tree) -> bool:
    """Write what a run without a model has confirmed as modules of their own, and tell whether there is anything."""
    blobs = Blobs(folder / "blobs")
    stay = [one for key in tree.problems if is_handed_over(tree, key) for one in _by_case(tree, key, blobs)]
    if stay:
        with disk_errors(folder / FOLDER):
            write_drop_in(folder, tree, stay)
    return bool(stay)


def hand_over(folder: Path, tree: Tree) -> str:
    """Write the winners of a run without a model as modules of their own, and return why the run ends."""
    if not is_alone(tree.started):  # it began with a file, or repeats another run
        return "the search has ended; there is no model to put a winner into"
    if write_alone(folder, tree):
        return f"what is proven faster than the baselines is written to {FOLDER}"
    shutil.rmtree(folder / FOLDER, ignore_errors=True)  # what a later sitting has found out
    if all(tree.nodes[key, best].candidate.origin is Origin.BASELINE for key, best in tree.best.items()):
        return "no candidate was proven faster than the baselines; nothing is written"
    return "what is proven faster is no kernel that a module could call by itself; nothing is written"
