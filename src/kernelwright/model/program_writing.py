"""From a function's captured graph, with winners in it, to the steps that later processes run.

1. The graph is captured and the winners are put in, exactly as into a model.
2. Every winner becomes a step; the operations between two of them become one step, as text.
3. The same steps with the regions' own text in the place of the kernels must give the original's answer to the bit, and
   with the kernels every guard must hold. Otherwise the function is left alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node

from kernelwright.core.messages.function import ProgramWritten
from kernelwright.core.messages.model import Winner
from kernelwright.core.region import MadeInput
from kernelwright.core.tuned import KernelStep, LayoutStep, Program, Step, TextStep
from kernelwright.model.capture import Captured, capture, mutated, placeholders
from kernelwright.model.extract import Site
from kernelwright.model.function import FunctionModule
from kernelwright.model.graph import is_writable, loaded_text, region_of, spec_of, tensor_of
from kernelwright.model.program import loaded, written_out
from kernelwright.model.regraph import laid_out
from kernelwright.model.splice import Kept, Splicer
from kernelwright.model.spliced import SplicedKernel, region_text
from kernelwright.model.tally import Tally
from kernelwright.model.winner_files import winners_of

Form = Literal["tensor", "tuple", "list"]


class LeftAlone(ValueError):
    """Why a function cannot be written as steps, in words."""


@dataclass
class _Noting(Splicer):
    """Puts winners into a graph and notes which one went where."""

    noted: dict[int, tuple[Winner, Site]] = field(default_factory=dict)
    """By identity of the spliced kernel."""

    def _kept(self, winner: Winner, site: Site, device: torch.device) -> Kept:
        made = super()._kept(winner, site, device)
        self.noted[id(made.spliced)] = (winner, site)
        return made


@dataclass
class _Writer:
    """The steps so far, and the number of every value they make."""

    splicer: _Noting
    numbers: dict[Node, int]
    unused: "count[int]"
    steps: list[Step] = field(default_factory=list)
    originals: list[Callable[..., Any]] = field(default_factory=list)
    """Per step what computes the same without kernels."""
    pending: list[Node] = field(default_factory=list)
    """Operations not yet written."""

    def number(self, node: Node) -> int:
        if node not in self.numbers:
            self.numbers[node] = next(self.unused)
        return self.numbers[node]

    def add(self, step: Step, original: Callable[..., Any]) -> None:
        self.steps.append(step)
        self.originals.append(original)

    def flush(self) -> None:
        """Write the pending operations as one step."""
        if self.pending:
            region = region_of(self.pending)
            text = region_text(region)
            given, made = (tuple(map(self.number, nodes)) for nodes in (region.inputs, region.outputs))
            self.add(TextStep(source=text, inputs=given, outputs=made), loaded_text(text))
            self.pending = []

    def kernel(self, node: Node, spliced: SplicedKernel) -> None:
        """Write a winner; its outputs are values of their own."""
        self.flush()
        winner, site = self.splicer.noted[id(spliced)]
        parts = {part.args[1]: part for part in node.users}
        views = site.match.outputs if site.match else ()
        step = KernelStep(
            entry=next(place for place, one in enumerate(self.splicer.winners) if one is winner),
            inputs=tuple(map(self.number, node.args)),
            outputs=tuple(
                self.number(parts[place]) if place in parts else next(self.unused)
                for place in range(len(site.region.outputs))
            ),
            given=tuple(spec_of("", tensor_of(one)) for one in site.region.inputs),
            made=tuple(
                MadeInput(name=bound.spec.name, place=bound.place, steps=bound.view.steps)
                for bound in spliced.inputs
            ),
            returned=tuple(view.steps for view in views) or ((),) * len(site.region.outputs),
        )
        self.add(step, lambda given: spliced.original(*given))

    def take(self, node: Node) -> None:
        """Write one node, or keep it for the next text."""
        if isinstance(node.target, SplicedKernel):
            self.kernel(node, node.target)
        elif node.target is laid_out:
            self.flush()
            value, strides = node.args
            step = LayoutStep(
                strides=tuple(strides), inputs=(self.number(value),), outputs=(self.number(node),)
            )
            self.add(step, laid_out)
        elif not any(isinstance(one.target, SplicedKernel) for one in node.all_input_nodes):
            self.pending.append(node)


def write_program(module: FunctionModule, kernels: Path) -> ProgramWritten:
    """Return a function's call as steps with the kernels of a folder, or why it is left alone."""
    given = module.sample_inputs(1)
    try:
        with torch.inference_mode():
            return ProgramWritten(program=_program(module, given, kernels))
    except LeftAlone as reason:
        return ProgramWritten(program=None, reason=str(reason))


