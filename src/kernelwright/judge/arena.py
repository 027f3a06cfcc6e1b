"""The arena: the judge's own memory for inputs and outputs, lent to a runner page by page.

Two sealed memory files hold every buffer of a job. Inputs are lent read-only. Outputs are poisoned before each run
with a NaN payload of this arena's own; the bytes around each tensor carry a canary that must survive.
"""

import ctypes
import fcntl
import hashlib
import mmap
import os
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch

from kernelwright.core.case import Case, DType, TensorSpec
from kernelwright.core.messages.runner import Call, Region
from kernelwright.ops._draw import torch_dtype

PAGE = mmap.PAGESIZE
F_SEAL_FUTURE_WRITE = 0x0010
"""Linux 5.1; Python's fcntl does not name it yet."""
ALIGNMENT = 64
"""Start of a well aligned tensor: a cache line, as torch's own CPU allocator gives."""

BITS: dict[DType, tuple[torch.dtype, int, int]] = {
    DType.FP64: (torch.int64, 0x7FF8_0000_0000_0000, 51),
    DType.FP32: (torch.int32, 0x7FC0_0000, 22),
    DType.FP16: (torch.int16, 0x7E00, 9),
    DType.BF16: (torch.int16, 0x7FC0, 6),
    DType.INT64: (torch.int64, 0x5AA5_0000_0000_0000, 40),
    DType.INT32: (torch.int32, 0x5AA5_0000, 16),
}
"""Same-sized integer type, quiet NaN (or an unlikely integer), and free payload bits of each output type."""


class Slab:
    """One memory file, mapped here for reading and writing."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.nbytes = max(nbytes, PAGE)
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.nbytes)
        self.memory = mmap.mmap(self.descriptor, self.nbytes)
        # A runner that could shrink the file would kill its readers with SIGBUS.
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def bytes_view(self, offset: int, length: int) -> torch.Tensor:
        """Return bytes of the slab as a tensor."""
        view = (ctypes.c_char * length).from_address(self.address + offset)
        return torch.frombuffer(view, dtype=torch.uint8)

    def seal_writing(self) -> None:
        """Refuse every write from now on but through the mapping the judge already has, for root too."""
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)

    def read_only_descriptor(self) -> int:
        """Return a new descriptor through which the kernel refuses any writable mapping."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def descriptors(self) -> list[int]:
        """Return a new read-only descriptor of each part, here the one; the caller closes them."""
        return [self.read_only_descriptor()]

    def close(self) -> None:
        """Give the memory back; the mapping goes with the last view of it."""
        os.close(self.descriptor)


def _storage_bytes(spec: TensorSpec) -> int:
    return spec.storage_elements * spec.dtype.itemsize


class Lent(NamedTuple):
    """Memory with the inputs of a call."""

    descriptor: int
    nbytes: int
    regions: dict[str, Region]


