"""Putting winners into the model: regions of the captured graph replaced by calls, each guarded, the rest untouched.

Whatever replaces a region is a function of the region's inputs: a certified kernel behind its guards, or, for a round
trip, the region's own text. Where a guard does not hold, that text runs: it is the original code. The rest of the graph
runs as it was captured, or is compiled by Inductor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from kernelwright.core.messages.model import Winner
from kernelwright.core.ports import Match, View
from kernelwright.core.region import GRAPH
from kernelwright.model.capture import Capture, Captured, backend
from kernelwright.model.extract import Found, Site, chosen_sites, extract
from kernelwright.model.graph import Region, loaded_text, own_nodes, place_of, tensor_of
from kernelwright.model.launching import Kernel, check, is_home
from kernelwright.model.launching import open_winner as open_winner
from kernelwright.model.one_launch import Launch, OneLaunch
from kernelwright.model.operators import as_operator
from kernelwright.model.regraph import Replacement, acyclic
from kernelwright.model.regraph import quick as quick
from kernelwright.model.regraph import with_calls as with_calls
from kernelwright.model.seen_through import as_triton_operator, hindrance, is_understood, loaded_source
from kernelwright.model.spliced import SplicedKernel, region_text
from kernelwright.model.tally import Count
from kernelwright.model.tally import Tally as Tally

Rest = Literal["eager", "inductor"]
"""Who runs what is left of the graph: the framework operation by operation, or Inductor."""


@dataclass
class Splicer:
    """Winners to be put into captured graphs; each is loaded once per device."""

    winners: Sequence[Winner]
    tally: Tally
    rest: Rest = "eager"
    launch: Launch = "plain"
    kernels: dict[tuple[str, torch.device], Kernel] = field(default_factory=dict)
    modules: dict[str, ModuleType] = field(default_factory=dict)
    """Triton sources by candidate."""
    launches: WeakSet[OneLaunch] = field(default_factory=WeakSet)
    understood: dict[Any, bool] = field(default_factory=dict)
    """By operator, whether torch sees through it."""

    def __post_init__(self) -> None:
        for winner in self.winners:
            check(winner)
            self.tally.of(winner.case)
        self.by_case = {winner.case.hash: winner for winner in reversed(self.winners) if not winner.region}
        self.by_text = [winner for winner in self.winners if winner.region]

    def __call__(self, captured: Captured) -> Callable[..., Any]:
        """Return a graph with the winners in place, ready to run."""
        graph, kept = self.spliced(captured)
        run = quick(graph).forward if self.rest == "eager" else _Compiled(graph, kept)
        if self.launch == "plain":
            return run
        once = OneLaunch(run, captured, self.tally)
        self.launches.add(once)
        return once

    def forget(self) -> None:
        """Let go of what was recorded: dynamo keeps the graphs it made, and CUDA graphs keep memory."""
        for once in self.launches:
            once.forget()

    def spliced(self, captured: Captured) -> tuple[GraphModule, list["Kept"]]:
        """Return the graph with every region that a winner serves replaced; the first of two that overlap stays.

        What a region is, is checked here again, on this graph's own values: it may be another than the winner was made
        for.
        """
        if not self.winners:
            return captured.graph, []
        ops = None if self.by_text else {winner.case.op for winner in self.winners}
        found = extract(Capture([captured]), with_fusions=bool(self.by_text), only=ops)
        taken: set[Node] = set()
        kept: list[Kept] = []
        for one in found:
            winner = self._winner(one)
            for site in one.sites if winner is not None else ():
                assert winner is not None
                device = tensor_of(site.region.inputs[0]).device
                if taken & own_nodes(site.region) or not is_home(winner, device):
                    continue
                taken |= own_nodes(site.region)
                kept.append(self._kept(winner, site, device))
        stay = {region for region, _ in acyclic(captured.graph, [(made.region, made.call) for made in kept])}
        kept = [made for made in kept if made.region in stay]
        for made in kept:
            made.spliced.count.sites.append(place_of(made.region.nodes[-1]))
        return with_calls(captured.graph, [(made.region, made.call) for made in kept]), kept

    def _winner(self, one: Found) -> Winner | None:
        """Return who serves a problem: by its case, and for a region without a name by what it computes."""
        if one.op != GRAPH:
            return self.by_case.get(one.case.hash)
        text = region_text(one.sites[0].region) + "\n"
        layouts = [spec.model_copy(update={"name": ""}) for spec in one.case.inputs]
        for winner in self.by_text:
            # The names tell what values were seen, and these change from call to call.
            theirs = [spec.model_copy(update={"name": ""}) for spec in winner.case.inputs]
            if winner.region.startswith(text) and theirs == layouts:
                return winner
        return None

    def _kept(self, winner: Winner, site: Site, device: torch.device) -> "Kept":
        key = (winner.case.hash + winner.candidate_hash, device)
        if key not in self.kernels:
            self.kernels[key] = open_winner(winner, device)
        match = site.match or _whole(site.region, winner)
        spliced = SplicedKernel(winner.case, self.kernels[key], (site.region, match), self.tally)
        if self.rest == "eager":
            return Kept(site.region, spliced, spliced)
        if call := self._seen_through(winner, spliced):
            return Kept(site.region, call, spliced, spliced.count)
        return Kept(site.region, as_operator(spliced, _content(winner, spliced)), spliced)

    def _seen_through(self, winner: Winner, spliced: SplicedKernel) -> Any:
        """Return a winner as an operator Inductor sees through, or None."""
        if hindrance(winner) or not spliced.is_served:
            return None
        if winner.candidate_hash not in self.modules:
            self.modules[winner.candidate_hash] = loaded_source(winner.source)
        module = self.modules[winner.candidate_hash]
        call = as_triton_operator(winner, spliced, module)
        if call not in self.understood:
            self.understood[call] = is_understood(call, winner, spliced, module)
        return call if self.understood[call] else None


@dataclass(frozen=True)
class Kept:
    """A region and what stands in its place."""

    region: Region
    call: Any
    """A function, or an operator."""
    spliced: SplicedKernel
    counted: Count | None = None
    """For a kernel that is part of compiled code and cannot count for itself."""


class _Compiled:
    """A spliced graph as Inductor compiles it, with the first call: then no other compilation is under way."""

    def __init__(self, graph: GraphModule, kept: Sequence[Kept]) -> None:
        self.graph, self.kept = graph, kept  # the operators' kernels live as long as the graph
        self.counts = [one.counted for one in kept if one.counted is not None]
        self.run: Callable[..., Any] | None = None

    def __call__(self, *given: Any) -> Any:
        if self.run is None:
            from torch._inductor.compile_fx import compile_fx

            with (
                _disable_current_modes()
            ):  # AOTAutograd watches the first call of what it compiled through one
                self.run = compile_fx(self.graph, list(given))
        for count in self.counts:
            count.calls += 1
        return self.run(*given)


def _content(winner: Winner, spliced: SplicedKernel) -> str:
    """Return all that makes a spliced kernel what it is, besides the region's text."""
    files = [winner.artefact_hash, *(unit.binary_hash for unit in winner.units)]
    steps = [(bound.place, bound.view.steps) for bound in spliced.inputs]
    plan = winner.plan.model_dump_json() if winner.plan else ""
    return "\0".join(
        (winner.case.hash, winner.candidate_hash, *files, plan, repr(steps), repr(spliced.announced))
    )


