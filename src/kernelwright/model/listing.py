"""All problems of a model as they leave its process, over every way it is called."""

from collections import Counter
from collections.abc import Sequence

import torch

from kernelwright.core.messages.model import GraphBreak, ModelExtracted
from kernelwright.core.region import Extracted
from kernelwright.model.capture import Capture, capture
from kernelwright.model.extract import Found, chosen_sites, extract, extracted
from kernelwright.model.load import Loaded
from kernelwright.model.partition import flops


def problems(loaded: Loaded, target: str = "") -> ModelExtracted:
    """Return all problems of a model; with a target, kernels of regions are written for that kind of device."""
    captured = Capture()
    with torch.inference_mode():
        for one in loaded.sets:
            given = one.make(0)
            captured.graphs += capture(loaded.module, given.args, given.kwargs).graphs
        found = extract(captured)
    for known in found:
        known.target = target
    chosen = Counter(place for place, _ in chosen_sites(found))
    told = [extracted(one, chosen[place]) for place, one in enumerate(found)]
    if target:
        told = _with_flops(told, found, captured)
    return ModelExtracted(
        problems=tuple(told),
        nodes=sum(node.op == "call_function" for one in captured.graphs for node in one.graph.graph.nodes),
        graphs=len(captured.graphs),
        breaks=tuple(GraphBreak(reason=one.reason, where=one.where) for one in captured.breaks),
    )


def _with_flops(told: Sequence[Extracted], found: Sequence[Found], captured: Capture) -> list[Extracted]:
    """Return problems with what their operations compute, counted by running the graphs once more."""
    counted = flops(captured.graphs)
    return [
        one.model_copy(update={"flops": sum(counted.get(key, 0) for key in known.sites[0].nodes)})
        for one, known in zip(told, found, strict=True)
    ]
