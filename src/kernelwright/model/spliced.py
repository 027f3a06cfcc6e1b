"""One spliced kernel: a certified kernel behind its guards, the region's own text wherever one does not hold."""

from collections.abc import Sequence

import torch

from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.ports import Match, View
from kernelwright.model.graph import Region, forward_text, loaded_text, tensor_of
from kernelwright.model.guards import Bound
from kernelwright.model.host_code import Output, host_code
from kernelwright.model.launching import Kernel
from kernelwright.model.regraph import laid_out
from kernelwright.model.tally import Tally
from kernelwright.ops._draw import torch_dtype


def region_text(region: Region) -> str:
    """Return a region's text without the parts that make inputs for it."""
    return f"import torch\n\n\nclass Model(torch.nn.Module):\n{forward_text(region)}"


class SplicedKernel:
    """Calls a winner where its guards hold, the region's own text everywhere else."""

    def __init__(self, case: Case, kernel: Kernel, site: tuple[Region, Match], tally: Tally) -> None:
        region, match = site
        self.count = tally.of(case)
        self.text = region_text(region)
        self.original = loaded_text(self.text)
        self.__name__ = f"spliced_{case.op}"  # what fx calls the node in the code it generates
        self.inputs = [Bound(region, match.inputs[spec.name], spec) for spec in case.inputs]
        self.outputs = [
            _allocated(view, spec) for view, spec in zip(match.outputs, case.outputs, strict=True)
        ]
        self.given = [tensor_of(node) for node in region.inputs]
        """What it was captured with, as tensors without memory."""
        self.answer = host_code(kernel, self.inputs, self.outputs, len(self.given), self.count)
        self.is_served = all(bound.is_served for bound in self.inputs)
        with torch.inference_mode(False):
            bare = [torch.empty(shape, dtype=kind, device="meta") for _, shape, kind in self.outputs]
            self.announced = [(one.shape, one.stride(), one.dtype) for one in self.placed(bare)]
        """Shape, strides and type of what is returned."""

    def __call__(self, *given: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the region's outputs."""
        answer = self.answer(given)
        return self._fallback(given, answer) if isinstance(answer, str) else answer

    def placed(self, outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the kernel's outputs as the region has them."""
        return [
            view.applied(out) if view else out for (view, _, _), out in zip(self.outputs, outs, strict=True)
        ]

    def _fallback(self, given: Sequence[torch.Tensor], reason: str) -> tuple[torch.Tensor, ...]:
        self.count.fallbacks[reason] += 1
        return self.original(*given)

    def unaliased(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs as an operator must: laid out as announced, whoever computed them, none of them an input.

        Called below autograd, where the original could not be differentiated: the operator asks before.
        """
        answer = self.answer(given)
        if not isinstance(answer, str):
            return answer
        taken = {one.untyped_storage().data_ptr() for one in given}
        made = []
        for one, (_, strides, _) in zip(self._fallback(given, answer), self.announced, strict=True):
            found = laid_out(one, strides)
            made.append(found.clone() if found.untyped_storage().data_ptr() in taken else found)
        return made


def _allocated(view: View, spec: TensorSpec) -> Output:
    """Return what is left to do to an output, and how it is allocated: a mere reshape is done by allocating it so.

    One whose axes lie in another order is allocated in that order.
    """
    kind, strides = torch_dtype(spec.dtype), spec.element_strides
    if not spec.is_contiguous:
        order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
        back = tuple(order.index(axis) for axis in range(len(order)))
        return (
            View(view.node, (("permute", back), *view.steps)),
            tuple(spec.shape[axis] for axis in order),
            kind,
        )
    if all(method == "reshape" for method, _ in view.steps):
        return None, view.steps[-1][1] if view.steps else spec.shape, kind
    return view, spec.shape, kind
