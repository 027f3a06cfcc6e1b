"""The captured graph: what dynamo sees of the model, and the known ops in it."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kernelwright.core import plugins
from kernelwright.core.case import Case, DType, TensorSpec

DTYPES = {torch.float32: DType.FP32, torch.float16: DType.FP16, torch.bfloat16: DType.BF16}


@dataclass(frozen=True)
class Site:
    """A node of the graph that is a known op, and the case it runs."""

    node: Node
    case: Case


def _example(value: Any) -> Any:
    return value.meta.get("example_value") if isinstance(value, Node) else value


def _rows_by_cols(tensor: Any) -> TensorSpec | None:
    """Return a tensor as rows x cols if its leading axes collapse into one stride, else None."""
    if tensor.ndim < 1 or tensor.dtype not in DTYPES:
        return None
    rows, cols = tensor.numel() // max(1, tensor.shape[-1]), tensor.shape[-1]
    flat = tensor.is_contiguous()
    return TensorSpec(name="x", shape=(rows, cols), dtype=DTYPES[tensor.dtype]) if flat else None


def rms_norm_site(node: Node) -> Site | None:
    """Return the site if the node is `torch.rms_norm(x, (cols,), weight, eps)` on dense tensors."""
    if node.op != "call_function" or node.target not in (torch.rms_norm, torch.nn.functional.rms_norm):
        return None
    x, shape, weight, eps = (*node.args, None, None, None)[:4]
    weight, eps = node.kwargs.get("weight", weight), node.kwargs.get("eps", eps)
    value, scale = _example(x), _example(weight)
    if value is None or scale is None or not isinstance(eps, float) or len(tuple(shape or ())) != 1:
        return None
    dense = _rows_by_cols(value)
    if dense is None or scale.dtype != value.dtype or not scale.is_contiguous():
        return None
    rows, cols = dense.shape
    op = plugins.load("ops", "rmsnorm")
    return Site(node, op.case({"rows": rows, "cols": cols}, dense.dtype, {"eps": eps}))


RECOGNISERS: tuple[Callable[[Node], Site | None], ...] = (rms_norm_site,)


def sites(graph: GraphModule) -> Iterator[Site]:
    """Yield every known op of a captured graph."""
    for node in graph.graph.nodes:
        for recognise in RECOGNISERS:
            if found := recognise(node):
                yield found
                break


def counted_cases(found: list[Site]) -> list[tuple[Case, int]]:
    """Return identical cases merged, with how often each occurs, in order of first appearance."""
    counts = Counter(site.case.hash for site in found)
    first = {site.case.hash: site.case for site in reversed(found)}
    return [(first[key], counts[key]) for key in dict.fromkeys(site.case.hash for site in found)]