class Arena:
    """Buffers for a list of calls."""

    index: int | None = None
    """Number of the GPU they lie on; None on a CPU."""
    unit = 1
    """The inputs of every call start at a multiple of so many bytes."""

    def __init__(
        self,
        cases: Sequence[Case],
        call_cases: Sequence[int],
        rng: random.Random,
        shared: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Lay out the calls; `shared` says, per call, which inputs lie in another one's storage."""
        self.cases = tuple(cases)
        calls, ends = [], {"inputs": 0, "outputs": 0}
        self.input_starts: list[int] = []
        for number, index in enumerate(call_cases):
            regions: dict[str, Region] = {}
            ends["inputs"] = -(-ends["inputs"] // self.unit) * self.unit
            self.input_starts.append(ends["inputs"])
            for slab, specs in (("inputs", self.cases[index].inputs), ("outputs", self.cases[index].outputs)):
                for spec in specs:
                    regions[spec.name] = self.place(spec, slab, ends[slab], at_end=number % 2 == 1)
                    ends[slab] += regions[spec.name].length
            for name, other in shared[number].items() if shared else ():
                regions[name] = regions[other]
            calls.append(Call(case=index, regions=regions))
        self.calls = tuple(calls)
        self.inputs, self.outputs = (self.make_slab(name, ends[name]) for name in ("inputs", "outputs"))
        self.inputs.seal_writing()
        self.poison_payload = rng.getrandbits(62)
        self.canary = rng.randrange(1, 255)
        self.blank: torch.Tensor | None = None
        self.generator = torch.Generator(self.where).manual_seed(rng.getrandbits(62))

    @property
    def where(self) -> str:
        """Return torch's name of the device the buffers lie on."""
        return "cpu" if self.index is None else f"cuda:{self.index}"

    def make_slab(self, name: str, nbytes: int) -> Slab:
        """Return memory for all inputs, or all outputs."""
        return Slab(name, nbytes)

    def place(self, spec: TensorSpec, slab: str, offset: int, *, at_end: bool) -> Region:
        """Return pages for a tensor, its storage flush with the first page or with the last."""
        needed = _storage_bytes(spec)
        length = -(-needed // PAGE) * PAGE
        start = (length - needed) // ALIGNMENT * ALIGNMENT if at_end else 0
        return Region(slab=slab, offset=offset, length=length, start=start)  # type: ignore[arg-type]

    def __enter__(self) -> "Arena":
        return self

    def __exit__(self, *_: object) -> None:
        self.inputs.close()
        self.outputs.close()

    def view(self, call: int, spec: TensorSpec, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the judge's own view of a tensor of a call."""
        region = self.calls[call].regions[spec.name]
        kind = dtype or torch_dtype(spec.dtype)
        if spec.numel == 0:
            return torch.empty(spec.shape, dtype=kind)
        slab = self.inputs if region.slab == "inputs" else self.outputs
        raw = slab.bytes_view(region.offset + region.start, _storage_bytes(spec))
        return raw.view(kind).as_strided(spec.shape, spec.element_strides, spec.offset)

    def write_inputs(self, call: int, tensors: dict[str, torch.Tensor]) -> None:
        """Fill the inputs of a call; a case's own strides are honoured, the first row stands for a broadcast axis."""
        for spec in self.cases[self.calls[call].case].inputs:
            once(self.view(call, spec), spec).copy_(once(tensors[spec.name], spec))

    def lent(self, call: Call) -> Lent:
        """Return what the reference is given to read the inputs of a call; the caller closes the descriptor."""
        return Lent(self.inputs.read_only_descriptor(), self.inputs.nbytes, call.regions)

    def call_at(self, call: int, case: Case) -> int:
        """Add a case on the very buffers of a call and return the number of the new call."""
        self.cases = (*self.cases, case)
        self.calls = (*self.calls, Call(case=len(self.cases) - 1, regions=self.calls[call].regions))
        return len(self.calls) - 1

    def prefill_outputs(self, pattern: int | None, rng: random.Random) -> None:
        """Fill all outputs and what lies around them with one byte, or with noise."""
        whole = self.outputs.bytes_view(0, self.outputs.nbytes)
        if pattern is None:
            whole.random_(0, 256, generator=torch.Generator().manual_seed(rng.getrandbits(62)))
        else:
            whole.fill_(pattern)

    def poison_outputs(self) -> None:
        """Make every output element a NaN with this arena's payload and every byte around it the canary."""
        whole = self.outputs.bytes_view(0, self.outputs.nbytes)
        if kind := self._seamless:
            whole.view(BITS[kind][0]).fill_(self._poison(kind))
            return
        if self.blank is not None:
            whole.copy_(self.blank)
            return
        whole.fill_(self.canary)
        for number, call in enumerate(self.calls):
            for spec in self.cases[call.case].outputs:
                kind, _, _ = BITS[spec.dtype]
                self.view(number, spec, dtype=kind).fill_(self._poison(spec.dtype))
        # Poisoning hundreds of small outputs one by one costs more than timing them; later rounds copy this blank.
        self.blank = whole.clone()

    @cached_property
    def _seamless(self) -> DType | None:
        """Return the type of all outputs if nothing but their elements lies in the slab: one fill poisons them."""
        outputs = [
            (spec, call.regions[spec.name]) for call in self.calls for spec in self.cases[call.case].outputs
        ]
        kinds = {spec.dtype for spec, _ in outputs}
        is_dense = all(spec.is_contiguous and spec.nbytes == region.length > 0 for spec, region in outputs)
        return kinds.pop() if is_dense and len(kinds) == 1 else None

    def sampled(self, calls: Sequence[int], samples: int) -> tuple[int, int]:
        """Return how many random output elements of calls of one case were looked at, and how many are still poison."""
        looked = left = 0
        for spec in self.cases[self.calls[calls[0]].case].outputs:
            if spec.numel <= samples or not spec.is_contiguous:
                looked += spec.numel * len(calls)
                left += sum(self.unwritten(number, spec) for number in calls)
                continue
            places = torch.randint(
                spec.numel, (len(calls), samples), generator=self.generator, device=self.where
            )
            found = self.elements(spec, places, calls, dtype=BITS[spec.dtype][0])
            looked += places.numel()
            left += int(torch.count_nonzero(found == self._poison(spec.dtype)))
        return looked, left

    def elements(
        self,
        spec: TensorSpec,
        places: torch.Tensor,
        calls: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Return elements of a dense output of calls of one case: a row of places per call."""
        regions = [self.calls[number].regions[spec.name] for number in calls]
        starts = [(one.offset + one.start) // spec.dtype.itemsize + spec.offset for one in regions]
        whole = self.outputs.bytes_view(0, self.outputs.nbytes).view(dtype or torch_dtype(spec.dtype))
        return whole[places + torch.tensor(starts, device=self.where)[:, None]]

    def _poison(self, dtype: DType) -> int:
        # A payload with its first bit clear and its last bit set: all zeros is a CPU's own NaN, all ones a GPU's.
        _, quiet, free = BITS[dtype]
        return quiet | (self.poison_payload & ((1 << free - 1) - 1)) | 1

    def unwritten(self, call: int, spec: TensorSpec) -> int:
        """Return how many elements of an output still carry the poison."""
        kind, _, _ = BITS[spec.dtype]
        return int(torch.count_nonzero(self.view(call, spec, dtype=kind) == self._poison(spec.dtype)))

    def canary_broken(self, call: int, spec: TensorSpec) -> bool:
        """Tell whether a byte of the region outside the tensor's elements was written."""
        region = self.calls[call].regions[spec.name]
        if region.length == 0:
            return False
        pages = self.outputs.bytes_view(region.offset, region.length)
        end = region.start + _storage_bytes(spec)
        if spec.is_contiguous:
            start = region.start + spec.offset * spec.dtype.itemsize
            return bool((pages[:start] != self.canary).any() or (pages[end:] != self.canary).any())
        pages = pages.clone()
        inside = pages[region.start : end].clone()
        elements = inside.view(BITS[spec.dtype][0]).as_strided(spec.shape, spec.element_strides, spec.offset)
        elements.fill_(int.from_bytes([self.canary] * spec.dtype.itemsize, "little", signed=True))
        pages[region.start : end] = inside
        return bool((pages != self.canary).any())

    def input_digest(self) -> bytes:
        """Return a digest of all input bytes, to see whether any was changed."""
        return hashlib.blake2b(self.inputs.memory).digest()

    def output_bytes(self, call: int) -> torch.Tensor:
        """Return a copy of the very bits a call's outputs consist of."""
        outputs = [self.view(call, spec) for spec in self.cases[self.calls[call].case].outputs]
        return torch.cat([out.contiguous().reshape(-1).view(torch.uint8) for out in outputs])


def once(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return a tensor of a spec's shape with the first element alone along every axis that the spec only repeats."""
    for axis, stride in enumerate(spec.element_strides):
        if stride == 0 and spec.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor
