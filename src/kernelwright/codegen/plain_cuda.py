"""A captured graph as plain CUDA C++: a kernel per stage, a thread per element, and the plan that launches them."""

import re
from collections.abc import Sequence
from typing import Any

from kernelwright.codegen.lowering import (
    TYPES,
    Port,
    ended,
    flat_count,
    helpers,
    port_of,
    reduction,
    stages_of,
)
from kernelwright.codegen.values import Kind, NotPlain, Stage, flat, loop_indices

BLOCK = 256
MOST_LAUNCHES = 64
"""As many as a plan may hold."""
NAMES = {"kw_fp16": "__half", "kw_bf16": "__nv_bfloat16", "std::abs(": "fabsf(", "std::": ""}
"""How CUDA spells what C++ spells otherwise."""
HELD = {Kind.FLOAT: "float", Kind.INT: "int64_t", Kind.BOOL: "bool"}
BYTES = {Kind.FLOAT: 4, Kind.INT: 8, Kind.BOOL: 1}


def written(graph: Any, inputs: Sequence[Port], outputs: Sequence[Port], order: Sequence[int]) -> str:
    """Return a graph as a CUDA candidate; see `stages_of` for what it takes and raises."""
    stages = [stage for stage in stages_of(graph, inputs, outputs, order) if flat_count(stage.shape)]
    if len(stages) > MOST_LAUNCHES:
        raise NotPlain(f"a function of {len(stages)} stages")
    buffers = {port.name: f"input:{place}" for place, port in enumerate(inputs)}
    types = {port.name: TYPES[port.dtype][0] for port in (*inputs, *outputs)}
    kernels, launches, spaces = [], [], []
    for number, stage in enumerate(stages):
        port = port_of(stage, outputs)
        read = [name for name in buffers if re.search(rf"\b{name}\[", stage.expression)]
        types.setdefault(stage.name, HELD[stage.kind])
        kernels.append(_kernel(number, stage, port, [(name, types[name]) for name in read]))
        count = flat_count(stage.shape)
        args = ", ".join(f'"{buffers.get(name, name)}"' for name in (*read, stage.name))
        launch = f'"kernel": "stage{number}", "grid": ({-(-count // BLOCK)},), "block": ({BLOCK},), "args": [{args}]'
        launches.append(f"            {{{launch}}},")
        if port is None:
            buffers[stage.name] = stage.name
            spaces.append(f'            {{"name": "{stage.name}", "nbytes": {count * BYTES[stage.kind]}}},')
    body = "\n".join(kernels)
    functions = "".join(f"__device__ {text}\n" for text in helpers(body))
    return _spelled(_file(launches, spaces, functions, body))


def _spelled(text: str) -> str:
    for old, new in NAMES.items():
        text = text.replace(old, new)
    return text


def _kernel(number: int, stage: Stage, port: Port | None, read: Sequence[tuple[str, str]]) -> str:
    made = TYPES[port.dtype][0] if port else HELD[stage.kind]
    given = "".join(f"const {kind}* {name}, " for name, kind in read)
    lines = [f'extern "C" __global__ void stage{number}({given}{made}* {stage.name}) {{']
    lines.append("    const int64_t n = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;")
    lines.append(f"    if (n >= {flat_count(stage.shape)}) return;")
    step = flat_count(stage.shape)
    for axis, extent in enumerate(stage.shape):
        step //= extent
        if extent > 1:
            place = "n" if step == 1 else f"n / {step}"
            whole = step * extent == flat_count(stage.shape)
            lines.append(f"    const int64_t i{axis} = {place if whole else f'{place} % {extent}'};")
    stored = f"static_cast<{made}>({{}})" if port else "{}"
    place = f"{stage.name}[{flat(loop_indices(stage.shape), stage.shape)}]"
    if stage.how:
        lines += reduction(stage, "    ")
    value = ended(stage) if stage.how else stage.expression
    return "\n".join([*lines, f"    {place} = {stored.format(value)};", "}", ""])


def _file(launches: Sequence[str], spaces: Sequence[str], functions: str, body: str) -> str:
    scratch = "\n".join(spaces)
    return f"""#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    return {{
        "workspaces": [
{scratch}
        ],
        "launches": [
{chr(10).join(launches)}
        ],
    }}
*/

using int64_t = kw::i64;
using int32_t = int;
#define INFINITY kw::infinity()
#define NAN __int_as_float(0x7fffffff)

{functions}
{body}"""
