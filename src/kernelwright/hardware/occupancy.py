"""How many warps of a kernel fit on a multiprocessor, and how a grid falls into waves.

The rules are those of the vendor's occupancy calculator; a target that is not in the table has no answer.
"""

import math
from dataclasses import dataclass

WARP = 32
REGISTERS = 65536
"""Of a multiprocessor, in four equal parts, each with its own scheduler; the same on every target of the table."""
PARTS = 4
REGISTER_GRAIN = 256
"""Registers are handed to a warp in pieces of that many."""
SHARED_GRAIN = 128
SHARED_RESERVED = 1024
"""Bytes the driver keeps for itself in every block, since sm_80."""


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor holds at most."""

    warps: int
    blocks: int
    shared_bytes: int


LIMITS = {
    "sm_80": Limits(64, 32, 164 << 10),
    "sm_86": Limits(48, 16, 100 << 10),
    "sm_87": Limits(48, 16, 164 << 10),
    "sm_89": Limits(48, 24, 100 << 10),
    "sm_90": Limits(64, 32, 228 << 10),
    "sm_100": Limits(64, 32, 228 << 10),
    "sm_103": Limits(64, 32, 228 << 10),
    "sm_120": Limits(48, 24, 100 << 10),
}
"""By target: the CUDA programming guide's table of features by compute capability."""


@dataclass(frozen=True)
class Occupancy:
    """How a kernel fills a multiprocessor."""

    blocks: int
    """Blocks that fit at once."""
    warps: int
    """Warps in them."""
    limit: int
    """Warps there is room for."""
    limited_by: str
    """What runs out first: warps, blocks, registers or shared memory."""

    @property
    def pct(self) -> float:
        """Return the warps that fit in per cent of the room."""
        return 100 * self.warps / self.limit


def occupancy(arch: str, threads: int, registers: int, shared_bytes: int = 0) -> Occupancy | None:
    """Return how blocks of that size and need fill a multiprocessor; None for a target nobody entered.

    `registers` are per thread; `shared_bytes` per block, static and dynamic together.
    """
    limits = LIMITS.get(arch)
    if limits is None or threads < 1:
        return None
    warps = math.ceil(threads / WARP)
    fits = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if registers > 0:
        per_warp = math.ceil(registers * WARP / REGISTER_GRAIN) * REGISTER_GRAIN
        fits["registers"] = REGISTERS // PARTS // per_warp * PARTS // warps
    needed = math.ceil((shared_bytes + SHARED_RESERVED) / SHARED_GRAIN) * SHARED_GRAIN
    fits["shared memory"] = limits.shared_bytes // needed
    least = min(fits, key=lambda name: fits[name])
    return Occupancy(fits[least], fits[least] * warps, limits.warps, least)


@dataclass(frozen=True)
class Waves:
    """How the blocks of a grid follow each other on a device."""

    blocks: int
    per_wave: int
    """Blocks that run at once."""
    units: int

    @property
    def count(self) -> float:
        """Return how often the device is filled, with the last, partial wave as a fraction."""
        return self.blocks / self.per_wave

    @property
    def idle_pct(self) -> float:
        """Return the share of the device that is idle if all blocks take the same time, in per cent.

        A grid of a single wave is spread evenly: it leaves idle only the units that get no block at all.
        """
        if self.blocks <= self.per_wave:
            return 100 * max(0.0, 1 - self.blocks / self.units)
        return 100 * (1 - self.count / math.ceil(self.count))


def waves(blocks: int, blocks_per_unit: int, units: int) -> Waves | None:
    """Return how a grid falls into waves; None where nothing is launched or nothing fits."""
    if min(blocks, blocks_per_unit, units) < 1:
        return None
    return Waves(blocks, blocks_per_unit * units, units)
