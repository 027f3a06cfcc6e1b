"""GPU memory that two processes share: made by one, handed over as a file descriptor, mapped by the other.

The driver's virtual memory calls, not its older IPC handles: those name the maker's process, and a runner in a process
namespace of its own cannot see it; a descriptor works across every namespace. The pages end with the last mapping.
"""

import math
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from kernelwright.backends._tensors import DeviceBytes
from kernelwright.core.errors import KernelwrightError

UNIT = 2 << 20
"""Memory of a GPU is allocated, and found again, in pieces of so many bytes."""
OUT_OF_MEMORY = 2
"""What the driver says then."""


class DeviceMemoryFailed(KernelwrightError):
    """The driver refused to make, share or map memory."""

    def __init__(self, action: str, code: Any) -> None:
        super().__init__(
            f"The GPU's driver refused to {action}: {code!r}. Free memory on the device, or give a smaller shape."
        )


def _checked(result: Any, action: str) -> Any:
    """Return what a driver call returned besides its code, raising if the code is not success."""
    code, *values = result
    if int(code) != 0:
        raise DeviceMemoryFailed(action, code)
    return values[0] if values else None


def _properties(driver: Any, index: int) -> Any:
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = index
    return wanted


class SharedMemory:
    """A range of GPU memory mapped in this process: one allocation, or several behind each other."""

    def __init__(
        self, handles: Sequence[Any], sizes: Sequence[int], index: int, *, writable: bool = True
    ) -> None:
        from cuda.bindings import driver

        self.handles, self.sizes, self.index = tuple(handles), tuple(sizes), index
        self.nbytes, self.writable = sum(sizes), writable
        self.address = int(_checked(driver.cuMemAddressReserve(self.nbytes, 0, 0, 0), "reserve addresses"))
        self.starts = [self.address + sum(sizes[:place]) for place in range(len(sizes))]
        for start, size, handle in zip(self.starts, sizes, handles, strict=True):
            _checked(driver.cuMemMap(start, size, 0, handle, 0), f"map {size} bytes")
        self.opened = [False] * len(sizes)
        self.open_only(range(len(sizes)))

    def open_only(self, parts: Collection[int]) -> None:
        """Let device code here reach these allocations and no other: whoever reads one of those faults."""
        from cuda.bindings import driver

        kinds = driver.CUmemAccess_flags
        usual = (
            kinds.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if self.writable else kinds.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self.index
        for is_open, run in groupby(range(len(self.sizes)), key=lambda place: place in parts):
            first, *rest = run
            if any(self.opened[place] != is_open for place in (first, *rest)):
                access.flags = usual if is_open else kinds.CU_MEM_ACCESS_FLAGS_PROT_NONE
                size = sum(self.sizes[first : first + 1 + len(rest)])
                _checked(
                    driver.cuMemSetAccess(self.starts[first], size, [access], 1), "allow or refuse access"
                )
        self.opened = [place in parts for place in range(len(self.sizes))]

    def touch(self) -> None:
        """Read a byte of every open page: who changes what may be reached makes the device forget where it lies.

        Part by part, in the order of their addresses: a list on the device would tell device code which are open.
        """
        for pages, is_open in zip(self._pages, self.opened, strict=True):
            if is_open:
                pages.sum()

    @cached_property
    def _pages(self) -> list[Any]:
        """Return a byte of every page, part by part: making a view takes longer than reading it."""
        parts = zip(self.starts, self.sizes, strict=True)
        return [self.bytes_view(start - self.address, size)[::UNIT] for start, size in parts]

    def bytes_view(self, offset: int, length: int) -> Any:
        """Return bytes of the range as a tensor on the GPU."""
        import torch

        if length == 0:
            return torch.empty(0, dtype=torch.uint8, device=f"cuda:{self.index}")
        return torch.as_tensor(DeviceBytes(self.address + offset, length), device=f"cuda:{self.index}")

    def export(self, place: int) -> int:
        """Return a new descriptor of an allocation, which another process can map; the caller closes it."""
        from cuda.bindings import driver

        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return int(
            _checked(driver.cuMemExportToShareableHandle(self.handles[place], kind, 0), "export memory")
        )

    def close(self) -> None:
        """Unmap the range and let go of the memory."""
        from cuda.bindings import driver

        for start, size in zip(self.starts, self.sizes, strict=True):
            _checked(driver.cuMemUnmap(start, size), "unmap")
        _checked(driver.cuMemAddressFree(self.address, self.nbytes), "free addresses")
        for handle in self.handles:
            _checked(driver.cuMemRelease(handle), "release memory")


def _entered(index: int) -> None:
    """Make the GPU's own context current: driver calls need one, and torch creates it lazily."""
    import torch

    torch.cuda.set_device(index)
    torch.cuda.synchronize()


def make_shared(sizes: Sequence[int], index: int) -> SharedMemory:
    """Return fresh memory on a GPU: allocations of at least so many bytes, one behind the other without a gap.

    All but the last are multiples of `UNIT`; where the driver wants more, offsets into the whole would be wrong.
    """
    from cuda.bindings import driver

    _entered(index)
    wanted = _properties(driver, index)
    smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    unit = int(_checked(driver.cuMemGetAllocationGranularity(wanted, smallest), "ask the granularity"))
    if len(sizes) > 1 and UNIT % unit:
        raise DeviceMemoryFailed(f"allocate pieces of {UNIT} bytes", f"they must be multiples of {unit}")
    whole = [max(1, math.ceil(nbytes / unit)) * unit for nbytes in sizes]
    return SharedMemory(_allocated(driver, whole, wanted), whole, index)


def _allocated(driver: Any, sizes: Sequence[int], wanted: Any) -> list[Any]:
    """Return an allocation of every size; where the device is full, torch gives back what it keeps for later first."""
    import torch

    handles: list[Any] = []
    for size in sizes:
        result = driver.cuMemCreate(size, wanted, 0)
        if int(result[0]) == OUT_OF_MEMORY:
            torch.cuda.empty_cache()
            result = driver.cuMemCreate(size, wanted, 0)
        try:
            handles.append(_checked(result, f"allocate {size} bytes"))
        except DeviceMemoryFailed:
            for handle in handles:
                driver.cuMemRelease(handle)
            raise
    return handles


def map_shared(
    descriptors: Sequence[int], sizes: Sequence[int], index: int, *, writable: bool = True
) -> SharedMemory:
    """Return another process' memory, mapped here; `sizes` are what its maker says its allocations hold.

    Without `writable` the hardware refuses every write from here (seen on an H200: an illegal access, nothing changed).
    """
    from cuda.bindings import driver

    _entered(index)
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handles = [
        _checked(driver.cuMemImportFromShareableHandle(descriptor, kind), "import memory")
        for descriptor in descriptors
    ]
    return SharedMemory(handles, sizes, index, writable=writable)
