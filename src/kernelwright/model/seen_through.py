"""Triton winners as `torch.library.triton_op`: Inductor sees the kernels themselves and plans memory around them.

Triton compiles the kernel anew from its certified source, so this is for plans Triton's own launcher can carry out
exactly: numbers whose types it would choose alike, its own options, no scratch memory. All others, and CUDA, are called
as an operator of their own (`model/operators`).
"""

import inspect
import json
import operator
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import tracing
from torch._subclasses import FakeTensorMode

from kernelwright.backends import triton as language
from kernelwright.backends._triton_source import imported, kernel_named
from kernelwright.core.errors import BlobMissing
from kernelwright.core.frozen import digest
from kernelwright.core.messages.model import Winner
from kernelwright.core.plan import BufferArg, Launch, LaunchPlan, ScalarArg
from kernelwright.model.spliced import SplicedKernel

LIBRARY = "kernelwright_triton"
OPTIONS = frozenset(("num_warps", "num_stages", "num_ctas"))
"""What torch hands on to Triton; a plan with others is not seen through."""
NUMBERS = frozenset(("i1", "i32", "i64", "fp32"))
WIDE = 1 << 31
"""Elements beyond which a number that the plan passes as 64 bits must not become one of 32."""


def hindrance(winner: Winner) -> str:
    """Return why Inductor cannot see through a winner, in words; empty if it can."""
    if winner.backend != "triton" or winner.plan is None:
        return f"{winner.backend} kernels are opaque"
    if "gluon" in winner.source:
        return "Gluon kernels are opaque"
    if winner.plan.tensor_maps:
        return "tensor maps are not Triton's"
    specs = {spec.name: spec for spec in (*winner.case.inputs, *winner.case.outputs)}
    if any(spec.storage_elements >= WIDE for spec in specs.values()):
        return "a tensor has more than 2^31 elements"
    for unit in winner.units:
        if json.loads(Path(unit.facts).read_bytes()).get("global_scratch_size"):
            return "the kernel needs scratch memory"
    for launch in winner.plan.launches:
        if stray := launch.meta.keys() - OPTIONS:
            return f"torch does not hand on {sorted(stray)[0]}"
        if launch.cluster != (1, 1, 1) or launch.shared_bytes:
            return "clusters and shared memory of the plan's own are not Triton's"
        for arg in launch.args:
            if isinstance(arg, ScalarArg) and arg.type not in NUMBERS:
                return f"Triton would not pass {arg.type}"
            if isinstance(arg, BufferArg) and arg.offset_bytes and arg.name in specs:
                return "a pointer into the middle of a tensor"
    return ""


def loaded_source(source: str) -> ModuleType:
    """Return a winner's file as a module; what the static guards refuse is not imported."""
    if reason := language.check(source):
        raise BlobMissing(digest(source), f"is no Triton source: {reason}")
    folder = tempfile.TemporaryDirectory(prefix="kernelwright-")
    path = Path(folder.name) / f"winner_{digest(source)[:16]}.py"
    path.write_text(source)
    module = imported(path)
    module.__dict__["_folder"] = folder  # jitted functions may want to read their file again
    return module


def _names(launch: Launch, kernel: Any) -> list[str]:
    """Return the kernel's own names of what a launch passes at run time."""
    return [name for name in kernel.arg_names if name not in launch.constants]


