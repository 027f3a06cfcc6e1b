"""The arena on a GPU: the judge's own device memory, lent to runner and reference by descriptor.

Slabs lie in one allocation each, so there are no guard pages between tensors; each stands between two red zones. Those
of outputs carry the canary. Those of inputs hold NaN in every float type: what reads beyond an input cannot use it. An
input cannot be sealed against device code, so its bytes are summed up before and after.
"""

import os
import random
from collections.abc import Mapping, Sequence

import torch

from kernelwright.backends._cuda_memory import UNIT, make_shared
from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.messages.runner import Call, Region
from kernelwright.judge.arena import PAGE, Arena, Lent

NAN_BYTE = 0xFF
CHUNK = 1 << 22
"""Words summed up at a time."""


class DeviceSlab:
    """Allocations on a GPU, one behind the other, mapped here and exported as descriptors."""

    def __init__(self, sizes: Sequence[int], index: int) -> None:
        self.shared = make_shared(sizes, index)
        self.nbytes, self.sizes = self.shared.nbytes, self.shared.sizes
        self.descriptor = self.shared.export(0)
        """Of the first allocation, mostly the only one."""

    def descriptors(self) -> list[int]:
        """Return new descriptors of all allocations; the caller closes them, or a race would hold thousands."""
        return [self.shared.export(place) for place in range(len(self.sizes))]

    def bytes_view(self, offset: int, length: int) -> torch.Tensor:
        """Return bytes of the slab as a tensor on the GPU."""
        found: torch.Tensor = self.shared.bytes_view(offset, length)
        return found

    def seal_writing(self) -> None:
        """Device memory has no seals; `DeviceArena.input_digest` sees a change."""

    def read_only_descriptor(self) -> int:
        """Return a descriptor of its own; a runner maps it read-only."""
        return os.dup(self.descriptor)

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.descriptor)
        torch.cuda.synchronize()
        self.shared.close()


class DeviceArena(Arena):
    """Buffers for a list of calls, on a GPU."""

    inputs: DeviceSlab  # type: ignore[assignment]

    def __init__(
        self,
        cases: Sequence[Case],
        call_cases: Sequence[int],
        rng: random.Random,
        shared: Sequence[Mapping[str, str]] = (),
        index: int = 0,
    ) -> None:
        self.index: int = index
        super().__init__(cases, call_cases, rng, shared)
        self.inputs.bytes_view(0, self.inputs.nbytes).fill_(NAN_BYTE)
        generator = torch.Generator("cuda").manual_seed(rng.getrandbits(62))
        self.weights = torch.randint(
            1, 1 << 62, (CHUNK,), dtype=torch.int64, device=f"cuda:{index}", generator=generator
        )

    def make_slab(self, name: str, nbytes: int) -> DeviceSlab:  # type: ignore[override]
        """Return memory on the GPU; it needs no name there."""
        del name
        return DeviceSlab([max(nbytes, PAGE)], self.index)

    def place(self, spec: TensorSpec, slab: str, offset: int, *, at_end: bool) -> Region:
        """Return pages for a tensor between two more that must survive."""
        inner = super().place(spec, slab, offset, at_end=at_end)
        return inner.model_copy(update={"length": inner.length + 2 * PAGE, "start": inner.start + PAGE})

    def prefill_outputs(self, pattern: int | None, rng: random.Random) -> None:
        """Fill all outputs and what lies around them with one byte, or with noise."""
        whole = self.outputs.bytes_view(0, self.outputs.nbytes)
        if pattern is None:
            generator = torch.Generator("cuda").manual_seed(rng.getrandbits(62))
            whole.random_(0, 256, generator=generator)
        else:
            whole.fill_(pattern)

    def input_digest(self) -> bytes:
        """Return a sum over all input bytes with secret weights: device code cannot balance a change out."""
        words = self.inputs.bytes_view(0, self.inputs.nbytes).view(torch.int64)
        total = torch.zeros(1, dtype=torch.int64, device=words.device)
        for start in range(0, words.numel(), CHUNK):
            part = words[start : start + CHUNK]
            # Wraps around at 2^64; the position enters by the weight and by the number of the chunk.
            total = total * 6364136223846793005 + (part * self.weights[: part.numel()]).sum()
        return int(total).to_bytes(8, "little", signed=True)


class TrackArena(DeviceArena):
    """Buffers for timed calls: the inputs of each are an allocation of their own, to be closed to device code."""

    unit = UNIT

    def make_slab(self, name: str, nbytes: int) -> DeviceSlab:  # type: ignore[override]
        """Return memory on the GPU, of inputs a piece for every call."""
        if name != "inputs" or not nbytes:
            return super().make_slab(name, nbytes)
        ends = [*self.input_starts[1:], nbytes]
        return DeviceSlab(
            [end - start for start, end in zip(self.input_starts, ends, strict=True)], self.index
        )

    def lent(self, call: Call) -> Lent:
        """Return the piece that holds the inputs of a call, and where they lie in it."""
        inputs = {name: one for name, one in call.regions.items() if one.slab == "inputs"}
        start = min((one.offset for one in inputs.values()), default=0)
        moved = {name: one.model_copy(update={"offset": one.offset - start}) for name, one in inputs.items()}
        place = self.input_starts.index(start) if len(self.inputs.sizes) > 1 else 0
        return Lent(self.inputs.shared.export(place), self.inputs.sizes[place], call.regions | moved)
