"""`torch.compile(model, backend="kernelwright")`: every graph dynamo captures gets the winners that fit it.

A graph of fixed sizes is spliced at once. Of a graph whose sizes are left open, one is made for each size that can have
a winner, with the first call of that size; other sizes run the graph as it is, and are counted.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kernelwright.core.messages.model import Winner
from kernelwright.model.capture import backend, placeholders
from kernelwright.model.splice import Splicer

MOST_SIZES = 64
"""Sizes one open graph is spliced for; each costs a capture and its memory."""


class Weights:
    """Parameters and buffers among the inputs of one graph, where the module itself is not at hand."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        # Dynamo marks the buffers of a module, whose addresses do not change.
        self.places = {
            place
            for place, one in enumerate(inputs)
            if isinstance(one, torch.nn.Parameter)
            or getattr(one, "_dynamo_static_input_type", None) is not None
        }
        self.found = [inputs[place] for place in sorted(self.places)]

    def parameters(self) -> list[Any]:
        """Return them all."""
        return self.found

    def buffers(self) -> list[Any]:
        """Return none: they are among the parameters."""
        return []


class Backend:
    """A backend of torch.compile that splices."""

    def __init__(self, splicer: Splicer) -> None:
        self.splicer = splicer

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return what dynamo calls in the place of a graph."""
        return self._counted(self._made(graph, inputs), "graphs")

    def _made(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in inputs):
            return self._counted(self._as_it_is(graph, inputs), "aside")
        if any(_is_open(one) for one in _examples(graph)):
            original = self._as_it_is(copy.deepcopy(graph), inputs)
            sizes = Sizes(graph, Weights(inputs).places, self.splicer.winners)
            return BySize(graph, sizes, self._served, self._counted(original, "unserved"))
        return self._spliced(graph, inputs)

    def _served(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any] | None:
        """Return a graph with winners in it, None if it has a place for none of them."""
        before = self.splicer.tally.sites
        made = self._spliced(graph, inputs)
        return made if self.splicer.tally.sites > before else None

    def _spliced(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = backend(Weights(inputs), self.splicer)(graph, inputs)
        return made

    def _as_it_is(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a graph as the framework runs it, gradients included."""
        if self.splicer.rest == "eager":
            return graph.forward
        from torch._inductor.compile_fx import compile_fx

        compiled: Callable[..., Any] = compile_fx(graph, list(inputs))
        return compiled

    def _counted(self, run: Callable[..., Any], what: str) -> Callable[..., Any]:
        tally = self.splicer.tally

        def counted(*given: Any) -> Any:
            setattr(tally, what, getattr(tally, what) + 1)
            return run(*given)

        return counted


def _examples(graph: GraphModule) -> list[Any]:
    return [node.meta.get("example_value") for node in placeholders(graph)]


def _is_open(example: Any) -> bool:
    """Tell whether a size was left open, or a tensor has one."""
    sizes = example.shape if isinstance(example, torch.Tensor) else (example,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


class Sizes:
    """The open sizes of a graph, and which of them can have a winner."""

    def __init__(self, graph: GraphModule, weights: Collection[int], winners: Sequence[Winner]) -> None:
        examples = _examples(graph)
        self.places = [place for place, one in enumerate(examples) if isinstance(one, torch.SymInt)]
        self.symbols = [examples[place].node.expr for place in self.places]
        nodes = list(graph.graph.nodes)
        given = placeholders(graph)
        fixed = {given[place] for place in weights}
        self.fixed = {_elements(node) for node in fixed}
        self.open = {_elements(node) for node in nodes if node not in fixed} - {None}
        symbols = {symbol for one in self.open if hasattr(one, "free_symbols") for symbol in one.free_symbols}
        # A size that is told by a tensor's shape alone is not looked up: then nothing is served.
        known = winners if symbols <= set(self.symbols) else ()
        self.wanted = [[spec.numel for spec in winner.case.inputs] for winner in known]

    def of(self, given: Sequence[Any]) -> tuple[int, ...]:
        """Return the sizes of a call."""
        return tuple(given[place] for place in self.places)

    def can_be_served(self, sizes: tuple[int, ...]) -> bool:
        """Tell whether all tensors of some winner can occur at these sizes, its first one as no weight."""
        values = dict(zip(self.symbols, sizes, strict=True))
        known = {int(one.subs(values)) if hasattr(one, "subs") else one for one in self.open}
        return any(first in known and {*rest} <= known | self.fixed for first, *rest in self.wanted)


class BySize:
    """A graph whose sizes are open: a call looks up the one made for its sizes."""

    def __init__(
        self,
        graph: GraphModule,
        sizes: Sizes,
        make: Callable[[GraphModule, Sequence[Any]], Callable[..., Any] | None],
        original: Callable[..., Any],
    ) -> None:
        self.graph, self.sizes, self.make, self.original = graph, sizes, make, original
        self.made: dict[tuple[int, ...], Callable[..., Any]] = {}
        self.spliced = 0

    def __call__(self, *given: Any) -> Any:
        """Run the graph of the sizes of this call."""
        sizes = self.sizes.of(given)
        run = self.made.get(sizes)
        if run is None:
            run = self.made[sizes] = self._made(sizes, given)
        return run(*given)

    def _made(self, sizes: tuple[int, ...], given: Sequence[Any]) -> Callable[..., Any]:
        if self.spliced >= MOST_SIZES or not self.sizes.can_be_served(sizes):
            return self.original
        self.spliced += 1
        return self.make(copy.deepcopy(self.graph), given) or self.original


def _elements(node: Node) -> Any:
    """Return how many elements a node's tensor has: a number, or an expression of the open sizes."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return None
    count = value.numel()
    return count.node.expr if isinstance(count, torch.SymInt) else count
