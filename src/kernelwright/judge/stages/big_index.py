"""The stage of big tensors: more than 2^31 elements, where an offset kept in 32 bits points somewhere else.

Neither inputs nor outputs of such a call are ever held twice. Its inputs repeat a block whose length is a prime number
of slices: an offset that lost its upper bits is off by a power of two and meets other values. What was left unwritten
is counted in chunks; right answers are asked for a few blocks, both ends and the places where 31 and 32 bits run out
among them. Such a block is a case of its own.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from kernelwright.core.case import Case, Distribution, TensorSpec
from kernelwright.core.ports import BigCase
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import BITS, Arena
from kernelwright.judge.children import Lost
from kernelwright.judge.stages.bench import Bench, Failure, Found, Skipped, Told
from kernelwright.judge.stages.checks import Inputs, check_call, runner_on

ELEMENTS = 1 << 31
PRIMES = (1021, 509, 251, 127, 61, 31, 13, 7, 3)
PERIOD_ELEMENTS = 1 << 24
"""Most elements that are drawn; the rest repeats them."""
WRAPS = (1 << 30, 1 << 31, 1 << 32)
"""Where signed and unsigned offsets of 32 bits end, counted in elements or in bytes."""
RANDOM_BLOCKS = 2
CHUNK = 1 << 26
BLANK = 0xFF
"""Every byte of an output before the call: NaN in every float type, and -1 as an integer."""
SPARE_BYTES = 4 << 30
LEAST_FREE_BYTES = 24 << 30
"""Free memory without which a CPU is spared this stage."""
MOST_CPU_FLOPS = 1 << 35
BIG_CALL_SECONDS = 180.0


def big_index(bench: Bench) -> Told:
    """Run one case of more than 2^31 elements, if there is room for it, and check blocks of it."""
    if bench.has_fixed_cases or not hasattr(bench.op, "big_case"):
        return 0, Skipped("this problem has one size")
    if bench.is_interpreted:
        return 0, Skipped("an interpreter stands in for the GPU")
    own = bench.problem.cases[0].dtype
    # A CPU touches every byte of it several times: the narrowest type is big enough.
    dtypes = sorted(bench.dtypes, key=lambda dtype: dtype.itemsize if bench.is_cpu else dtype is not own)
    big = bench.op.big_case(dtypes[0], ELEMENTS)
    if reason := _spared(bench, big.case):
        return 0, Skipped(reason)
    return check_big(bench, big)


def _spared(bench: Bench, case: Case) -> str | None:
    """Return why the case cannot be run here, or None."""
    # Host code returns an output of its own, which is copied.
    needed = sum(spec.nbytes for spec in (*case.inputs, *case.outputs, *case.outputs)) + SPARE_BYTES
    if not bench.is_cpu:
        free, _ = torch.cuda.mem_get_info(bench.problem.device.index)
    else:
        if bench.op.work(case).flops > MOST_CPU_FLOPS:
            return f"{case.label} takes a CPU minutes"
        free = _free_bytes(bench.problem.device.memory_bytes)
        needed = max(needed, LEAST_FREE_BYTES)
    if free < needed:
        return f"{case.label} needs {needed / (1 << 30):.0f} GiB of free memory, there are {free / (1 << 30):.0f}"
    return None


def _free_bytes(most: int) -> int:
    """Return how much memory processes may still take here, of what they may have at all."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return min([int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")] + [most])


def check_big(bench: Bench, big: BigCase) -> Found:
    """Run a big case and check blocks of it."""
    starts = block_starts(bench, big)
    # Slices that share an output are judged together, all others block by block.
    together = bool(big.muted)
    count, length = (1, len(starts) * big.block) if together else (len(starts), big.block)
    block = _resized(bench, big, length)
    with bench.arena([big.case], [0]) as arena, bench.arena([block], [0] * count) as blocks:
        _fill(bench, big, arena, starts)
        arena.prefill_outputs(BLANK, bench.rng)
        for number in range(count):
            chosen = starts if together else starts[number : number + 1]
            blocks.write_inputs(number, _cut(arena, big, block.inputs, chosen))
        blocks.poison_outputs()
        try:
            with runner_on(bench, arena) as runner:
                runner.run(0, 1, BIG_CALL_SECONDS)
                runner.collect(BIG_CALL_SECONDS)
        except Lost as lost:
            return 1, Failure(lost.status, lost.reason, big.case)
        if failure := _written(arena, big.case):
            return 1, failure
        for number in range(count):
            for name, values in _cut(arena, big, block.outputs, starts[number : number + 1]).items():
                spec = next(spec for spec in block.outputs if spec.name == name)
                blocks.view(number, spec).copy_(values)
        for number in range(count):
            if failure := check_call(bench, blocks, number, Distribution.SIGNED):
                where = f"{big.axis} {starts[number]} and up of {big.case.axes[big.axis]}"
                return number + 1, Failure(failure.status, f"{where}: {failure.reason}", big.case)
    return count, None