def _whole(region: Region, winner: Winner) -> Match:
    """Return how a region without a name is its own case: input by input, output by output."""
    names = [spec.name for spec in winner.case.inputs]
    inputs: Mapping[str, View] = {name: View(node) for name, node in zip(names, region.inputs, strict=True)}
    return Match(winner.case, inputs, tuple(View(node) for node in region.outputs))


def compiled_with(
    module: torch.nn.Module, winners: Sequence[Winner], tally: Tally, rest: Rest = "eager"
) -> Callable[..., Any]:
    """Return the model as captured, with the winners in place; no winners gives the same graph unchanged."""
    finish = Splicer(winners, tally, rest)
    return torch.compile(module, backend=backend(module, finish, tally.left_aside), dynamic=False)


def with_own_regions(
    module: torch.nn.Module, tally: Tally, seen: list[Found] | None = None
) -> Callable[..., Any]:
    """Return the model with a disjoint set of its problems replaced by their own text: extracted and put back.

    What is found in each graph is added to `seen`.
    """

    def finish(captured: Captured) -> Callable[..., Any]:
        found = extract(Capture([captured]))
        if seen is not None:
            seen.extend(found)
        texts = {place: loaded_text(one.source) for place, one in enumerate(found)}

        def counted(place: int) -> Callable[..., tuple[Any, ...]]:
            def region(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
                tally.regions += 1
                return texts[place](*given)

            return region

        sites = chosen_sites(found)
        calls: list[Replacement] = [(site.region, counted(place)) for place, site in sites]
        return quick(with_calls(captured.graph, calls)).forward

    return torch.compile(module, backend=backend(module, finish, tally.left_aside), dynamic=False)
