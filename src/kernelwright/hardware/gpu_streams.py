"""Streams and products on a GPU, through torch and Triton; runs in the calibration's own process.

Calls over rotated buffers are captured in a graph and its replays queued without waiting, so neither the host's launch
time nor a warm cache is in the numbers: between two uses of a buffer, more than four times the last-level cache is
moved. A point is the median over the replays of the time per call.

- `copying` is torch's own `copy_`: what the driver's copy reaches.
- `reading` sums chunks with the kernel below: `torch.sum` is slower than a plain read. `kernel_copy` is the same for a
  copy, kept as evidence of how far a kernel is from the driver's copy; no ceiling is made from it.
- Products are timed in short bursts on random normal numbers, in two layouts, and the better one counts. Long runs meet
  the power limit, and on zeros an H200 ran 13 % faster than on anything a user has.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernelwright.core.device import Device
from kernelwright.hardware.points import MatrixPoint, Measured, StreamPoint

Tensor = Any
"""torch's tensor: mypy does not look into torch."""
Call = Callable[[int], object]
"""One call of a stream on the slot of that number."""

SIZES = tuple(mib << 20 for mib in (8, 16, 32, 64, 128, 256, 512))
"""Bytes moved by one call."""
PROBE_BYTES = 128 << 20
POOL_BYTES = 1 << 30
CACHES = 4.5
"""How many times the last-level cache the buffers of one rotation take."""
REPLAY_BYTES = 4 << 30
"""Bytes moved by one replay: a millisecond on an H200, far above the cost of launching a graph."""
REPLAYS = 25
EMPTY_CALLS = 500
PRODUCTS = 10
WARM_UPS = 3
PAUSE_SECONDS = 0.1
"""Rest before each burst of products, so that none inherits another's heat."""
MATRICES = {
    "fp16": (torch.float16, 8192, "highest"),
    "bf16": (torch.bfloat16, 8192, "highest"),
    "tf32": (torch.float32, 8192, "high"),
    "fp32": (torch.float32, 4096, "highest"),
}
"""Type, size and fp32 precision setting by compute class."""


class Shape(NamedTuple):
    """How a kernel cuts its stream: elements per program at once, how often, and its warps."""

    block: int
    steps: int
    warps: int


