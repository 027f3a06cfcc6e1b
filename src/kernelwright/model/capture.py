"""The one graph: what dynamo sees of a model, functionalised by AOTAutograd into ATen, composites kept whole.

1. Dynamo hands over a graph of torch calls. Each composite in it (`KEPT`) is exchanged for a shadow of the same schema
   in our own library, which AOTAutograd has no reason to take apart.
2. AOTAutograd functionalises: views and mutations become values, a mutated buffer is copied back at the end.
3. The shadows are exchanged back for the ATen composites themselves. What is left is plain ATen and runs as it stands.

Where gradients are asked for, dynamo's graph runs as it is: the framework differentiates it. docs/decisions/0007.
"""

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

LIBRARY = "kernelwright_whole"
KEPT = (
    *("rms_norm.default", "layer_norm.default", "group_norm.default", "softmax.int", "log_softmax.int"),
    *("scaled_dot_product_attention.default", "cross_entropy_loss.default", "linear.default"),
    "matmul.default",
)
"""ATen composites that stay one node; silu, gelu and the like are no composites and stay by themselves."""
Finish = Callable[["Captured"], Callable[..., Any]]


@dataclass(frozen=True)
class Break:
    """Where dynamo ended a graph before the model's own end."""

    reason: str
    where: str
    """File and line in the model's code."""


@dataclass
class Captured:
    """One graph of the model."""

    graph: GraphModule
    """Plain ATen on tensors, functional but for the final `copy_` into mutated inputs."""
    ended_by: Break | None = None
    """Why the graph ends where it does; None at the model's own end."""
    arguments: tuple[Any, ...] = ()
    """What it was called with first, in the order of its placeholders; mutated ones as they were before."""
    constants: frozenset[str] = frozenset()
    """Placeholders that are parameters or buffers of the model."""


@dataclass
class Capture:
    """Everything captured of one call of a model."""

    graphs: list[Captured] = field(default_factory=list)
    outputs: Any = None
    """What the model returned when its graphs ran as captured."""

    @property
    def breaks(self) -> list[Break]:
        """Return where the model was cut, in order."""
        return [one.ended_by for one in self.graphs if one.ended_by is not None]


def overload(name: str) -> Any:
    """Return an ATen operation by `name.overload`."""
    packet, _, kind = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), kind)


@functools.cache
def _shadows() -> tuple[torch.library.Library, dict[Any, Any]]:
    """Return our library and the original of each shadow; registered once, because torch keeps such things for good."""
    library, originals = torch.library.Library(LIBRARY, "DEF"), {}
    for name in KEPT:
        original, ours = overload(name), name.replace(".", "_")
        schema = str(original._schema)
        library.define(ours + schema[schema.index("(") :])
        library.impl(ours, original, "CompositeExplicitAutograd")
        # Under fake tensors of the real device: on `meta` the layout of an attention's answer would be another one.
        torch.library.register_fake(f"{LIBRARY}::{ours}", original, lib=library)
        originals[getattr(getattr(torch.ops, LIBRARY), ours).default] = original
    return library, originals


def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> tuple[Any, ...]:
    return "rms_norm.default", input, normalized_shape, weight, eps


def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True
) -> tuple[Any, ...]:
    return "layer_norm.default", input, normalized_shape, weight, bias, eps


def _group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True
) -> tuple[Any, ...]:
    return "group_norm.default", input, num_groups, weight, bias, eps


def _functional_softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return None if dim is None else ("softmax.int", input, dim, dtype)


def _softmax(input: Any, dim: int, dtype: Any = None) -> tuple[Any, ...]:
    return "softmax.int", input, dim, dtype


def _functional_log_softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return None if dim is None else ("log_softmax.int", input, dim, dtype)


def _log_softmax(input: Any, dim: int, dtype: Any = None) -> tuple[Any, ...]:
    return "log_softmax.int", input, dim, dtype


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...]:
    named = {"scale": scale, "enable_gqa": enable_gqa}
    return "scaled_dot_product_attention.default", query, key, value, attn_mask, dropout_p, is_causal, named


def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if size_average is not None or reduce is not None or reduction not in ("none", "mean", "sum"):
        return None
    number = ("none", "mean", "sum").index(reduction)
    return "cross_entropy_loss.default", input, target, weight, number, ignore_index, label_smoothing


def _linear(input: Any, weight: Any, bias: Any = None) -> tuple[Any, ...]:
    return "linear.default", input, weight, bias


def _matmul(input: Any, other: Any) -> tuple[Any, ...]:
    return "matmul.default", input, other


def _spellings() -> dict[Any, Callable[..., Any]]:
    """Return, per function or method name dynamo may record, how its arguments are those of the ATen composite.

    The answer is the composite's name, its arguments and, last, named ones; None leaves the call as it is.
    """
    return {
        **dict.fromkeys((torch.rms_norm, F.rms_norm), _rms_norm),
        **dict.fromkeys((torch.layer_norm, F.layer_norm), _layer_norm),
        **dict.fromkeys((torch.group_norm, F.group_norm), _group_norm),
        **dict.fromkeys((torch.softmax, torch.Tensor.softmax, "softmax"), _softmax),
        **dict.fromkeys((torch.log_softmax, torch.Tensor.log_softmax, "log_softmax"), _log_softmax),
        F.softmax: _functional_softmax,
        F.log_softmax: _functional_log_softmax,
        F.scaled_dot_product_attention: _attention,
        F.cross_entropy: _cross_entropy,
        F.linear: _linear,
        **dict.fromkeys((torch.matmul, torch.Tensor.matmul, operator.matmul, "matmul"), _matmul),
    }


