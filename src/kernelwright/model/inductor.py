"""The baseline to be beaten: torch.compile, watched, so that its kernels are known by the operations they came from.

1. Inductor compiles as it always does; we stand between it and AOTAutograd and look at the graph it was given.
2. It is asked to note which nodes a kernel was made of. Those nodes tell which calls of dynamo's graph they came from,
   and our captured graph was made of the same calls, by the same names.
3. Under the profiler the kernels of a call appear in the order in which the generated code calls them.

The notes are made for debugging and may change with a release: where something is not as expected, a graph has no
kernels here and its times are estimated.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kernelwright.model.fusion import computes
from kernelwright.model.marks import CALL, device_us

SETTINGS: dict[str, Any] = {
    "trace.provenance_tracking_level": 1,
    # A kernel of its own name in the profile; without a profiler that costs a look at one flag per kernel.
    "cpp.enable_kernel_profile": True,
    # A process compiles one model: headers precompiled for the next cost 20 s, the probe of instruction sets 10 s.
    "cpp_cache_precompile_headers": False,
    "cpp.vec_isa_ok": True,
    # What comes out of a cache comes without the notes.
    "fx_graph_cache": False,
}
HANDLE = re.compile(r"# \[Provenance debug handles\] (\S+:\d+)$", re.M)
UNEXPECTED = (AttributeError, KeyError, IndexError, TypeError, ValueError)


@dataclass(frozen=True)
class Kernel:
    """One kernel call of a compiled graph."""

    name: str
    """As the generated code has it: `cpp_fused_add_3`, `extern_kernels.mm`."""
    origins: frozenset[str]
    """Names of the calls in dynamo's graph it computes."""


@dataclass(frozen=True)
class KernelTime:
    """One kernel call in a profile."""

    name: str
    time_us: float


@dataclass
class Compiler:
    """A backend of torch.compile that is Inductor and keeps what it notes."""

    graphs: list[tuple[Kernel, ...]] = field(default_factory=list)
    """Per compiled graph its kernels in the order of their calls; none where they could not be told."""

    def backend(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph of dynamo."""
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx

        with config.patch(known_settings(config)):
            return compile_fx(graph, inputs, inner_compile=self._compiled)

    def _compiled(self, graph: GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx_inner

        made = compile_fx_inner(graph, inputs, **options)
        try:
            self.graphs.append(kernels_of(made.source_code, made.inductor_provenance_mapping_str, graph))
        except UNEXPECTED:
            self.graphs.append(())
        return made


def known_settings(config: Any) -> dict[str, Any]:
    """Return our settings without those this release does not have."""
    known = config.get_config_copy()
    return {name: value for name, value in SETTINGS.items() if name in known}


def origin(node: Node) -> str:
    """Return the name of the call in dynamo's graph a node was made of; its own if it is one."""
    came_from = node.meta.get("from_node") or ()
    return str(came_from[0].name) if came_from else str(node.name)


def kernels_of(source: str, notes: str, graph: GraphModule) -> tuple[Kernel, ...]:
    """Return the kernels of a compiled graph, from its generated code and Inductor's notes."""
    nodes = json.loads(notes)["cppCodeToPost"]
    # A view that was left of a call computes nothing: the kernel that reads it is no part of that call.
    origins = {
        node.name: origin(node) for node in graph.graph.nodes if node.op == "call_function" and computes(node)
    }
    return tuple(
        Kernel(
            handle.rpartition(":")[0], frozenset(origins[name] for name in nodes[handle] if name in origins)
        )
        for handle in HANDLE.findall(source)
    )


def is_call_of(kernel: Kernel, event_name: str) -> bool:
    """Tell whether an event of a profile can be this kernel: a fused one by name, a library's by its last word."""
    if "fused" in kernel.name:
        return event_name.endswith(kernel.name)
    name = kernel.name.removesuffix(".default").removesuffix(".out").rpartition(".")[2]
    return name in event_name or "fused" not in event_name


def kernel_times(events: Sequence[Any], on_gpu: bool) -> list[list[KernelTime]]:
    """Return, per call of a compiled graph in a profile, its kernels in order.

    On a GPU a kernel's time is that of what it launched there, on a CPU its own.
    """
    found = []
    for event in events:
        if not event.name.startswith(CALL):
            continue
        children = sorted(event.cpu_children, key=lambda one: one.time_range.start)
        times = [
            KernelTime(one.name, device_us(one) if on_gpu else float(one.cpu_time_total)) for one in children
        ]
        # Calls of the driver lie between the kernels, and launch nothing.
        found.append([one for one in times if one.time_us > 0 or not on_gpu])
    return found


def matched(seen: Sequence[KernelTime], graphs: Sequence[Sequence[Kernel]]) -> int | None:
    """Return which compiled graph a call in a profile was of, by its sequence of kernels; None if of none."""
    for number, kernels in enumerate(graphs):
        if len(kernels) == len(seen) and all(map(is_call_of, kernels, (one.name for one in seen))):
            return number
    return None


def profiled(call: Callable[[], Any], calls: int, on_gpu: bool) -> list[Any]:
    """Return the events of some calls under the profiler."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    if on_gpu:  # what was asked for before would end inside
        torch.cuda.synchronize()
    with profile(activities=kinds) as found:
        for _ in range(calls):
            call()
        if on_gpu:
            torch.cuda.synchronize()
    return list(found.events())
