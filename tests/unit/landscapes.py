"""Made-up landscapes for tests of searches: small, known in full, and never passed off as measured."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from kernelwright.core.candidate import Origin
from kernelwright.core.frozen import digest
from kernelwright.core.landscape import Landscape, Look, Source, Spot, grid_edges
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Status

BASELINE = "def kernel_fn(): ...\n"
UNROLL, BLOCK, TWO_PASS = (1, 2, 4, 8, 16, 32), (32, 64, 128, 256, 512), (False, True)
GRID = {"UNROLL": list(UNROLL), "BLOCK": list(BLOCK), "two_pass": list(TWO_PASS)}
SOURCE = f"/*kernelwright\nPARAMS = {GRID!r}\n*/\nint kernel_fn();\n"


def valley_us(values: dict[str, Any], centre: int = 7) -> float:
    """Return a time with one lowest point: UNROLL 8, BLOCK 2 ** centre, two passes."""
    away = 8 * abs(math.log2(values["UNROLL"]) - 3) + 5 * abs(math.log2(values["BLOCK"]) - centre)
    return 30 + away + (0 if values["two_pass"] else 10)


def is_wrong(values: dict[str, Any]) -> bool:
    """Tell whether a point is one of those that compute something else."""
    return values["UNROLL"] == 32 and values["BLOCK"] == 512


def valley(
    problem: Problem,
    times: Sequence[Callable[[dict[str, Any]], float]] = (valley_us,),
    heats: Sequence[float] = (1.0, 1.02, 0.98),
) -> Landscape:
    """Return a landscape of one source: one function of time per case, every heat off by a known factor."""
    sources = {
        digest(SOURCE): Source(backend="cpp", text=SOURCE, name="valley"),
        digest(BASELINE): Source(backend="eager", text=BASELINE, origin=Origin.BASELINE),
    }

    def looks(values: dict[str, Any] | None) -> tuple[Look, ...]:
        return tuple(
            Look(
                case_hash=case.hash,
                times_us=tuple((100.0 if values is None else time(values)) * heat for heat in heats),
                against_us=(50.0,) * len(heats),
            )
            for case, time in zip(problem.cases, times, strict=True)
        )

    spots = [Spot(source=digest(BASELINE), status=Status.ACCEPTED, looks=looks(None), build_s=0.1)]
    for combination in itertools.product(UNROLL, BLOCK, TWO_PASS):
        values = dict(zip(GRID, combination, strict=True))
        wrong = is_wrong(values)
        spots.append(
            Spot(
                source=digest(SOURCE),
                values=values,
                status=Status.WRONG if wrong else Status.ACCEPTED,
                reason="out differs by 3 ulp" if wrong else "",
                looks=() if wrong else looks(values),
                build_s=1.0,
                screen_s=0.3,
            )
        )
    return Landscape(
        problem=problem,
        sources=sources,
        spots=tuple(spots),
        baseline=0,
        roots=(1,),
        edges=grid_edges(spots),
        proof_s=4.0,
    )
