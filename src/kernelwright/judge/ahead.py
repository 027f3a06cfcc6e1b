"""What is compiled on other cores while the device is at work: what the next stages ask for, and not before."""

from collections.abc import Collection

from kernelwright.core.verdict import Stage
from kernelwright.judge.execution import compile_ahead
from kernelwright.judge.stages import Bench


def compile_early(bench: Bench) -> None:
    """Begin with what every candidate is asked first."""
    if bench.is_planned:
        compile_ahead(bench.candidate, bench.small_cases(), bench.problem.device, bench.builds)


def compile_late(bench: Bench, stages: Collection[Stage]) -> None:
    """Begin with all that the stages left ask for: of a wrong kernel most of it would be for nothing.

    What early stages ask for comes first; what is left of it when a stage fails is dropped.
    """
    if not bench.is_planned or not stages:
        return
    known, told = bench.known_cases(), {case.hash for case in bench.op.public_cases()}
    public = [case for case in known if case.hash in told]
    laid_out = [way.case for way in bench.layouts] if Stage.LAYOUT in stages else []
    wanted = (*bench.pool, *public, *known, *laid_out)
    compile_ahead(bench.candidate, wanted, bench.problem.device, bench.builds)
