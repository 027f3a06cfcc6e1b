"""A region of the captured graph: its nodes, what goes in and comes out, and the same as a self-contained Python file.

The text is the region: the reference of its problem, what is written out, and what is spliced in a round trip. Inputs
and intermediates are numbered in order, so that the same layer of a model gives the same text every time. The
floating-point types written in the graph are widened where the inputs are float64.
"""

import math
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from kernelwright.core.case import Case, Compute, DType, TensorSpec
from kernelwright.core.modules import Named, Role, index_axis, read, spelled
from kernelwright.ops._draw import torch_dtype

OP = "graph"
FLOATS = (DType.FP32, DType.FP16, DType.BF16)
DTYPES = {torch_dtype(kind): kind for kind in (*FLOATS, DType.INT64, DType.INT32, DType.BOOL)}
TELLING = 8
"""Values that must be positive before a tensor counts as positive."""
LINE = 64
"""Bytes of a cache line: how far a tensor's first element is from one is part of its case."""


@dataclass(frozen=True)
class Region:
    """Nodes of one graph that can be replaced by one call, in the order of the graph."""

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    """Values it reads, in order of first use."""
    outputs: tuple[Node, ...]
    """Values that others read."""


def tensor_of(node: Node) -> Any:
    """Return the fake tensor a node stands for, or None if it is none."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def region_of(nodes: Iterable[Node]) -> Region:
    """Return a set of nodes of one graph as a region."""
    chosen = set(nodes)
    graph = next(iter(chosen)).graph
    ordered = tuple(node for node in graph.nodes if node in chosen)
    inputs = dict.fromkeys(one for node in ordered for one in node.all_input_nodes if one not in chosen)
    outputs = tuple(node for node in ordered if any(user not in chosen for user in node.users))
    return Region(ordered, tuple(inputs), outputs)


def spanned(outputs: Sequence[Node], inputs: Sequence[Node]) -> Region | None:
    """Return everything from the inputs to the outputs; None if the outputs depend on other data.

    What lies between but is read by others too is computed there as well: it belongs to the region's text, and stays.
    """
    ends, found, waiting = set(inputs), set(), list(outputs)
    while waiting:
        node = waiting.pop()
        if node in ends or node in found:
            continue
        if node.op != "call_function":
            return None
        found.add(node)
        waiting.extend(node.all_input_nodes)
    if not found:
        return None
    ordered = tuple(node for node in outputs[0].graph.nodes if node in found)
    used = {one for node in ordered for one in node.all_input_nodes}
    return Region(ordered, tuple(node for node in dict.fromkeys(inputs) if node in used), tuple(outputs))


def own_nodes(region: Region) -> frozenset[Node]:
    """Return the nodes that are needed no more once the region is replaced."""
    own = set(region.nodes)
    while lost := {
        node for node in own if node not in region.outputs and any(user not in own for user in node.users)
    }:
        own -= lost
    return frozenset(own)


def is_writable(node: Node) -> bool:
    """Tell whether a node can stand in a file of its own: ATen on tensors, nothing a library would have to bring."""
    if node.op != "call_function":
        return False
    return (
        getattr(node.target, "__name__", "") == "getitem" or getattr(node.target, "namespace", "") == "aten"
    )


def forward_text(region: Region) -> str:
    """Return the region as a function body of tensors a0, a1 ..."""
    names = {node: f"a{place}" for place, node in enumerate(region.inputs)}
    device = next((names[node] for node in region.inputs if tensor_of(node) is not None), None)
    lines, kinds = [], set[str]()
    for place, node in enumerate(region.nodes):
        args = [_written(arg, names, device, kinds) for arg in node.args]
        args += [f"{key}={_written(arg, names, device, kinds)}" for key, arg in node.kwargs.items()]
        names[node] = f"t{place}"
        lines.append(f"{names[node]} = {_call(node, args)}")
    given = [names[node] for node in region.inputs]
    head = []
    if kinds:
        head.append(f"is_wide = torch.float64 in ({', '.join(f'{name}.dtype' for name in given)},)")
    head += [f"{kind} = torch.float64 if is_wide else torch.{kind}" for kind in sorted(kinds)]
    outputs = ", ".join(names[node] for node in region.outputs)
    body = "\n".join(f"        {line}" for line in (*head, *lines, f"return {outputs}"))
    return f"    def forward(self, {', '.join(given)}):\n{body}\n"


def _call(node: Node, args: list[str]) -> str:
    name = str(node.target)
    if getattr(node.target, "__name__", "") == "getitem":
        return f"{args[0]}[{args[1]}]"
    # A view is legal only for the strides it was captured with; a reshape of them is the same view.
    if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        name = "aten.reshape.default"
    if node.target is torch.ops.aten.rms_norm.default and (len(node.args) < 4 or node.args[3] is None):
        # Its own eps is that of the type it works in, which in float64 would be another one.
        args = [*[*args, "None"][:3], repr(torch.finfo(torch.float32).eps)]
    return f"torch.ops.{name}({', '.join(args)})"


def _written(value: Any, names: dict[Node, str], device: str | None, kinds: set[str]) -> str:
    """Return an argument as Python writes it."""
    if isinstance(value, Node):
        return names[value]
    if isinstance(value, list | tuple):
        inner = ", ".join(_written(item, names, device, kinds) for item in value)
        return f"[{inner}]"
    if isinstance(value, torch.dtype):
        if value.is_floating_point:
            kinds.add(str(value).removeprefix("torch."))
            return str(value).removeprefix("torch.")
        return str(value)
    if isinstance(value, torch.device):
        return f"{device}.device" if device else f"torch.device({str(value)!r})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, torch.memory_format | torch.layout):
        return str(value)
    return repr(value)


def source(region: Region, case: Case) -> str:
    """Return the region as a file with `Model`, `get_inputs` and `get_init_inputs`; `case` is the region's own."""
    inputs = "\n".join(f"        {_drawn(case, spec)}," for spec in case.inputs)
    return (
        "import torch\n\n\n"
        "class Model(torch.nn.Module):\n"
        f"{forward_text(region)}\n\n"
        "def laid_out(values, shape, strides):\n"
        "    out = torch.empty_strided(values.shape, strides, dtype=values.dtype)\n"
        "    return out.copy_(values).expand(shape)\n\n\n"
        "def get_inputs():\n"
        f"    return [\n{inputs}\n    ]\n\n\n"
        "def get_init_inputs():\n"
        "    return []\n"
    )


