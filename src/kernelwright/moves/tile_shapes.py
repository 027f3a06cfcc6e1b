"""Other tiles: block sizes beyond those listed, and, in C++, register tiles of another shape."""

import itertools
from collections.abc import Mapping, Sequence

from tree_sitter import Node

from kernelwright.core.candidate import ParamValue
from kernelwright.core.plan_language import PlanFault, parse_params
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Unit, Unparsed, edited, field, parse, replaced
from kernelwright.moves._params import led_by, widened, with_params, words_of

SUMMARY = "block sizes and warps beyond those listed; register tiles of another shape"
BACKENDS = ("cpp", "triton", "cuda")
AGAINST = (Bottleneck.COMPUTE, Bottleneck.OCCUPANCY, Bottleneck.MEMORY_LATENCY, Bottleneck.TENSOR_CORE_IDLE)
WORDS = {"block", "bq", "bk", "bn", "bm", "mc", "nc", "kc", "chunk", "piece", "threads", "warps", "tile"}
"""Words in the name of a parameter that says how large a tile is or how many threads share it."""
NOT_TILES = {"elements", "heads", "lane"}
"""Words of parameters that other moves look after."""
ROWS, VECTORS = "TILE_ROWS", "TILE_VECTORS"
SHAPES = ((8, 3), (14, 2), (6, 4), (12, 2))
"""Rows and vectors of a register tile whose sums, with the vectors of one operand, fit 32 registers."""
WIDEST = 16
"""Lanes of the widest vectors there are: a multiple for them is one for all."""


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return sources led by register tiles of another shape, then by block sizes beyond those listed."""
    try:
        found = _register_tiles(subject) if subject.backend == "cpp" else []
        found += [moved for _, _, moved in widened(subject.source, subject.backend, _is_tile, (2, 0.5))]
    except (Unparsed, PlanFault) as error:
        return str(error)
    return found or "no parameter or constant says how large a tile is"


def _is_tile(name: str) -> bool:
    words = words_of(name)
    return bool(words & WORDS) and not words & NOT_TILES and name not in (ROWS, VECTORS)


def _register_tiles(subject: Subject) -> list[Moved]:
    """Return the source with rows and vectors of its register tile as parameters, led by each of `SHAPES`."""
    unit = parse(subject.source, subject.backend)
    rows, vectors = _constants(unit, "MR"), _constants(unit, "NV")
    if not rows or len(vectors) != 1:
        return []
    present = (max(int(unit.text(one)) for one in rows), int(unit.text(vectors[0])))
    edits = [replaced(one, ROWS) for one in rows] + [replaced(vectors[0], VECTORS)]
    text = edited(unit, edits, subject.backend)
    grid = parse_params(subject.source)
    found = []
    for shape in SHAPES:
        if shape == present:
            continue
        first = dict(zip((ROWS, VECTORS), shape, strict=True))
        blocks = _fitted(unit, grid, shape)
        leads = {name: values[0] for name, values in blocks.items()}
        source = with_params(led_by(text, first, subject.backend), blocks, subject.backend)
        found.append(
            Moved(source, f"register tiles of {shape[0]} rows and {shape[1]} vectors", {**first, **leads})
        )
    return found


def _constants(unit: Unit, name: str) -> list[Node]:
    """Return the literal values of a constant, one per branch of the preprocessor."""
    found = []
    for declared in unit.every("init_declarator"):
        named, value = field(declared, "declarator"), field(declared, "value")
        if named and value and unit.text(named) == name and value.type == "number_literal":
            found.append(value)
    return found


def _fitted(
    unit: Unit, grid: Mapping[str, Sequence[ParamValue]], shape: tuple[int, int]
) -> dict[str, list[ParamValue]]:
    """Return the blocks that must be whole tiles, as the source's own assertion has it, made so."""
    wholes: dict[str, list[ParamValue]] = {}
    multiples = {"MR": shape[0], "NR": shape[1] * WIDEST}
    for assertion in unit.every("static_assert_declaration"):
        for division in unit.every("binary_expression", within=assertion):
            left, right, sign = (field(division, part) for part in ("left", "right", "operator"))
            if left is None or right is None or sign is None or unit.text(sign) != "%":
                continue
            name, multiple = unit.text(left), multiples.get(unit.text(right))
            if name in grid and multiple:
                numbers = [one for one in grid[name] if isinstance(one, int)]
                whole = [max(1, round(one / multiple)) * multiple for one in numbers]
                wholes[name] = [value for value, _ in itertools.groupby(whole)]
    return wholes
