"""The time of torch.compile's kernels, shared out to the regions whose operations they compute."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from kernelwright.model.fusion import computes
from kernelwright.model.inductor import Compiler, Kernel, KernelTime, matched, origin
from kernelwright.model.marks import Key, Watch
from kernelwright.model.partition import Partition, summed

Weights = dict[str, dict[int, float]]
"""Call of dynamo's graph to row to the time its operations take in the captured graph."""


@dataclass(frozen=True)
class Block:
    """A few calls under the profiler, and how long the same calls take without it, right beside them."""

    graph_calls: Sequence[Sequence[KernelTime]]
    """Every call of a compiled graph, with its kernels in order."""
    calls: int
    """How many calls of the model these are."""
    plain_us: float
    """One call without the profiler."""
    busy_us: float = 0.0
    """How long the GPU worked in a call, whoever launched it; 0 on a CPU."""


def middle(values: Sequence[float]) -> list[int]:
    """Return the places of the middle half of some values: a preempted call moves no mean over these."""
    order = sorted(range(len(values)), key=values.__getitem__)
    cut = len(values) // 4
    return order[cut : len(values) - cut]


@dataclass
class CompiledAccount:
    """Kernel times as they come in, set by set."""

    graphs: Sequence[tuple[Kernel, ...]]
    """What was compiled."""
    weights: Sequence[Weights]
    """Per captured graph, which rows an operation of dynamo's belongs to."""
    captured: Sequence[float]
    """Per row its time in the captured graph."""
    rows: list[float] = field(default_factory=list)
    """Per row the time of kernels that are known to be its own."""
    busy_us: float = 0.0
    """Time of all kernels in an average call."""
    untold_us: float = 0.0
    """Of these the ones in graphs whose kernels could not be told: shared out like the captured time."""
    stray_us: float = 0.0
    """Of these the ones that no region's operation was found in, or that no compiled graph launched."""
    kernels: int = 0
    """Kernels of one call of every set."""
    linked: int = 0
    """Of these the ones that belong to regions by their origin."""

    @property
    def is_estimated(self) -> bool:
        """Tell whether a time was shared out without knowing whose it is."""
        return self.untold_us > 0

    def add(self, blocks: Sequence[Block], total_us: float, weight: float) -> None:
        """Take in one set: its kernels in proportion to the calls beside them, one of which takes `total_us`."""
        times = [self._times(block) for block in blocks]
        ratios = [sum(one.values()) / block.plain_us for one, block in zip(times, blocks, strict=True)]
        kept = [place for place in middle(ratios) if times[place]]
        if not kept:
            return
        busy = weight * total_us * median(ratios)
        outside = [block.busy_us / block.plain_us - own for block, own in zip(blocks, ratios, strict=True)]
        self.stray_us += max(0.0, weight * total_us * median(outside))
        self.busy_us += max(0.0, weight * total_us * median(outside))
        for number, place in {key for one in kept for key in times[one]}:
            shares = [times[one].get((number, place), 0.0) / sum(times[one].values()) for one in kept]
            time_us = busy * mean(shares)
            if number is None:
                self.kernels += 1
                self.untold_us, self.busy_us = self.untold_us + time_us, self.busy_us + time_us
            else:
                self._share(self.graphs[number][place], number, time_us)

    def _times(self, block: Block) -> dict[tuple[int | None, int], float]:
        """Return the time of every kernel in a call, by compiled graph, None for an unknown one, and place."""
        found: dict[tuple[int | None, int], float] = defaultdict(float)
        for call in block.graph_calls:
            number = matched(call, self.graphs)
            for place, one in enumerate(call):
                found[number, place] += one.time_us / block.calls
        return dict(found)

    def _share(self, kernel: Kernel, number: int, time_us: float) -> None:
        """Give a kernel's time to the rows its operations belong to, as they share it in the captured graph."""
        self.kernels += 1
        self.busy_us += time_us
        parts: dict[int, float] = defaultdict(float)
        for name in kernel.origins:
            for row, us in self.weights[number].get(name, {}).items():
                parts[row] += us
        total = sum(parts.values())
        if not total:
            self.stray_us += time_us
            return
        self.linked += 1
        for row, us in parts.items():
            self.rows[row] += time_us * us / total

    def shared_out(self) -> tuple[list[float], float]:
        """Return the time of every row, and of the kernels that belong to none."""
        total = sum(self.captured) or 1.0
        rows = [own + self.untold_us * us / total for own, us in zip(self.rows, self.captured, strict=True)]
        return rows, self.stray_us


def compiled_account(
    compiler: Compiler, watch: Watch, rows: Partition, times: Mapping[Key, float]
) -> CompiledAccount:
    """Return an empty account of what a compiler made of the graphs that were captured."""
    # Dynamo cuts a model the same way every time; if it did not, nothing here would be about the same operations.
    is_same = len(compiler.graphs) == len(watch.graphs)
    weights: list[Weights] = []
    for number, captured in enumerate(watch.graphs):
        own: Weights = defaultdict(lambda: defaultdict(float))
        for node in captured.graph.graph.nodes:
            key = (number, node.name)
            if key in rows.owner and computes(node):
                own[origin(node)][rows.owner[key]] += times.get(key, 0.0)
        weights.append(own)
    captured_us = summed(times, rows)
    graphs = compiler.graphs if is_same else []
    return CompiledAccount(graphs, weights, captured_us, [0.0] * len(rows.parts))
