"""Spliced kernels as an operator of torch's, so that Inductor can compile the rest of the graph around them.

There is one operator; its key says which kernel is meant. Keys are made of content, so that what Inductor cached for
one process is right in the next. Under autograd the operator runs the original, differentiably: no gradient is lost.
"""

import functools
from collections.abc import Sequence
from typing import Any
from weakref import ReferenceType, ref

import torch

from kernelwright.core.frozen import digest
from kernelwright.model.regraph import OperatorCall
from kernelwright.model.spliced import SplicedKernel

LIBRARY = "kernelwright"
Table = dict[str, ReferenceType[SplicedKernel]]
"""What each key means, as long as somebody keeps the kernel."""


@functools.cache
def _operator() -> tuple[torch.library.Library, Any, Table]:
    """Return our library, its operator and what each key means; registered once, torch keeps it for good."""
    library, table = torch.library.Library(LIBRARY, "DEF"), Table()
    # The guards want the very strides of the captured graph, and Inductor may choose others unless told.
    tag = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    library.define("spliced(Tensor[] given, str key) -> Tensor[]", tags=(tag,))

    def meant(key: str) -> SplicedKernel:
        kernel = table[key]()
        assert kernel is not None, "whoever runs a graph keeps its kernels"
        return kernel

    def run(given: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
        return meant(key).unaliased(given)

    def fake(given: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
        return [
            torch.empty_strided(shape, strides, dtype=kind, device=given[0].device)
            for shape, strides, kind in meant(key).announced
        ]

    def above(keys: Any, given: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
        if torch.is_grad_enabled() and any(one.requires_grad for one in given):
            return list(meant(key)(*given))  # its own guard runs the original, and counts it
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keys & torch._C._after_autograd_keyset, given, key)

    for where in ("CPU", "CUDA"):
        library.impl("spliced", run, where)
    library.impl("spliced", above, "Autograd", with_keyset=True)
    torch.library.register_fake(f"{LIBRARY}::spliced", fake, lib=library)
    overload = torch.ops.kernelwright.spliced.default
    return library, overload, table


def as_operator(kernel: SplicedKernel, content: str) -> OperatorCall:
    """Return a spliced kernel as a call of the operator; it must be kept alive by whoever runs the graph.

    `content` is all that makes the kernel what it is. Two alike in one process, with counts of their own, get two keys.
    """
    _, overload, table = _operator()
    key, number = digest(content + kernel.text)[:24], 0
    while (taken := table.get(f"{key}.{number}")) is not None and taken() not in (None, kernel):
        number += 1
    table[f"{key}.{number}"] = ref(kernel)
    return OperatorCall(overload, f"{key}.{number}")
