"""What must hold before a spliced kernel may run: each input of the kernel bound to a tensor of the region it is in."""

import torch

from kernelwright.backends._bare_table import Expected
from kernelwright.core.case import TensorSpec
from kernelwright.core.ports import View
from kernelwright.model.graph import Region, tensor_of
from kernelwright.ops._draw import torch_dtype


class Bound:
    """One input of the kernel: which tensor of the region it lies in, where, and what that tensor must be."""

    def __init__(self, region: Region, view: View, spec: TensorSpec) -> None:
        self.place, self.view, self.spec = region.inputs.index(view.node), view, spec
        fake = tensor_of(view.node)
        kind = torch_dtype(spec.dtype)
        final = Expected(spec.shape, spec.element_strides, kind, torch.device("meta"), None)
        with torch.inference_mode(False):
            base = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")
            made = view.applied(base)
        self.is_view = made is base or made._base is base
        self.is_served = final.fits(made)
        """Whether the steps make of such a tensor what the kernel was certified on."""
        self.offset = int(made.storage_offset()) * made.element_size() if self.is_view else 0
        """Bytes from the tensor's first element to the kernel's."""
        # A copy is made well aligned, wherever the tensor itself starts.
        behind = spec.offset * spec.dtype.itemsize - self.offset if self.is_view else None
        self.expected = Expected(fake.shape, fake.stride(), fake.dtype, fake.device, behind)
