"""A captured graph as plain C++: correct, readable, one loop nest per stage; somewhere to start from.

Intermediates are floats, sums are doubles: it is meant to be right first. Sizes are written into it.
"""

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
from kernelwright.codegen.values import Kind, Stage, flat, loop_indices

GRAIN = 16384
"""Elements from which threads are worth starting."""


def written(graph: Any, inputs: Sequence[Port], outputs: Sequence[Port], order: Sequence[int]) -> str:
    """Return a graph as a C++ candidate; see `stages_of` for what it takes and raises."""
    stages = stages_of(graph, inputs, outputs, order)
    body = "\n".join(_loops(stage, port_of(stage, outputs)) for stage in stages)
    return template(inputs, outputs, body, helpers(body))


def _loops(stage: Stage, port: Port | None) -> str:
    """Return the loops of a stage."""
    sizes, lines, indent = "x".join(map(str, stage.shape)) or "one number", [], ""
    if port is None:
        count = max(1, flat_count(stage.shape))
        held = "uint8_t" if stage.kind is Kind.BOOL else stage.kind  # vector<bool> has no elements of its own
        lines.append(f"std::vector<{held}> {stage.name}({count});  // {sizes}")
    axes = [(f"i{axis}", extent) for axis, extent in enumerate(stage.shape) if extent != 1]
    work = flat_count(stage.shape) * flat_count(stage.reduced)
    for depth, (name, extent) in enumerate(axes):
        if not depth and work >= GRAIN:
            lines.append("#pragma omp parallel for")
        lines.append(f"{indent}for (int64_t {name} = 0; {name} < {extent}; ++{name})")
        indent += "    "
    place = f"{stage.name}[{flat(loop_indices(stage.shape), stage.shape)}]"
    stored = f"static_cast<{TYPES[port.dtype][0]}>({{}})" if port else "{}"
    if not stage.how:
        return "\n".join([*lines, f"{indent}{place} = {stored.format(stage.expression)};"])
    if axes:
        lines[-1] += " {"
    lines += reduction(stage, indent)
    lines.append(f"{indent}{place} = {stored.format(ended(stage))};")
    lines += [f"{indent[4:]}}}"] if axes else []
    return "\n".join(lines if axes else _bare(lines, port))


def _bare(lines: list[str], port: Port | None) -> list[str]:
    """Return a stage without loops of its own in braces, so that its names stay inside."""
    head = lines[:1] if port is None else []
    return [*head, "{", *(f"    {line}" for line in lines[len(head) :]), "}"]


def _pointer(port: Port, const: str, body: str) -> str:
    """Return the line that takes a tensor's data."""
    kind = f"{const}{TYPES[port.dtype][0]}*"
    mark = "" if f"{port.name}[" in body else "[[maybe_unused]] "
    return f"    {mark}{kind} {port.name} = static_cast<{kind}>({port.name}_->data);\n"


def template(
    inputs: Sequence[Port], outputs: Sequence[Port], body: str, functions: Sequence[str] = ()
) -> str:
    """Return a candidate around a body: signature, checks and pointers are given."""
    ports = [*inputs, *outputs]
    arguments = ",\n                         ".join(f"const kw_tensor* {port.name}_" for port in ports)
    shapes = "".join(
        f"    if (!is({port.name}_, {TYPES[port.dtype][1]}, {{{', '.join(map(str, port.shape))}}})) return "
        "KW_UNSUPPORTED_SHAPE;\n"
        for port in ports
    )
    pointers = "".join(_pointer(port, "const ", body) for port in inputs)
    pointers += "".join(_pointer(port, "", body) for port in outputs)
    inside = "".join(
        f"    {line}\n" if not line.startswith("#") else f"{line}\n" for line in body.splitlines()
    )
    called = "".join(f"{text}\n" for text in functions)
    return f"""#include "kernelwright.h"

#include <cmath>
#include <initializer_list>
#include <vector>

namespace {{

// Dense, of this type and of exactly these sizes: no others are asked for.
bool is(const kw_tensor* tensor, int32_t dtype, std::initializer_list<int64_t> shape) {{
    if (tensor->dtype != dtype || tensor->ndim != static_cast<int32_t>(shape.size())) return false;
    int axis = 0;
    for (const int64_t extent : shape)
        if (tensor->shape[axis++] != extent) return false;
    return kw_is_contiguous(tensor);
}}

{called}}}  // namespace

extern "C" int kernel_fn({arguments}) {{
{shapes}{pointers}
{inside}    return KW_OK;
}}
"""