def _program(module: FunctionModule, given: tuple[torch.Tensor, ...], kernels: Path) -> Program:
    captured = captured_whole(module, given)
    refuse_effects(captured)
    places = places_of(captured, given)
    splicer = _Noting(winners_of(kernels), Tally())
    graph, kept = splicer.spliced(captured)
    if not kept:
        raise LeftAlone("no kernel of the folder has a place in it")
    writer = _Writer(splicer, places, count(len(given)))
    returned = _written(graph, writer)
    answer = module(*given)
    form: Form = "tensor" if isinstance(answer, torch.Tensor) else "list" if type(answer) is list else "tuple"
    if form != "tensor" and type(answer) not in (tuple, list):
        raise LeftAlone(f"it returns a {type(answer).__name__}")
    program = Program(tensors=len(given), steps=tuple(writer.steps), outputs=returned, form=form)
    _check(program, writer.originals, given, (answer, kernels))
    return program


def captured_whole(module: FunctionModule, given: tuple[torch.Tensor, ...]) -> Captured:
    """Return the one graph of a function; raises for one that is captured in pieces."""
    found = capture(module, given)
    if len(found.graphs) != 1:
        where = f" at {found.breaks[0].where}: {found.breaks[0].reason}" if found.breaks else ""
        raise LeftAlone(f"it is captured in {len(found.graphs)} graphs{where}")
    return found.graphs[0]


def refuse_effects(captured: Captured) -> None:
    """Raise for a graph that does more than compute values from its arguments."""
    if mutated(captured.graph):
        raise LeftAlone("it writes to its arguments")
    for node in captured.graph.graph.nodes:
        if node.op == "get_attr":
            raise LeftAlone("it holds a tensor that is no argument")
        if node.op != "call_function":
            continue
        if not is_writable(node):
            raise LeftAlone(f"it calls {node.target}, which is no operation of ATen")
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise LeftAlone(f"it draws random numbers ({node.target})")


def places_of(captured: Captured, given: Sequence[torch.Tensor]) -> dict[Node, int]:
    """Return which tensor of the call each placeholder is."""
    numbers = {id(tensor): place for place, tensor in enumerate(given)}
    found = {}
    for node, value in zip(placeholders(captured.graph), captured.arguments, strict=True):
        if id(value) not in numbers:
            raise LeftAlone("it reads a tensor that is no argument")
        found[node] = numbers[id(value)]
    return found


def _written(graph: GraphModule, writer: _Writer) -> tuple[int, ...]:
    """Write every node in order, and return the values that are returned."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            writer.take(node)
        elif node.op == "output":
            writer.flush()
            if not all(isinstance(one, Node) for one in node.args[0]):
                raise LeftAlone("it returns more than tensors")
            return tuple(map(writer.number, node.args[0]))
    raise LeftAlone("it returns nothing")


def _check(
    program: Program,
    originals: Sequence[Callable[..., Any]],
    given: Sequence[torch.Tensor],
    wanted: tuple[Any, Path],
) -> None:
    """Raise unless the steps are the function: to the bit without kernels, with every guard holding with them."""
    answer, kernels = wanted
    expected = _listed(answer)
    plain = _listed(written_out(program, originals)(*given))
    alike = len(plain) == len(expected) and all(
        ours.stride() == theirs.stride() and torch.equal(torch.nan_to_num(ours), torch.nan_to_num(theirs))
        for ours, theirs in zip(plain, expected, strict=True)
    )
    if not alike:
        raise LeftAlone("its steps do not give the original's answer to the bit")
    device = given[0].device
    served = loaded(program, kernels, device, Tally())(*given)
    if isinstance(served, str):
        raise LeftAlone(f"a kernel does not run where it was put: {served}")
    for ours, theirs in zip(_listed(served), expected, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype or ours.stride() != theirs.stride():
            raise LeftAlone("with the kernels its answer has another form")
        if not _is_near(ours, theirs):
            raise LeftAlone("with the kernels its answer is another one")


def _is_near(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Tell whether two answers differ by rounding alone.

    The kernels are certified; what may be wrong here is where they were put. Half the digits of the
    type must agree; a value in another place costs all of them.
    """
    if not theirs.is_floating_point():
        return torch.equal(ours, theirs)
    finite = torch.isfinite(theirs)
    difference, size = (ours - theirs)[finite].double(), theirs[finite].double()
    allowed = torch.finfo(theirs.dtype).eps ** 0.5 * size.square().sum().sqrt()
    return bool(torch.equal(torch.isfinite(ours), finite) and difference.square().sum().sqrt() <= allowed)


def _listed(answer: Any) -> list[torch.Tensor]:
    return [answer] if isinstance(answer, torch.Tensor) else list(answer)
