"""A captured graph as stages of plain loops, in C++: what the writers of every language of that family share."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelwright.codegen.operations import lifted
from kernelwright.codegen.sums import MOST_PRODUCTS, Lowering
from kernelwright.codegen.values import (
    Kind,
    NotPlain,
    Read,
    Stage,
    Value,
    as_kind,
    buffer,
    dense,
    flat,
    loop_indices,
    sliced,
)

TYPES = {
    "fp32": ("float", "KW_FP32", Kind.FLOAT),
    "fp16": ("kw_fp16", "KW_FP16", Kind.FLOAT),
    "bf16": ("kw_bf16", "KW_BF16", Kind.FLOAT),
    "int64": ("int64_t", "KW_INT64", Kind.INT),
    "int32": ("int32_t", "KW_INT32", Kind.INT),
    "bool": ("uint8_t", "KW_BOOL", Kind.BOOL),  # GCC vectorises no loads of bool
}
"""C++ type, `kw_dtype` and kind of value, by the type's name in a case."""


@dataclass(frozen=True)
class Port:
    """A tensor of the kernel's signature."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As a case spells it: `fp32`."""
    strides: tuple[int, ...] | None = None
    """Elements from one to the next along each axis; None if it is dense."""
    offset: int = 0
    """Elements from a cache line to its first one."""
    tensor: str = ""
    """What the case calls it; empty for an input of a module, which is called by its place."""


def lower(graph: Any, inputs: Sequence[Value], lowering: Lowering) -> list[Value]:
    """Have a graph over its inputs put into stages, and return what it returns. `Any`: a GraphModule of torch.fx."""
    known = dict[Any, Any]()
    waiting = list(inputs)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            known[node] = waiting.pop(0)
        elif node.op == "output":
            return [lifted(known[one]) for one in node.args[0]]
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
    if node.target is operator.getitem:
        return args[0][args[1]]
    space, name, *_ = *str(node.target).split("."), ""
    if space != "aten":  # a user's own operator may be called like one of ATen's
        raise NotPlain(str(node.target))
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
    graph: Any,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    order: Sequence[int],
    most_products: int = MOST_PRODUCTS,
) -> list[Stage]:
    """Return a graph as stages, the last ones filling the outputs; raises NotPlain for what has no plain form.

    `order` says which input each placeholder of the graph is. `Any`: a GraphModule of torch.fx.
    """
    lowering = Lowering(most_products)
    answers = lower(graph, [port_value(inputs[place]) for place in order], lowering)
    stages = [*lowering.stages.found, *last_stages(answers, outputs)]
    return [stage for stage in joined(stages, outputs) if stage.numel]


def last_stages(answers: Sequence[Value], outputs: Sequence[Port]) -> list[Stage]:
    """Return the stages that fill the outputs."""
    kinds = [TYPES[port.dtype][2] for port in outputs]
    return [
        Stage(port.name, port.shape, kind, as_kind(answer, kind).at(loop_indices(answer.shape)))
        for port, kind, answer in zip(outputs, kinds, answers, strict=True)
    ]


def joined(stages: Sequence[Stage], outputs: Sequence[Port]) -> list[Stage]:
    """Return stages in which a result that is an output as it stands is written there and nowhere else."""
    found = list(stages)
    for port in outputs:
        stage = next(one for one in found if one.name == port.name)
        read = stage.expression
        if not isinstance(read, Read) or read.index != flat(loop_indices(stage.shape), dense(stage.shape)):
            continue
        maker = next((one for one in found if one.name == read.name), None)
        readers = sum(one.name == read.name for other in found for one in other.reads)
        is_exact = port.dtype == "fp32" or readers == 1
        if maker is None or maker.how or maker.numel != stage.numel or not is_exact:
            continue
        if port_of(maker.name, outputs) is None:
            found.remove(stage)
            found = [_renamed(one, maker.name, port.name) for one in found]
    return found


def _renamed(stage: Stage, old: str, new: str) -> Stage:
    name = new if stage.name == old else stage.name
    return replace(stage, name=name, expression=stage.expression.renamed(old, new))


def port_of(name: str, outputs: Sequence[Port]) -> Port | None:
    """Return the output of that name, None for a buffer of the kernel's own."""
    return next((port for port in outputs if port.name == name), None)


def port_value(port: Port) -> Value:
    """Return the elements of a tensor of the signature."""
    kind = TYPES[port.dtype][2]
    load = "" if port.dtype in ("fp32", "int64") else f"static_cast<{kind}>({{0}})"
    load = "({0} != 0)" if kind is Kind.BOOL else load
    return buffer(port.name, port.shape, kind, load, port.strides)
