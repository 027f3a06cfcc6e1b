"""GPU memory that two processes share: made by one, handed over as a file descriptor, mapped by the other.

The driver's virtual memory calls, not its older IPC handles: those name the maker's process, and a runner in a process
namespace of its own cannot see it; a descriptor works across every namespace. The pages end with the last mapping.
"""

import math
from typing import Any

from kernelwright.backends._tensors import DeviceBytes


class DeviceMemoryFailed(Exception):
    """The driver refused to make, share or map memory."""


def _checked(result: Any, action: str) -> Any:
    """Return what a driver call returned besides its code, raising if the code is not success."""
    code, *values = result
    if int(code) != 0:
        raise DeviceMemoryFailed(f"{action}: {code!r}")
    return values[0] if values else None


def _properties(driver: Any, index: int) -> Any:
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = index
    return wanted


class SharedMemory:
    """A range of GPU memory mapped in this process."""

    def __init__(self, handle: Any, nbytes: int, index: int, *, writable: bool = True) -> None:
        from cuda.bindings import driver

        self.handle, self.nbytes, self.index = handle, nbytes, index
        self.address = int(_checked(driver.cuMemAddressReserve(nbytes, 0, 0, 0), "reserve addresses"))
        _checked(driver.cuMemMap(self.address, nbytes, 0, handle, 0), f"map {nbytes} bytes")
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = index
        kinds = driver.CUmemAccess_flags
        access.flags = (
            kinds.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else kinds.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        _checked(driver.cuMemSetAccess(self.address, nbytes, [access], 1), "allow access")

    def bytes_view(self, offset: int, length: int) -> Any:
        """Return bytes of the range as a tensor on the GPU."""
        import torch

        if length == 0:
            return torch.empty(0, dtype=torch.uint8, device=f"cuda:{self.index}")
        return torch.as_tensor(DeviceBytes(self.address + offset, length), device=f"cuda:{self.index}")

    def export(self) -> int:
        """Return a new descriptor another process can map; the caller closes it."""
        from cuda.bindings import driver

        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return int(_checked(driver.cuMemExportToShareableHandle(self.handle, kind, 0), "export memory"))

    def close(self) -> None:
        """Unmap the range and let go of the memory."""
        from cuda.bindings import driver

        _checked(driver.cuMemUnmap(self.address, self.nbytes), "unmap")
        _checked(driver.cuMemAddressFree(self.address, self.nbytes), "free addresses")
        _checked(driver.cuMemRelease(self.handle), "release memory")


def _entered(index: int) -> None:
    """Make the GPU's own context current: driver calls need one, and torch creates it lazily."""
    import torch

    torch.cuda.set_device(index)
    torch.cuda.synchronize()


def make_shared(nbytes: int, index: int) -> SharedMemory:
    """Return fresh memory of at least that many bytes on a GPU."""
    from cuda.bindings import driver

    _entered(index)
    wanted = _properties(driver, index)
    smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    unit = int(_checked(driver.cuMemGetAllocationGranularity(wanted, smallest), "ask the granularity"))
    whole = max(1, math.ceil(nbytes / unit)) * unit
    handle = _checked(driver.cuMemCreate(whole, wanted, 0), f"allocate {whole} bytes")
    return SharedMemory(handle, whole, index)


def map_shared(descriptor: int, nbytes: int, index: int, *, writable: bool = True) -> SharedMemory:
    """Return another process' memory, mapped here; `nbytes` is what its maker says it holds.

    Without `writable` the hardware refuses every write from here (seen on an H200: an illegal access, nothing changed).
    """
    from cuda.bindings import driver

    _entered(index)
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = _checked(driver.cuMemImportFromShareableHandle(descriptor, kind), "import memory")
    return SharedMemory(handle, nbytes, index, writable=writable)