SHAPES = (Shape(4096, 1, 4), Shape(8192, 1, 8), Shape(8192, 1, 4), Shape(16384, 1, 8), Shape(4096, 4, 8))
"""8 to 16 independent 16-byte loads per thread; which one is fastest differs between devices, so all are tried."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def read_chunk(x, out, BLOCK: tl.constexpr, STEPS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Sum one contiguous chunk and write one number."""
    program = tl.program_id(0)
    start = x + program.to(tl.int64) * (BLOCK * STEPS)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for step in tl.static_range(STEPS):
        total += tl.load(start + step * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + program, tl.sum(total, axis=0))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def copy_chunk(x, out, BLOCK: tl.constexpr, STEPS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Copy one contiguous chunk."""
    first = tl.program_id(0).to(tl.int64) * (BLOCK * STEPS)
    for step in tl.static_range(STEPS):
        place = first + step * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + place, tl.load(x + place))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def nothing(out):  # type: ignore[no-untyped-def]
    """Do nothing: the cost of a node of a graph."""


def measure_gpu(device: Device) -> Measured:
    """Return the points of one GPU."""
    torch.cuda.set_device(device.index)
    streams, empty_us = _streams(_pool(device))
    matrices = [point for name in MATRICES for point in _products(name)]
    return Measured(streams=streams, matrices=tuple(matrices), empty_us=empty_us)


def _streams(pool: Tensor) -> tuple[dict[str, tuple[StreamPoint, ...]], float]:
    """Return the sweeps over the sizes the pool has room for twice, and the time of a call that does nothing."""
    sizes = [size for size in SIZES if 2 * size <= pool.numel() * 4]
    out = torch.empty(
        max(sizes) // 4 // min(shape.block * shape.steps for shape in SHAPES), device=pool.device
    )
    probe = min(PROBE_BYTES, max(sizes))
    reading = min(SHAPES, key=lambda shape: _time_us(_reader(pool, out, probe, shape), probe))
    copying = min(SHAPES, key=lambda shape: _time_us(_kernel_copier(pool, probe, shape), probe))
    streams = {
        "copying": _sweep(lambda size: _copier(pool, size), sizes),
        "reading": _sweep(lambda size: _reader(pool, out, size, reading), sizes),
        "kernel_copy": _sweep(lambda size: _kernel_copier(pool, size, copying), sizes),
    }
    return streams, _graph_us(lambda _: nothing[(1,)](out), EMPTY_CALLS)


def _pool(device: Device) -> Tensor:
    """Return memory large enough to be cold at every turn, full of random numbers; a power of two holds every size."""
    wanted = max(POOL_BYTES, int(CACHES * device.cache_bytes))
    bits = min((wanted - 1).bit_length(), (device.memory_bytes // 4).bit_length() - 1)
    return torch.empty((1 << bits) // 4, device="cuda").normal_()


def _slots(pool: Tensor, bytes_each: int) -> list[Tensor]:
    return list(pool.split(bytes_each // 4))


def _copier(pool: Tensor, size: int) -> Call:
    sources, targets = (_slots(half, size // 2) for half in pool.chunk(2))
    return lambda number: targets[number % len(targets)].copy_(sources[number % len(sources)])


def _reader(pool: Tensor, out: Tensor, size: int, shape: Shape) -> Call:
    slots = _slots(pool, size)
    grid = (size // 4 // (shape.block * shape.steps),)
    return lambda number: read_chunk[grid](
        slots[number % len(slots)], out, BLOCK=shape.block, STEPS=shape.steps, num_warps=shape.warps
    )


def _kernel_copier(pool: Tensor, size: int, shape: Shape) -> Call:
    sources, targets = (_slots(half, size // 2) for half in pool.chunk(2))
    grid = (size // 8 // (shape.block * shape.steps),)
    return lambda number: copy_chunk[grid](
        sources[number % len(sources)],
        targets[number % len(targets)],
        BLOCK=shape.block,
        STEPS=shape.steps,
        num_warps=shape.warps,
    )


def _sweep(stream: Callable[[int], Call], sizes: list[int]) -> tuple[StreamPoint, ...]:
    return tuple(StreamPoint(bytes_moved=size, time_us=_time_us(stream(size), size)) for size in sizes)


def _time_us(call: Call, size: int) -> float:
    return _graph_us(call, max(4, REPLAY_BYTES // size))


def _graph_us(call: Call, calls: int) -> float:
    """Return the median time of a call when that many of them are one graph."""
    for number in range(WARM_UPS):  # compiles the kernel: nothing may be compiled while capturing
        call(number)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(calls):
            call(number)
    for _ in range(WARM_UPS):
        graph.replay()
    return median(_intervals_us(graph.replay, REPLAYS)) / calls


def _intervals_us(run: Callable[[], object], count: int) -> list[float]:
    """Return the times between events around queued runs.

    The first interval holds the host's own start and is left out.
    """
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 2)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e3 for before, after in pairwise(events[1:])]


def _products(name: str) -> list[MatrixPoint]:
    """Return the times of a product of one compute class in both layouts."""
    dtype, size, precision = MATRICES[name]
    torch.set_float32_matmul_precision(precision)
    left, right, out = (torch.empty(size, size, device="cuda", dtype=dtype).normal_() for _ in range(3))
    points = []
    for layout, operand in (("nn", right), ("nt", right.t())):
        torch.cuda.synchronize()
        time.sleep(PAUSE_SECONDS)
        for _ in range(WARM_UPS):
            torch.mm(left, operand, out=out)
        times = _intervals_us(lambda operand=operand: torch.mm(left, operand, out=out), PRODUCTS)  # type: ignore[misc]
        points.append(MatrixPoint(compute_class=name, size=size, layout=layout, time_us=median(times)))
    return points
