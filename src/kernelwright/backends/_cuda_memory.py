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
        wanted = [place in parts for place in range(len(self.sizes))]
        for is_open, places in _runs(wanted):
            if any(self.opened[place] != is_open for place in places):
                access.flags = usual if is_open else kinds.CU_MEM_ACCESS_FLAGS_PROT_NONE
                start, end = self._span(places)
                _checked(driver.cuMemSetAccess(start, end - start, [access], 1), "allow or refuse access")
        self.opened = wanted

    def touch(self) -> None:
        """Read a byte of every open page: who changes what may be reached makes the device forget where it lies.

        In the order of their addresses: a list on the device would tell device code which are open. Neighbours at once:
        part by part it was 2.3 of the 3.7 ms that a replay of 60 calls took.
        """
        for is_open, places in _runs(self.opened):
            if is_open:
                start, end = (address - self.address for address in self._span(places))
                self._pages[start // UNIT : -(-end // UNIT)].sum()

    def _span(self, places: Sequence[int]) -> tuple[int, int]:
        """Return where neighbouring allocations start and end."""
        return self.starts[places[0]], self.starts[places[-1]] + self.sizes[places[-1]]

    @cached_property
    def _pages(self) -> Any:
        """Return a byte of every page, open or not: making a view takes longer than reading it."""
        return self.bytes_view(0, self.nbytes)[::UNIT]

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


def _runs(flags: Sequence[bool]) -> list[tuple[bool, list[int]]]:
    """Return the places of neighbours that are alike, run by run."""
    return [(flag, list(run)) for flag, run in groupby(range(len(flags)), key=flags.__getitem__)]


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
