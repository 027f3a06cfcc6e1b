"""A captured graph as stages of plain loops, in C++: what the writers of every language of that family share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.codegen.operations import HELPERS, lifted
from kernelwright.codegen.sums import Lowering
from kernelwright.codegen.values import Kind, NotPlain, Stage, Value, as_kind, buffer, loop_indices, sliced

TYPES = {
    "fp32": ("float", "KW_FP32", Kind.FLOAT),
    "fp16": ("kw_fp16", "KW_FP16", Kind.FLOAT),
    "bf16": ("kw_bf16", "KW_BF16", Kind.FLOAT),
    "int64": ("int64_t", "KW_INT64", Kind.INT),
    "int32": ("int32_t", "KW_INT32", Kind.INT),
    "bool": ("bool", "KW_BOOL", Kind.BOOL),
}
"""C++ type, `kw_dtype` and kind of value, by the type's name in a case."""


@dataclass(frozen=True)
class Port:
    """A tensor of the kernel's signature."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As a case spells it: `fp32`."""


def lower(graph: Any, inputs: Sequence[Value]) -> tuple[Lowering, list[Value]]:
    """Return the stages of a graph over its inputs, and what it returns. `Any`: a GraphModule of torch.fx."""
    lowering, known = Lowering(), dict[Any, Any]()
    waiting = list(inputs)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            known[node] = waiting.pop(0)
        elif node.op == "output":
            return lowering, [lifted(known[one]) for one in node.args[0]]
        elif node.op == "call_function":
            value = _lowered(node, lowering, known)
            is_shared = len(node.users) > 1 and isinstance(value, Value)
            known[node] = lowering.stages.stored(value) if is_shared else value
        else:
            raise NotPlain("a tensor that is no argument")
    raise NotPlain("a graph without an output")


def _lowered(node: Any, lowering: Lowering, known: dict[Any, Any]) -> Any:
    def given(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [given(one) for one in value]
        return known[value] if hasattr(value, "users") else value

    args, named = [given(one) for one in node.args], {key: given(one) for key, one in node.kwargs.items()}
    if getattr(node.target, "__name__", "") == "getitem":
        return args[0][args[1]]
    name = str(node.target).split(".")[1]
    if name in ("split", "split_with_sizes"):
        return _split(lowering.stages.stored(args[0]), args[1], args[2] if len(args) > 2 else 0)
    if name in ("_to_copy", "to"):
        return as_kind(lifted(args[0]), _kind_of(node))
    return lowering.apply(name, args, named)


def _split(x: Value, sizes: Any, axis: int) -> list[Value]:
    axis %= len(x.shape)
    if isinstance(sizes, int):
        sizes = [min(sizes, x.shape[axis] - start) for start in range(0, x.shape[axis], sizes)]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [sliced(x, axis, start, size) for start, size in zip(starts, sizes, strict=True)]


def _kind_of(node: Any) -> Kind:
    dtype = node.meta["val"].dtype
    if dtype.is_floating_point:
        return Kind.FLOAT
    if str(dtype) == "torch.bool":
        return Kind.BOOL
    return Kind.INT


def stages_of(
    graph: Any, inputs: Sequence[Port], outputs: Sequence[Port], order: Sequence[int]
) -> list[Stage]:
    """Return a graph as stages, the last ones filling the outputs; raises NotPlain for what has no plain form.

    `order` says which input each placeholder of the graph is. `Any`: a GraphModule of torch.fx.
    """
    lowering, answers = lower(graph, [_port_value(inputs[place]) for place in order])
    stages = list(lowering.stages.found)
    for port, answer in zip(outputs, answers, strict=True):
        expression = as_kind(answer, TYPES[port.dtype][2]).at(loop_indices(answer.shape))
        stages.append(Stage(port.name, port.shape, TYPES[port.dtype][2], expression))
    return stages


def port_of(stage: Stage, outputs: Sequence[Port]) -> Port | None:
    """Return the output a stage writes, None for a buffer of its own."""
    return next((port for port in outputs if port.name == stage.name), None)


def _port_value(port: Port) -> Value:
    kind = TYPES[port.dtype][2]
    load = {"fp32": "{}", "int64": "{}", "bool": "{}"}.get(port.dtype, f"static_cast<{kind}>({{}})")
    return buffer(port.name, port.shape, kind, load)


def helpers(body: str) -> list[str]:
    """Return the functions a text calls."""
    return [text for name, text in HELPERS.items() if f"{name}(" in body.replace(f"std::{name}(", "")]


def ended(stage: Stage) -> str:
    """Return what a reduction leaves behind."""
    if stage.divisor != 1:
        return f"static_cast<float>(total / {stage.divisor}.0)"
    return f"static_cast<{stage.kind}>(total)"


def reduction(stage: Stage, indent: str) -> list[str]:
    """Return the inner loops of a reduction, which end in `total`."""
    is_sum = stage.how == "sum"
    kind = ("double" if stage.kind is Kind.FLOAT else "int64_t") if is_sum else "float"
    first = "0" if is_sum else "-INFINITY" if stage.how == "max" else "INFINITY"
    lines = [f"{indent}{kind} total = {first};"]
    inner = indent
    for number, extent in enumerate(stage.reduced):
        if extent > 1:
            lines.append(f"{inner}for (int64_t r{number} = 0; r{number} < {extent}; ++r{number})")
            inner += "    "
    step = {"sum": "total += {};", "max": "total = larger(total, {});", "min": "total = smaller(total, {});"}
    return [*lines, f"{inner}{step[stage.how].format(stage.expression)}"]


def flat_count(shape: Sequence[int]) -> int:
    """Return the elements of a shape."""
    count = 1
    for extent in shape:
        count *= extent
    return count