def _resized(bench: Bench, big: BigCase, extent: int) -> Case:
    """Return the case with another number of slices."""
    axes = {**big.case.axes, big.axis: extent}
    return bench.op.case(axes, big.case.dtype, big.case.scalars)


def _grew(case: Case, other: TensorSpec) -> bool:
    """Tell whether a tensor of the big case is longer than its namesake."""
    return any(
        spec.name == other.name and spec.shape != other.shape for spec in (*case.inputs, *case.outputs)
    )


def block_starts(bench: Bench, big: BigCase) -> list[int]:
    """Return the first slices of disjoint blocks: the last, the first, where offsets wrap around, and random ones."""
    extent = big.case.axes[big.axis]
    largest = max((*big.case.inputs, *big.case.outputs), key=lambda spec: spec.numel)
    slice_elements = largest.numel // extent
    wraps = [wrap // size // slice_elements for wrap in WRAPS for size in (1, largest.dtype.itemsize)]
    last = extent - big.block
    wanted = [last, 0, *(place - big.block // 2 for place in wraps)]
    wanted += [bench.rng.randrange(max(1, last)) for _ in range(RANDOM_BLOCKS)]
    starts: list[int] = []
    for start in wanted:
        place = max(0, min(start, last))
        if all(abs(place - other) >= big.block for other in starts):
            starts.append(place)
    return starts


def _fill(bench: Bench, big: BigCase, arena: Arena, starts: Sequence[int]) -> None:
    """Write the inputs: a drawn block over and over; muted ones only where blocks are checked."""
    extent = big.case.axes[big.axis]
    slice_elements = max(spec.numel for spec in (*big.case.inputs, *big.case.outputs)) // extent
    period = next(
        (prime for prime in PRIMES if prime * slice_elements <= PERIOD_ELEMENTS and prime < extent),
        PRIMES[-1],
    )
    drawn_case = _resized(bench, big, period)
    drawn = bench.op.make_inputs(drawn_case, Distribution.SIGNED, bench.seed)
    for spec, small in zip(big.case.inputs, drawn_case.inputs, strict=True):
        target = arena.view(0, spec)
        source = drawn[spec.name].to(target.device)
        if not _grew(big.case, small):
            target.copy_(source)
            continue
        for start in range(0, extent, period):
            length = min(period, extent - start)
            target.narrow(0, start, length).copy_(source.narrow(0, 0, length))
        if spec.name in big.muted:
            # Every checked slice counts: of two slices behind the bits both were ignored once in 25 draws.
            mute = big.muted[spec.name]
            target[target == mute] = source[source != mute][0]
            kept = [(start, target.narrow(0, start, big.block).clone()) for start in starts]
            target.fill_(mute)
            for start, values in kept:
                target.narrow(0, start, big.block).copy_(values)


def _cut(arena: Arena, big: BigCase, specs: Sequence[TensorSpec], starts: Sequence[int]) -> Inputs:
    """Return the blocks of the big call's tensors, one behind the other; tensors that did not grow are whole."""
    found = {}
    for spec in specs:
        whole = next(one for one in (*big.case.inputs, *big.case.outputs) if one.name == spec.name)
        values = arena.view(0, whole)
        if _grew(big.case, spec):
            values = torch.cat([values.narrow(0, start, big.block) for start in starts])
        found[spec.name] = values
    return found


def _written(arena: Arena, case: Case) -> Failure | None:
    """Judge in bounded memory whether the outputs were written, all of them and nothing beside them."""
    for spec in case.outputs:
        flat = arena.view(0, spec, dtype=BITS[spec.dtype][0]).reshape(-1)
        if left := sum(int((part == -1).sum()) for part in flat.split(CHUNK)):
            reason = f"{left} of {spec.numel} elements of {spec.name!r} never written"
            return Failure(Status.NOT_WRITTEN, reason, case)
        region = arena.calls[0].regions[spec.name]
        end = region.start + spec.nbytes
        for offset, length in ((0, region.start), (end, region.length - end)):
            beside = arena.outputs.bytes_view(region.offset + offset, length) if length else torch.empty(0)
            if bool((beside != BLANK).any()):
                return Failure(Status.OUT_OF_BOUNDS, f"bytes beside output {spec.name!r} were written", case)
    return None
