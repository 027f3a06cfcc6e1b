"""Regions as plain kernels: what a search of a `graph` problem begins with when nobody else proposes anything."""

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from kernelwright.codegen import plain_cpp, plain_cuda, plain_triton, product_cpp
from kernelwright.codegen.lowering import Port
from kernelwright.codegen.values import NotPlain
from kernelwright.core.captured import CapturedRegion
from kernelwright.core.case import Case, TensorSpec
from kernelwright.model.graph import Region, tensor_of

WRITERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "cpu": {"cpp": (product_cpp.written, plain_cpp.written)},
    "cuda": {"triton": (plain_triton.written,), "cuda": (plain_cuda.written,)},
}
"""Per kind of device who writes a kernel in which language, the first choice first; the first that can, does."""
UNFORESEEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What an operation called in a way nobody thought of ends in: no reason not to look at the rest of the model."""
MOST_PRODUCTS = 1 << 16
"""Products of a matrix product in plain loops: with more of them a library is always faster."""


def graph_of(region: Region) -> GraphModule:
    """Return a region as a graph of its own."""
    graph, known = Graph(), dict[Node, Node]()
    for place, node in enumerate(region.inputs):
        known[node] = graph.placeholder(f"x{place}")
        known[node].meta = node.meta
    for node in region.nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(known[node] for node in region.outputs))
    return GraphModule(torch.nn.Module(), graph)


def captured_region(region: Region, case: Case, source: str, target: str = "") -> CapturedRegion:
    """Return a region's text with kernels for a kind of device, the one it was captured on unless another is named.

    `case` is its own, of op `graph`.
    """
    inputs = [_port(f"x{place}", spec) for place, spec in enumerate(case.inputs)]
    outputs = [_port(spec.name, spec) for spec in case.outputs]
    device = target or str(next(tensor_of(node) for node in region.inputs).device.type)
    kernels, reasons, graph = dict[str, str](), dict[str, str](), graph_of(region)
    for language, writers in WRITERS.get(device, {}).items():
        for write in writers:
            try:
                kernels[language] = write(graph, inputs, outputs, range(len(inputs)), MOST_PRODUCTS)
                break
            except NotPlain as error:
                reason = str(error)
            except UNFORESEEN as error:
                reason = f"an operation in a form of its own ({type(error).__name__})"
        else:
            reasons[reason] = language  # of the one that takes most
    return CapturedRegion(source=source, kernels=kernels, not_plain="; ".join(reasons))


def _port(name: str, spec: TensorSpec) -> Port:
    return Port(name, spec.shape, spec.dtype.value, spec.strides, spec.offset, spec.name)
