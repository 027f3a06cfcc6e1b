"""What the unit tests share: small valid nouns, built with keyword changes, and a fresh interpreter."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

import kernelwright
from kernelwright.core.candidate import Author, Candidate, Origin
from kernelwright.core.case import Case, Compute, DType, TensorSpec
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.environment import child_environment
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import (
    REQUIRED_STAGES,
    CaseTiming,
    Comparison,
    Evaluation,
    Outcome,
    Profile,
    Stage,
    StageResult,
    Status,
    Timing,
)

# Derandomised: a unit test gives the same answer on every machine and at every run.
settings.register_profile("unit", deadline=None, derandomize=True, database=None, max_examples=25)
settings.load_profile("unit")


def make_case(rows: int = 8, cols: int = 64, dtype: DType = DType.FP16, **changes: Any) -> Case:
    """Return a case of rmsnorm."""
    fields = {
        "op": "rmsnorm",
        "axes": {"rows": rows, "cols": cols},
        "dtype": dtype,
        "compute": Compute.FP32_ACCUMULATE,
        "inputs": (
            TensorSpec(name="x", shape=(rows, cols), dtype=dtype),
            TensorSpec(name="weight", shape=(cols,), dtype=dtype),
        ),
        "outputs": (TensorSpec(name="out", shape=(rows, cols), dtype=dtype),),
        "scalars": {"eps": 1e-5},
    }
    return Case(**(fields | changes))


def make_device(**changes: Any) -> Device:
    """Return a GPU."""
    fields = {
        "kind": DeviceKind.CUDA,
        "name": "Test GPU",
        "arch": "sm_90",
        "units": 132,
        "memory_bytes": 1 << 37,
        "cache_bytes": 50 << 20,
        "shared_bytes": 227 << 10,
    }
    return Device(**(fields | changes))


def make_problem(**changes: Any) -> Problem:
    """Return a problem of one case."""
    fields = {"op": "rmsnorm", "cases": (make_case(),), "device": make_device()}
    return Problem(**(fields | changes))


def make_candidate(source: str = "int kernel_fn();", **changes: Any) -> Candidate:
    """Return an author's candidate."""
    return Candidate(**({"op": "rmsnorm", "backend": "cpp", "source": source} | changes))


def make_baseline() -> Candidate:
    """Return the baseline."""
    author = Author(name="baseline")
    return make_candidate("def kernel_fn(): ...", backend="eager", origin=Origin.BASELINE, author=author)


def make_stages(profile: Profile = Profile.KEEP, failed: Stage | None = None) -> tuple[StageResult, ...]:
    """Return the stages of a profile, all passed, or up to and including the failed one."""
    results = []
    for stage in REQUIRED_STAGES[profile]:
        reason = "out differs by 3 ulp" if stage is failed else ""
        results.append(StageResult(stage=stage, passed=stage is not failed, seconds=0.5, reason=reason))
        if stage is failed:
            break
    return tuple(results)


def make_timing(problem: Problem, median_us: Any = 10.0, floor_us: Any = None, warm_us: Any = None) -> Timing:
    """Return certified times of a problem's cases: a number stands for every case, a sequence has one for each."""
    given = {"median_us": median_us, "floor_us": floor_us, "warm_us": warm_us}
    rows = {
        name: value if isinstance(value, Sequence) else [value] * len(problem.cases)
        for name, value in given.items()
    }
    columns = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    return Timing(
        clock="judge-slope",
        cases=tuple(
            CaseTiming(case_hash=case.hash, label=case.label, mad_us=0.1, rounds=20, **times)
            for case, times in zip(problem.cases, columns, strict=True)
        ),
    )


def make_evaluation(
    candidate: Candidate, problem: Problem, *, failed: Stage | None = None, **changes: Any
) -> Evaluation:
    """Return the verdict on a candidate: accepted with a timing where its profile has one, or failed."""
    profile = changes.get("profile", Profile.KEEP)
    is_timed = failed is None and profile is not Profile.QUICK
    fields = {
        "candidate_hash": candidate.hash,
        "problem_hash": problem.hash,
        "device_hash": problem.device.hash,
        "profile": profile,
        "status": Status.WRONG if failed else Status.ACCEPTED,
        "stages": make_stages(profile, failed),
        "timing": make_timing(problem) if is_timed else None,
    }
    return Evaluation(**(fields | changes))


def make_comparison(
    incumbent: Candidate, challenger: Candidate, problem: Problem, **changes: Any
) -> Comparison:
    """Return a comparison that proves the challenger faster."""
    fields = {
        "incumbent_hash": incumbent.hash,
        "challenger_hash": challenger.hash,
        "problem_hash": problem.hash,
        "device_hash": problem.device.hash,
        "outcome": Outcome.FASTER,
        "ratio": 1.25,
        "ci_low": 1.2,
        "ci_high": 1.3,
        "e_faster": 1200.0,
        "e_not_faster": 0.01,
        "pairs": 3,
        "log_ratios": (0.2, 0.22, 0.24),
    }
    return Comparison(**(fields | changes))


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """Return the builders of valid nouns; keyword arguments replace single fields."""
    return SimpleNamespace(
        case=make_case,
        device=make_device,
        problem=make_problem,
        candidate=make_candidate,
        baseline=make_baseline,
        stages=make_stages,
        timing=make_timing,
        evaluation=make_evaluation,
        comparison=make_comparison,
    )


@pytest.fixture(scope="session")
def fresh_python() -> Callable[[str, Mapping[str, Any]], dict[str, Any]]:
    """Return a function that runs code in a new interpreter: `given` in, the dict it leaves in `answer` out."""

    def run(code: str, given: Mapping[str, Any]) -> dict[str, Any]:
        root = Path(kernelwright.__file__).parents[1]
        environment = child_environment({}, root, Path.home(), threads=1) | {"PYTHONHASHSEED": "77"}
        script = f"import json, sys\ngiven = json.load(sys.stdin)\n{code}\nprint(json.dumps(answer))"
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=json.dumps(given),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    return run
