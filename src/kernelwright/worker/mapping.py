"""How a runner sees the judge's buffers: each tensor on its own pages between two unmapped guard pages.

Reading or writing beyond a buffer's pages faults at full speed, in timed runs too. Inputs are mapped read-only from a
descriptor that was opened read-only, so that nothing the candidate does can make them writable.
"""

import ctypes
import mmap
import os
from collections.abc import Collection, Sequence

from kernelwright.core.messages.runner import Region

MAP_FAILED = ctypes.c_void_p(-1).value
MAP_FIXED = 0x10
MAP_POPULATE = 0x08000

Span = tuple[int, int]
"""Where pages start, and how many bytes they are."""


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
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


class Doors:
    """Which calls' inputs can be read: who reads the others ends with a fault."""

    def __init__(self, inputs: Sequence[Collection[Span]]) -> None:
        self.inputs = [set(spans) for spans in inputs]
        self.closed: set[Span] = set()

    def close(self, calls: Collection[int]) -> None:
        """Close the inputs of these calls and open all others; what is shared with an open one stays open."""
        shut, libc = set(calls), _libc()
        opened = {span for number, spans in enumerate(self.inputs) if number not in shut for span in spans}
        wanted = {span for number in shut for span in self.inputs[number]} - opened
        for spans, access in ((wanted - self.closed, 0), (self.closed - wanted, mmap.PROT_READ)):
            for address, length in spans:
                if libc.mprotect(address, length, access):
                    raise OSError(
                        ctypes.get_errno(), f"cannot close a buffer: {os.strerror(ctypes.get_errno())}"
                    )
        self.closed = wanted
