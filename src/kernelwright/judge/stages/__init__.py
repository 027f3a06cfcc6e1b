"""The stages: what each of them checks, one file per kind of question, in the order of `core.verdict.Stage`."""

import time
from collections.abc import Callable

from kernelwright.core.verdict import Stage, StageResult
from kernelwright.judge.stages.bench import CALL_SECONDS, Bench, Failure, Skipped, Told, input_elements
from kernelwright.judge.stages.big_index import big_index
from kernelwright.judge.stages.checks import check_call, check_cases
from kernelwright.judge.stages.graph_capture import graph_capture
from kernelwright.judge.stages.intake import build, guards, rebuild, smoke
from kernelwright.judge.stages.layout import aliasing, layout
from kernelwright.judge.stages.longevity import longevity
from kernelwright.judge.stages.numbers import edge_cases, exactness, shape_sweep, special_values, stability
from kernelwright.judge.stages.repetition import determinism, state
from kernelwright.judge.stages.sanitizer import sanitize
from kernelwright.judge.stages.sensitivity import sensitivity
from kernelwright.judge.stages.streams import streams
from kernelwright.judge.stages.testable import null_models

__all__ = [
    "CALL_SECONDS",
    "STAGES",
    "Bench",
    "Failure",
    "check_call",
    "check_cases",
    "input_elements",
    "run_stage",
]

STAGES: dict[Stage, Callable[[Bench], Told]] = {
    Stage.GUARDS: guards,
    Stage.BUILD: build,
    Stage.SMOKE: smoke,
    Stage.NULL_MODELS: null_models,
    Stage.EXACTNESS: exactness,
    Stage.SHAPE_SWEEP: shape_sweep,
    Stage.STABILITY: stability,
    Stage.SPECIAL_VALUES: special_values,
    Stage.SENSITIVITY: sensitivity,
    Stage.EDGE_CASES: edge_cases,
    Stage.LAYOUT: layout,
    Stage.ALIASING: aliasing,
    Stage.DETERMINISM: determinism,
    Stage.STATE: state,
    Stage.REBUILD: rebuild,
    Stage.SANITIZER: sanitize,
    Stage.BIG_INDEX: big_index,
    Stage.STREAMS: streams,
    Stage.GRAPH_CAPTURE: graph_capture,
    Stage.LONGEVITY: longevity,
}
"""Every stage but the timing, which is the clock's."""


def run_stage(stage: Stage, bench: Bench) -> tuple[StageResult, Failure | None]:
    """Run one stage and return its result, with the failure if there was one."""
    started = time.perf_counter()
    checked, told = STAGES[stage](bench)
    if not checked and told is None:
        told = Skipped("there is nothing of this kind to check here")
    failure = told if isinstance(told, Failure) else None
    result = StageResult(
        stage=stage,
        passed=failure is None,
        seconds=time.perf_counter() - started,
        checked=checked,
        reason=told.reason if told else "",
        failing_case=failure.case.label if failure and failure.case else None,
        failing_scalars=failure.case.scalars if failure and failure.case else {},
    )
    return result, failure