def _drawn(case: Case, spec: TensorSpec) -> str:
    """Return how a tensor of the region's own kind is drawn, as Python writes it."""
    strides = spec.element_strides
    dense = tuple(1 if not stride else extent for extent, stride in zip(spec.shape, strides, strict=True))
    kind = f"torch.{str(torch_dtype(spec.dtype)).removeprefix('torch.')}"
    if spec.dtype in (DType.INT64, DType.INT32):
        values = f"torch.randint({case.axes[index_axis(spec.name)]}, {dense}, dtype={kind})"
    elif spec.dtype is DType.BOOL:
        values = f"torch.rand({dense}) < 0.5"
    else:
        values = f"torch.randn({dense}, dtype={kind})"
        values += ".abs()" if read(spec.name).role is Role.POSITIVE else ""
    return values if spec.is_contiguous else f"laid_out({values}, {spec.shape}, {strides})"


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Return a tensor's shape, type, strides and distance from a cache line."""
    strides = tuple(tensor.stride())
    kind = DTYPES[tensor.dtype]
    behind = int(tensor.storage_offset()) % (LINE // kind.itemsize)
    spec = TensorSpec(name=name, shape=tuple(tensor.shape), dtype=kind, strides=strides, offset=behind)
    return spec.model_copy(update={"strides": None}) if spec.is_contiguous else spec


def case_of(region: Region, given: Sequence[torch.Tensor], *, signed: bool = False) -> Case | None:
    """Return the region as a case of op `graph`, from the values it was given; None if no candidate could serve it.

    Integers are indices, which are drawn from zero up. With others it is a case only if `signed` allows it: of an op
    that draws its own.
    """
    axes: dict[str, int] = {}
    inputs = []
    for place, tensor in enumerate(given):
        if tensor.dtype not in DTYPES:
            return None
        role = Role.SIGNED
        if DTYPES[tensor.dtype] in (DType.INT64, DType.INT32):
            if tensor.numel() and int(tensor.min()) < 0 and not signed:
                return None
            role = Role.INDEX
        elif _is_positive(tensor):
            role = Role.POSITIVE
        name = spelled(Named(False, str(place), role))
        if role is Role.INDEX:
            axes[index_axis(name)] = max(1, int(tensor.max()) + 1) if tensor.numel() else 1
        axes |= {f"{name}:{axis}": extent for axis, extent in enumerate(tensor.shape)}
        inputs.append(spec_of(name, tensor))
    made = [tensor_of(node) for node in region.outputs]
    if not made or any(value is None or DTYPES.get(value.dtype) not in FLOATS for value in made):
        return None
    outputs = tuple(
        TensorSpec(name=f"out{place}", shape=tuple(value.shape), dtype=DTYPES[value.dtype])
        for place, value in enumerate(made)
    )
    kind = outputs[0].dtype
    return Case(
        op=OP,
        axes=axes,
        dtype=kind,
        compute=Compute.STRICT_FP32 if kind is DType.FP32 else Compute.FP32_ACCUMULATE,
        inputs=tuple(inputs),
        outputs=outputs,
    )


def _is_positive(tensor: torch.Tensor) -> bool:
    """Tell whether values are such as a variance or a probability: below zero the region may not be defined."""
    if not tensor.is_floating_point() or isinstance(tensor, torch.nn.Parameter) or tensor.numel() < TELLING:
        return False
    return bool((tensor >= 0).all())


def loaded_text(text: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a region's text as a function of its inputs."""
    module = types.ModuleType("region")
    exec(compile(text, "<region>", "exec"), module.__dict__)
    model = module.Model()

    def call(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        answer = model.forward(*given)
        return tuple(answer) if isinstance(answer, tuple | list) else (answer,)

    return call


def place_of(node: Node) -> str:
    """Return the last line outside the framework behind a node, as `file:line`."""
    framework = str(Path(torch.__file__).parent)
    for line in reversed(str(node.meta.get("stack_trace") or "").splitlines()):
        words = line.strip()
        if words.startswith("File ") and framework not in words:
            path, _, rest = words.removeprefix('File "').partition('", line ')
            return f"{path}:{rest.split(',')[0]}"
    return ""
