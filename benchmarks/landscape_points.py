"""Which kernels a landscape is made of: the seeds of an op, their parameters, and the sizes they are timed on.

On a CPU a seed's own grid has few points, so it is widened and two switches of the compiler are put in front of the
source. The sample of a grid is connected: every point is one changed value away from another one.
"""

import ast
import json
import math
import random

from kernelwright.core import plugins
from kernelwright.core.candidate import Origin, ParamValue
from kernelwright.core.case import DType
from kernelwright.core.device import Device
from kernelwright.core.frozen import digest
from kernelwright.core.landscape import Source
from kernelwright.core.plan_language import parse_params, python_part
from kernelwright.core.problem import Problem
from kernelwright.engine.seeds import seed

SEEDS = {"cpu": ("cpp",), "cuda": ("triton", "cuda")}
PRELUDE = """// Two switches of the compiler in front of the seed: vector width in bits, and loops unrolled or not.
#if VECTOR == 256
#undef __AVX512F__
#elif VECTOR == 128
#undef __AVX512F__
#undef __AVX__
#undef __F16C__
#endif
#if LOOPS
#pragma GCC optimize("unroll-loops")
#endif
"""
SWITCHES: dict[str, list[ParamValue]] = {"VECTOR": [128, 256, 512], "LOOPS": [False, True]}
WIDER: dict[str, list[ParamValue]] = {
    "UNROLL": [1, 2, 4, 8, 16],
    "CHUNK": [512, 1024, 2048, 4096, 16384],
    "PIECE": [1024, 4096, 8192, 32768],
    "BLOCK": [16, 32, 64, 128, 256],
    "BQ": [8, 16, 32, 64],
    "BK": [16, 32, 64, 128],
    "GRAIN": [16384],
}
"""Smallest first: a search starts at the plainest kernel. On one thread the grain of parallel work says nothing."""
CASES: dict[str, dict[str, list[tuple[int, ...]]]] = {
    "cpu": {
        "softmax": [(256, 512), (16, 8192)],
        "rmsnorm": [(256, 512), (16, 8192)],
        "layernorm": [(256, 512), (16, 8192)],
        "reduce": [(256, 512), (16, 8192)],
        "cross_entropy": [(256, 512), (16, 8192)],
        "rope": [(1, 8, 128, 64), (1, 4, 128, 256)],
        "attention": [(1, 4, 4, 128, 128, 64)],
    },
    "cuda": {
        "softmax": [(4096, 50257), (8192, 8192)],
        "cross_entropy": [(8192, 50257), (4096, 32000)],
        "rope": [(2, 32, 2048, 128)],
        "rmsnorm": [(8192, 8192), (4096, 4096)],
        "layernorm": [(8192, 8192), (4096, 4096)],
        "reduce": [(8192, 8192), (4096, 50257)],
        "matmul": [(4096, 4096, 4096)],
    },
}
"""Sizes by the order of the op's axes."""


Point = tuple[str, dict[str, ParamValue]]
"""Digest of a source, and parameters."""


def problem_of(op_name: str, device: Device) -> Problem:
    """Return the problem that is recorded: fp32 on a CPU, fp16 on a GPU."""
    op, kind = plugins.load("ops", op_name), device.kind.value
    usual = next(iter(op.public_cases()))
    dtype = DType.FP32 if kind == "cpu" else DType.FP16
    cases = [
        op.case(dict(zip(usual.axes, extents, strict=True)), dtype, dict(usual.scalars))
        for extents in CASES[kind][op_name]
    ]
    return Problem(op=op_name, cases=tuple(cases), device=device)


def widened(source: str) -> str:
    """Return a C++ seed with the switches in front and a grid that has more points."""
    tree = ast.parse(python_part(source))
    line = next(node for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "PARAMS")
    grid = {name: WIDER.get(name, values) for name, values in parse_params(source).items()} | SWITCHES
    lines = source.splitlines()
    lines[line.lineno - 1 : line.end_lineno] = [f"PARAMS = {grid!r}"]
    return PRELUDE + "\n".join(lines) + "\n"


def sources_of(op_name: str, kind: str) -> dict[str, Source]:
    """Return the sources of a landscape, the reference's first."""
    found = {}
    for backend in SEEDS[kind]:
        candidate = seed(op_name, backend, Origin.AUTHOR)
        assert candidate is not None, f"there is no {backend} seed of {op_name}"
        text = widened(candidate.source) if kind == "cpu" else candidate.source
        found[digest(text)] = Source(backend=backend, text=text, name=f"seeds/{op_name}/{backend}")
    eager = seed(op_name, "eager", Origin.BASELINE)
    assert eager is not None
    found[digest(eager.source)] = Source(
        backend="eager", text=eager.source, origin=Origin.BASELINE, name=f"seeds/{op_name}/eager"
    )
    return found


def sampled(grid: dict[str, list[ParamValue]], count: int, rng: random.Random) -> list[dict[str, ParamValue]]:
    """Return a connected sample of a grid: from the first values, one changed value at a time."""
    first = {name: values[0] for name, values in grid.items()}
    found = {json.dumps(first): first}
    total = math.prod(len(values) for values in grid.values())
    while len(found) < min(count, total):
        values = dict(rng.choice(list(found.values())))
        name = rng.choice(list(grid))
        values[name] = rng.choice(grid[name])
        found.setdefault(json.dumps(values), values)
    return list(found.values())


def wanted(sources: dict[str, Source], count: int) -> list[Point]:
    """Return the points of a landscape, the baseline first, then every seed with its own values."""
    rows: list[list[Point]] = []
    baseline: list[Point] = []
    for own, source in sources.items():
        if source.origin is Origin.BASELINE:
            baseline.append((own, {}))
        else:
            rng = random.Random(f"{source.name}:{count}")
            rows.append([(own, values) for values in sampled(parse_params(source.text), count, rng)])
    return [*baseline, *(row[0] for row in rows), *(point for row in rows for point in row[1:])]
