"""Tiles in bands: programs that run at the same time then share rows of one operand and columns of the other in L2."""

from collections.abc import Sequence

from tree_sitter import Node

from kernelwright.core.plan_language import PlanFault
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Edit, Unit, Unparsed, edited, field, inserted, parse, replaced
from kernelwright.moves._params import widened, words_of

SUMMARY = "tiles of a two-dimensional grid walked in bands of rows"
BACKENDS = ("triton", "cuda")
AGAINST = (Bottleneck.CACHE_MISSES, Bottleneck.MEMORY_BANDWIDTH, Bottleneck.TENSOR_CORE_IDLE)
WORDS = {"group", "groups", "band"}
BAND = 8

HEAD = """
    // {band} rows of tiles are finished column by column: tiles in flight share operands in L2.
    const int kw_tile = blockIdx.y * gridDim.x + blockIdx.x, kw_band = {band} * gridDim.x;
    const int kw_first = kw_tile / kw_band * {band}, kw_rest = gridDim.y - kw_first;
    const int kw_height = kw_rest < {band} ? kw_rest : {band};
    const int kw_y = kw_first + kw_tile % kw_band % kw_height, kw_x = kw_tile % kw_band / kw_height;"""


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with bands of another height, or with bands where its grid has none."""
    try:
        found = [
            moved
            for _, _, moved in widened(
                subject.source, subject.backend, lambda name: bool(words_of(name) & WORDS), (2, 0.5)
            )
        ]
        if subject.backend == "cuda":
            found = [*_banded(subject), *found]
    except (Unparsed, PlanFault) as error:
        return str(error)
    return found or "no grid of tiles is walked in bands or could be"


def _banded(subject: Subject) -> list[Moved]:
    unit = parse(subject.source, subject.backend)
    edits: list[Edit] = []
    kernels = []
    for function in unit.every("function_definition"):
        body, declarator = field(function, "body"), field(function, "declarator")
        places = _places(unit, body) if body else []
        if body is None or declarator is None or {name for _, name in places} != {"x", "y"}:
            continue
        kernels.append(declarator)
        edits.append(inserted(body.start_byte + 1, HEAD.format(band=BAND)))
        edits += [replaced(node, f"kw_{name}") for node, name in places]
    if not edits:
        return []
    text = edited(unit, edits, subject.backend)
    return [Moved(text, f"{len(kernels)} grids of tiles in bands of {BAND} rows")]


def _places(unit: Unit, body: Node) -> list[tuple[Node, str]]:
    """Return where a kernel asks for its block's place; none if it also asks for the grid's extent."""
    found = []
    for access in unit.every("field_expression", within=body):
        name = unit.text(access)
        if name.startswith("gridDim."):
            return []
        if name in ("blockIdx.x", "blockIdx.y", "blockIdx.z"):
            found.append((access, name[-1]))
    return found