def _is_plain(graph: GraphModule, inputs: Iterable[Any]) -> bool:
    """Tell whether a shadow stands for its composite here.

    Not under autocast, whose casts would be lost: it is off where a captured graph runs. Not under vmap and the like,
    which know the composite and would call a shadow row by row.
    """
    names = [f"{getattr(node.target, '__module__', '')} {node.target}" for node in graph.graph.nodes]
    devices = {value.device.type for value in inputs if isinstance(value, torch.Tensor)} | {"cpu"}
    return not any("autocast" in name or "functorch" in name for name in names) and not any(
        torch.is_autocast_enabled(kind) for kind in devices
    )


def _keep_composites(graph: GraphModule) -> None:
    """Exchange every composite of dynamo's graph, and of the graphs inside it, for its shadow."""
    shadows, spellings = {original: shadow for shadow, original in _shadows()[1].items()}, _spellings()
    for node in graph.graph.nodes:
        if node.op not in ("call_function", "call_method") or (spelled := spellings.get(node.target)) is None:
            continue
        try:
            bound = inspect.signature(spelled).bind(*node.args, **_renamed(node.kwargs))
        except TypeError:  # a spelling with other arguments, such as an `out`: AOTAutograd takes it apart
            continue
        found = spelled(*bound.args, **bound.kwargs)
        if found is None:
            continue
        name, *arguments = found
        named = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        node.op, node.target = "call_function", shadows[overload(name)]
        node.args, node.kwargs = tuple(arguments), named
    graph.recompile()


def _renamed(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"input" if key == "self" else key: value for key, value in kwargs.items()}


def _give_back(graph: GraphModule) -> GraphModule:
    """Exchange the shadows for the ATen composites they stand for."""
    originals = _shadows()[1]
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in originals:
            node.target = originals[node.target]
    graph.recompile()
    return graph


def _split_tables(graph: GraphModule) -> None:
    """Give every complex factor real parts to be read from: a case has no complex tensors, and both views are free."""
    for node in [one for one in graph.graph.nodes if one.target is torch.ops.aten.mul.Tensor]:
        for factor in node.all_input_nodes:
            value = factor.meta.get("val")
            if not isinstance(value, torch.Tensor) or not value.is_complex() or value.is_conj():
                continue
            if factor.target is torch.ops.aten.view_as_complex.default:
                continue
            with graph.graph.inserting_before(node):
                parts = graph.graph.call_function(torch.ops.aten.view_as_real.default, (factor,))
                whole = graph.graph.call_function(torch.ops.aten.view_as_complex.default, (parts,))
            parts.meta = {**factor.meta, "val": torch.view_as_real(value)}
            whole.meta = {**factor.meta, "val": value}
            node.replace_input_with(factor, whole)
    graph.recompile()


def _ended_by(graph: GraphModule) -> Break | None:
    found = getattr(graph, "compile_subgraph_reason", None)
    if found is None or not found.graph_break:
        return None
    frame = found.user_stack[-1] if found.user_stack else None
    reason = " ".join(str(found.reason).split())
    return Break(reason[:300], f"{frame.filename}:{frame.lineno}" if frame else "")


def backend(module: torch.nn.Module, finish: Finish, aside: Finish | None = None) -> Callable[..., Any]:
    """Return a backend of torch.compile that captures each graph of a module and runs what `finish` makes of it.

    A graph that gradients are asked of is handed to `aside` as dynamo made it, or runs so.
    """
    weights = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def compile_graph(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in inputs):
            return aside(Captured(graph, _ended_by(graph))) if aside else graph.forward
        ended_by = _ended_by(graph)
        if _is_plain(graph, inputs):
            _keep_composites(graph)

        def receive(lowered: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            captured = Captured(_give_back(lowered), ended_by)
            _split_tables(captured.graph)
            with _disable_current_modes():  # AOTAutograd's fake tensors: here real values are looked at
                _fill_in(captured, inputs, weights)
                return finish(captured)

        return aot_module_simplified(
            graph,
            inputs,
            fw_compiler=receive,
            inference_compiler=receive,
            decompositions={},
            keep_inference_input_mutations=True,
        )

    return compile_graph


def placeholders(graph: GraphModule) -> list[Node]:
    """Return what a graph is called with, in order."""
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def mutated(graph: GraphModule) -> set[Node]:
    """Return the placeholders a captured graph writes to."""
    return {
        node.args[0]
        for node in graph.graph.nodes
        if node.op == "call_function" and node.target is torch.ops.aten.copy_.default
    }


def _fill_in(captured: Captured, inputs: Sequence[Any], weights: set[int]) -> None:
    """Note what a graph is called with, before it has run."""
    places = placeholders(captured.graph)
    if len(places) != len(inputs):  # inputs that overlap in memory and are written to became one
        return
    written = mutated(captured.graph)
    pairs = list(zip(places, inputs, strict=True))
    captured.arguments = tuple(value.detach().clone() if node in written else value for node, value in pairs)
    captured.constants = frozenset(node.name for node, value in pairs if id(value) in weights)


def capture(module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any] | None = None) -> Capture:
    """Return every graph of one call of the model, with what each was called with."""
    found = Capture()

    def finish(captured: Captured) -> Callable[..., Any]:
        found.graphs.append(captured)
        return captured.graph.forward

    torch._dynamo.reset()
    try:
        compiled = torch.compile(module, backend=backend(module, finish), dynamic=False)
        found.outputs = compiled(*inputs, **(named or {}))
    finally:
        torch._dynamo.reset()
    return found
