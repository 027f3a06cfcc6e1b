"""Streams and products on the host's cores, through torch with all threads; runs in the calibration's own process.

Every call has buffers that have not been touched since the caches were filled twice over, so the streams are cold. Each
stream has a few ways to be written; the fastest one at a middle size is swept over all sizes. A point is the fastest
tenth of its calls, not the median: whatever else runs on the cores only ever adds time, and with four busy processes on
two cores the median of a 16 MB copy was four times that of the fastest tenth.
"""

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from kernelwright.core.device import Device
from kernelwright.hardware.points import MatrixPoint, Measured, StreamPoint

Tensor = Any
"""torch's tensor: mypy does not look into torch."""
Stream = Callable[[list[Tensor]], object]

SIZES = tuple(mib << 20 for mib in (2, 4, 8, 16, 32, 64))
"""Bytes moved by one call."""
PROBE_BYTES = 16 << 20
LEAST_POOL, MOST_POOL = 512 << 20, 4 << 30
FILL_ELEMENTS = 1 << 20
POINT_SECONDS = 0.12
CALLS = (10, 100)
"""Fewest and most calls per point."""
MATRIX_SECONDS = 0.1
"""How long one product should take: long enough for all threads to matter."""
MOST_MATRIX_SECONDS = 0.6
SMALLEST_MATRIX, LARGEST_MATRIX = 256, 8192
MIDDLE_MATRICES = (512, 768, 1024, 2048)
HALF_SECONDS = 30
COLS = 4096

READS: dict[str, Stream] = {
    "sum": lambda parts: parts[0].sum(),
    "dot": lambda parts: torch.dot(*parts[0].chunk(2)),
    "mv": lambda parts: torch.mv(parts[0].view(-1, COLS), parts[0][:COLS]),
}
COPIES: dict[str, Stream] = {"copy": lambda parts: parts[1].copy_(parts[0])}
TRIADS: dict[str, Stream] = {
    "triad": lambda parts: torch.add(parts[0], parts[1], alpha=0.5, out=parts[2]),
}


def measure_cpu(device: Device) -> Measured:
    """Return the points of the host's cores."""
    torch.set_num_threads(device.units)
    pool = _pool(device)
    streams = {
        "copying": _sweep(pool, COPIES, 2),
        "triad": _sweep(pool, TRIADS, 3),
        "reading": _sweep(pool, READS, 1),
    }
    del pool
    matrices = (_product("fp32", torch.float32), *_halves_apart())
    return Measured(streams=streams, matrices=matrices, empty_us=_empty_us())


def _pool(device: Device) -> Tensor:
    """Return memory of twice the last-level cache, full of numbers: untouched pages would all be the same zeros."""
    wanted = max(LEAST_POOL, min(MOST_POOL, 2 * device.cache_bytes))
    elements = min(wanted, device.memory_bytes // 4) // 4 // FILL_ELEMENTS * FILL_ELEMENTS
    pool = torch.empty(elements)
    pool.view(-1, FILL_ELEMENTS).copy_(torch.randn(FILL_ELEMENTS))
    return pool


def _slots(pool: Tensor, bytes_moved: int, parts: int) -> list[list[Tensor]]:
    """Return sets of `parts` buffers that together cover the pool, one set per call."""
    elements = bytes_moved // 4 // parts // COLS * COLS
    columns = [part.split(elements) for part in pool.tensor_split(parts)]
    return [list(row) for row in zip(*columns, strict=False) if all(len(part) == elements for part in row)]


def _sweep(pool: Tensor, ways: dict[str, Stream], parts: int) -> tuple[StreamPoint, ...]:
    """Return the time of a stream over the sizes the pool has room for."""
    probe = _slots(pool, PROBE_BYTES, parts)
    way = (
        min(ways.values(), key=lambda stream: _time_us(stream, probe))
        if len(ways) > 1
        else next(iter(ways.values()))
    )
    points = []
    for size in SIZES:
        slots = _slots(pool, size, parts)
        if len(slots) > 1:
            moved = sum(part.numel() * 4 for part in slots[0])
            points.append(StreamPoint(bytes_moved=moved, time_us=_time_us(way, slots)))
    return tuple(points)


def _time_us(stream: Stream, slots: list[list[Tensor]]) -> float:
    """Return the time of a call over rotated slots, after two that warm up the threads."""
    for slot in slots[-2:]:
        stream(slot)
    times: list[float] = []
    end = time.perf_counter() + POINT_SECONDS
    while len(times) < CALLS[0] or (len(times) < CALLS[1] and time.perf_counter() < end):
        slot = slots[len(times) % len(slots)]
        began = time.perf_counter()
        stream(slot)
        times.append(time.perf_counter() - began)
    return _fastest_tenth(times) * 1e6


def _fastest_tenth(times: list[float]) -> float:
    return sorted(times)[len(times) // 10]


def _empty_us() -> float:
    tiny = [torch.ones(1), torch.ones(1)]
    times = []
    for _ in range(200):
        began = time.perf_counter()
        tiny[1].copy_(tiny[0])
        times.append(time.perf_counter() - began)
    return _fastest_tenth(times) * 1e6


def _product(name: str, dtype: Any) -> MatrixPoint:  # Any: a torch dtype
    """Return the time of the product with the highest rate, of sizes up to what a tenth of a second allows.

    A large one alone said 158 GFLOP/s in a process with unlucky pages, where 512 rows said 310: a ceiling half as high
    makes floors of twice the time, and regions with everything to win are not offered.
    """
    growth = (MATRIX_SECONDS / _product_seconds(SMALLEST_MATRIX, dtype, 3)) ** (1 / 3)
    largest = min(LARGEST_MATRIX, 2 ** max(8, round(math.log2(SMALLEST_MATRIX * growth))))
    sizes = {
        size: _product_seconds(size, dtype, CALLS[0])
        for size in {*MIDDLE_MATRICES, largest}
        if size <= largest
    }
    best = max(sizes, key=lambda size: size**3 / sizes[size])
    return MatrixPoint(compute_class=name, size=best, layout="nn", time_us=sizes[best] * 1e6)


def _product_seconds(size: int, dtype: Any, count: int) -> float:  # Any: a torch dtype
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype)
    torch.mm(left, right, out=out)
    times: list[float] = []
    while len(times) < count and sum(times) < MOST_MATRIX_SECONDS:
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        times.append(time.perf_counter() - began)
    return _fastest_tenth(times)


def _halves_apart() -> list[MatrixPoint]:
    """Return the times of products of halves, those that can be done at all.

    A process of its own: on a virtual machine whose kernel does not know AMX, oneDNN's bf16 product dies of an illegal
    instruction. What it printed before that counts.
    """
    command = [sys.executable, "-P", "-s", "-m", "kernelwright.hardware.cpu_streams"]
    with tempfile.TemporaryFile() as log:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, stdout=log, stderr=subprocess.DEVNULL, timeout=HALF_SECONDS, check=False)
        log.seek(0)
        return [MatrixPoint.model_validate_json(line) for line in log.read().splitlines()]


if __name__ == "__main__":
    for half in ("fp16", "bf16"):
        point = _product(half, {"fp16": torch.float16, "bf16": torch.bfloat16}[half])
        sys.stdout.write(point.model_dump_json() + "\n")
        sys.stdout.flush()