def _values(
    launch: Launch, kernel: Any, buffers: Mapping[str, torch.Tensor], spaces: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Return all arguments of a launch by the names the kernel gives them."""
    values: list[Any] = []
    for arg in launch.args:
        if isinstance(arg, ScalarArg):
            values.append(arg.value)
        elif isinstance(arg, BufferArg):
            space = spaces.get(arg.name)
            values.append(buffers[arg.name] if space is None else space[arg.offset_bytes :])
    return {**dict(zip(_names(launch, kernel), values, strict=True)), **launch.constants, **launch.meta}


def _body(
    plan: LaunchPlan, module: ModuleType, spliced: SplicedKernel, names: Sequence[str]
) -> Callable[..., Any]:
    """Return the plan as torch calls: memory from torch, launches through `wrap_triton`."""
    kernels = {launch.kernel: kernel_named(module, launch.kernel) for launch in plan.launches}

    def body(*given: torch.Tensor) -> list[torch.Tensor]:
        device = given[0].device
        tensors = [bound.view.applied(given[bound.place]) for bound in spliced.inputs]
        outs = [torch.empty(shape, dtype=kind, device=device) for _, shape, kind in spliced.outputs]
        buffers = dict(zip(names, (*tensors, *outs), strict=True))
        spaces = {}
        for space in plan.workspaces:
            make = torch.zeros if space.zero_fill else torch.empty
            spaces[space.name] = make(max(space.nbytes, 16), dtype=torch.uint8, device=device)
        for launch in plan.launches:
            if all(launch.grid):
                kernel = kernels[launch.kernel]
                torch.library.wrap_triton(kernel)[launch.grid](**_values(launch, kernel, buffers, spaces))
        return spliced.placed(outs)

    return body


def as_triton_operator(winner: Winner, spliced: SplicedKernel, module: ModuleType) -> Any:
    """Return the operator of a winner at a site: one per content, because torch keeps operators for good."""
    assert winner.plan is not None
    steps = [(bound.place, bound.view.steps) for bound in spliced.inputs]
    content = [winner.source, winner.plan.model_dump_json(), winner.case.hash, spliced.text, repr(steps)]
    placed = [(view.steps if view else (), shape) for view, shape, _ in spliced.outputs]
    content += [repr(placed), repr(spliced.announced)]
    name = f"{winner.case.op}_{digest(chr(0).join(content))[:24]}"
    known = getattr(torch.ops, LIBRARY)
    if not hasattr(known, name):
        names = [spec.name for spec in (*winner.case.inputs, *winner.case.outputs)]
        body = _body(winner.plan, module, spliced, names)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        given = [inspect.Parameter(f"a{n}", kind, annotation=torch.Tensor) for n in range(len(spliced.given))]
        body.__signature__ = inspect.Signature(given, return_annotation=list[torch.Tensor])  # type: ignore[attr-defined]
        torch.library.triton_op(f"{LIBRARY}::{name}", body, mutates_args=())
    return getattr(known, name).default


def is_understood(call: Any, winner: Winner, spliced: SplicedKernel, module: ModuleType) -> bool:
    """Tell whether torch knows that the kernels write to nothing but outputs and workspaces.

    It reads that off the compiled kernel. Where it cannot, it takes every argument for written to, and copies them all.
    """
    assert winner.plan is not None
    graph = torch.fx.Graph()
    given = [graph.placeholder(f"a{place}") for place in range(len(spliced.given))]
    graph.output((graph.call_function(operator.getitem, (graph.call_function(call, tuple(given)), 0)),))
    cloned: list[set[str]] = []

    def look(lowered: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        cloned.extend(
            set(node.kwargs["tensors_to_clone"])
            for node in lowered.graph.nodes
            if "tensors_to_clone" in node.kwargs
        )
        return lowered.forward

    with FakeTensorMode(), torch.no_grad():
        fakes = [
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
            for one in spliced.given
        ]
    with torch.no_grad(), tracing(None):  # another compilation is under way, and keeps notes of its own
        traced = torch.fx.GraphModule({}, graph)
        aot_module_simplified(traced, fakes, fw_compiler=look, inference_compiler=look, decompositions={})
    inputs = {spec.name for spec in winner.case.inputs}
    read = []
    for launch in (one for one in winner.plan.launches if all(one.grid)):
        names = _names(launch, kernel_named(module, launch.kernel))
        pairs = zip(names, launch.args, strict=True)
        read.append({name for name, arg in pairs if isinstance(arg, BufferArg) and arg.name in inputs})
    return len(cloned) == len(read) and not any(a & b for a, b in zip(cloned, read, strict=True))
