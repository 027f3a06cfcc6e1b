"""The most arithmetic a CPU can do in a second by the instructions it claims: it stands in for a data sheet.

An honest time must never be below what is drawn from it, so whatever the kernel does not tell for certain is taken for
better than any processor has. Bytes bound nothing here: how fast a cache delivers them is not told.
"""

from pathlib import Path

from kernelwright.core.roofline import Work
from kernelwright.hardware.detect import affinity

CPUINFO = "proc/cpuinfo"
HIGHEST_HZ = 7e9
"""Above every clock sold: 6.2 GHz in 2024. What cpufreq tells may leave the boost out; cpuinfo tells the moment's."""
PIPES = 4
"""Vector units of a core, each taken to multiply and add in every cycle: where there are four so wide, two do."""
VECTOR_BYTES = {"avx512f": 64, "avx": 32, "sse2": 16}
"""Bytes of the widest vectors by the flag that claims them, the widest first; only x86 has such flags."""
LANE_BYTES = {"fp32": 4, "tf32": 2, "fp16": 2, "bf16": 2}
"""Bytes of the narrowest lane that does a class's work in one go; put together from bytes it takes three or more."""
TILES = "amx"
"""How the flags of matrix units begin."""
TILE_PRODUCTS = 1024
"""Products a matrix unit adds up in a cycle: of bytes, twice those of bf16; fp32 can be put together from pieces."""


def most_flops(compute_class: str, root: Path = Path("/")) -> float | None:
    """Return FLOP/s that all cores this process may use cannot exceed; None where flags or class say nothing."""
    flags, lane = _flags(root / CPUINFO), LANE_BYTES.get(compute_class)
    width = next((wide for flag, wide in VECTOR_BYTES.items() if flag in flags), None)
    if width is None or lane is None:
        return None
    has_tiles = any(flag.startswith(TILES) for flag in flags)
    products = max(PIPES * width // lane, TILE_PRODUCTS if has_tiles else 0)
    # Not the cores of the cgroup's quota: more may run for a part of its period, as long as a batch of calls.
    return 2 * products * HIGHEST_HZ * len(affinity())


def least_seconds(work: Work) -> float | None:
    """Return what the arithmetic of some work takes at best on the host's cores; None where that is not known."""
    rate = most_flops(work.compute_class)
    return work.flops / rate if rate else None


def _flags(cpuinfo: Path) -> frozenset[str]:
    """Return the flags of the first core, none if they cannot be read; the others have the same."""
    try:
        with cpuinfo.open(errors="replace") as file:
            told = (line.split(":", 1)[1] for line in file if line.startswith("flags"))
            return frozenset(next(told, "").split())
    except OSError:
        return frozenset()
