"""How a runner sees the judge's buffers: each tensor on its own pages between two unmapped guard pages.

Reading or writing beyond a buffer's pages faults at full speed, in timed runs too. Inputs are mapped read-only from a
descriptor that was opened read-only, so that nothing the candidate does can make them writable.
"""

import ctypes
import mmap
import os

from kernelwright.core.messages.runner import Region

MAP_FAILED = ctypes.c_void_p(-1).value
MAP_FIXED = 0x10
MAP_POPULATE = 0x08000


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    return libc


def map_region(descriptor: int, region: Region, *, writable: bool) -> int:
    """Return the address where the region's storage starts, guard pages around it."""
    libc, page = _libc(), mmap.PAGESIZE
    span = region.length + 2 * page
    base = libc.mmap(None, span, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if base in (None, MAP_FAILED):
        raise OSError(ctypes.get_errno(), f"cannot reserve {span} bytes: {os.strerror(ctypes.get_errno())}")
    if region.length:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # Populated now: a first touch inside the timed span would cost more than many a kernel.
        flags = mmap.MAP_SHARED | MAP_FIXED | MAP_POPULATE
        placed = libc.mmap(base + page, region.length, access, flags, descriptor, region.offset)
        if placed in (None, MAP_FAILED):
            raise OSError(ctypes.get_errno(), f"cannot map buffer: {os.strerror(ctypes.get_errno())}")
    return int(base) + page + region.start
