"""Where a candidate stands among all kernels of a problem: a coarse cell of tile size, depth, bytes and switches.

Names differ from author to author (`BLOCK`, `tile_elements`, `KC`), so a parameter is told by what its name says where
it says something, and by its size where it does not. Steps are powers of two: a cell holds what is nearly the same.
"""

import ast
import math
import re
from functools import lru_cache

from kernelwright.core.candidate import Candidate, ParamValue
from kernelwright.core.plan_language import PlanFault, python_part

DEPTH = re.compile(r"stage|depth|unroll|pipe|pack|vector|warp|ahead|buffer", re.IGNORECASE)
SMALL = 16
"""Numbers below this are depths (stages, warps, unrolling), others extents (tiles, chunks)."""
ACCESS = re.compile(
    r"\b(?:tl\.load|tl\.store|load|store|cp_async\w*|memcpy|__ld\w+|__st\w+|atomic\w*)\s*[(<]", re.IGNORECASE
)

Cell = tuple[str, int, int, int, tuple[tuple[str, str], ...]]


def cell(candidate: Candidate) -> Cell:
    """Return language, log2 of the tile, log2 of the depth, log2 of the memory accesses in the source, and switches."""
    values = candidate.choices[-1].values
    tile = depth = 0.0
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            continue
        if DEPTH.search(name) or value < SMALL:
            depth += math.log2(value)
        else:
            tile += math.log2(value)
    bits = _accesses(candidate.source).bit_length()
    return candidate.backend, round(tile), round(depth), bits, _switches(values)


@lru_cache(maxsize=1024)
def _accesses(source: str) -> int:
    """Return how often a source touches memory; asked anew of every member of an island, at every choice."""
    return len(ACCESS.findall(source)) + _shared_buffers(source)


def _switches(values: dict[str, ParamValue]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted((name, str(value)) for name, value in values.items() if isinstance(value, bool | str))
    )


def _shared_buffers(source: str) -> int:
    """Return how many launches of a plan ask for shared bytes, workspaces or tensor maps of their own."""
    try:
        tree = ast.parse(python_part(source))
    except (PlanFault, SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    wanted = {"shared_bytes", "workspaces", "tensor_maps"}
    keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
    return sum(isinstance(key, ast.Constant) and key.value in wanted for key in keys)
