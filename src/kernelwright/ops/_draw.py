"""What the files of this drawer share, not an op: how values are drawn, hidden sizes, compute classes."""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from kernelwright.core.case import Case, Compute, Distribution, DType, TensorSpec

if TYPE_CHECKING:
    from torch import Generator, Tensor, dtype

INTERNAL_SHARE = 1 / 32
"""Share at which the magnitude of an intermediate (a row's mean, a score) enters an error scale.

Its rounding is that of fp32 whatever the type of the output. Counted in full, an offset of 64 would let a
bf16 answer pass for fp16; left out, strict fp32 would look a thousand times worse than it is at offset 1000.
"""
SMALLEST_NORMAL = {DType.FP32: 2.0**-126, DType.FP16: 2.0**-14, DType.BF16: 2.0**-126}
HUGE = {DType.FP32: 1e16, DType.FP16: 59000.0, DType.BF16: 1e16}
"""Near the largest value whose square still has a place in fp32 sums; in fp16 near the largest of all."""
TILES = (8, 16, 32, 64, 128, 256)
EXACT_KINDS = 4
"""Consecutive seeds of `exact_inputs` go through this many kinds of points, or divide it."""


def torch_dtype(kind: DType) -> "dtype":
    """Return torch's name of an element type."""
    import torch

    return {
        DType.FP64: torch.float64,
        DType.FP32: torch.float32,
        DType.FP16: torch.float16,
        DType.BF16: torch.bfloat16,
        DType.INT64: torch.int64,
        DType.INT32: torch.int32,
        DType.BOOL: torch.bool,
    }[kind]


def generator(seed: int) -> "Generator":
    """Return a generator of its own for a seed, on the default device: inputs for a GPU are drawn there."""
    import torch

    return torch.Generator(torch.get_default_device()).manual_seed(seed & ((1 << 63) - 1))


def draw(
    spec: TensorSpec,
    distribution: Distribution,
    rng: "Generator",
    *,
    largest_integer: int = 8,
    offset: float | None = None,
    tail: float = 1e3,
    huge: float | None = None,
) -> "Tensor":
    """Return a contiguous tensor of the spec's shape and type, drawn from the distribution.

    `largest_integer` bounds the magnitude of integer-exact values, `offset` replaces the usual offset, `tail` bounds
    heavy-tailed values and `huge` those near the maximum: an op whose sums or exponentials would overflow passes
    smaller ones.
    """
    import torch

    shape = spec.shape
    normal = torch.randn(shape, generator=rng, dtype=torch.float32)
    match distribution:
        case Distribution.SIGNED:
            values = normal
        case Distribution.SCALED:
            rows = (*shape[:-1], 1) if shape else ()
            exponent = torch.randint(-3, 4, rows, generator=rng)
            values = normal * torch.exp2(exponent.float())
        case Distribution.OFFSET:
            # 1e3 in fp32; halves keep 3 and 2 digits, so a smaller offset does the same damage there.
            usual = 1e3 if spec.dtype is DType.FP32 else 64.0
            sign = 1 if torch.rand((), generator=rng) < 0.5 else -1
            values = normal + sign * (usual if offset is None else offset)
        case Distribution.HEAVY_TAILED:
            # t with 2 degrees of freedom = normal / sqrt(chi2_2 / 2), and chi2_2 / 2 is a unit exponential.
            uniform = torch.rand(shape, generator=rng, dtype=torch.float32).clamp_min(1e-4)
            values = (normal / torch.sqrt(-torch.log(uniform)).clamp_min(1e-2)).clamp(-tail, tail)
        case Distribution.SPARSE:
            kept = torch.rand(shape, generator=rng) < 0.05
            if normal.numel():  # a tensor of nothing but zeros tells no right answer from a wrong one
                kept.view(-1)[torch.randint(normal.numel(), (), generator=rng)] = True
            values = normal * kept
        case Distribution.INTEGER:
            values = torch.randint(-largest_integer, largest_integer + 1, shape, generator=rng).float()
        case Distribution.DENORMAL:
            values = normal.sign() * torch.rand(shape, generator=rng) * SMALLEST_NORMAL[spec.dtype]
        case Distribution.NEAR_MAX:
            near = 0.9 + 0.1 * torch.rand(shape, generator=rng)
            values = normal.sign() * near * min(HUGE[spec.dtype], math.inf if huge is None else huge)
        case _:
            values = _arranged(distribution, normal, rng, tail)
    return rounded(values, spec)


def _arranged(distribution: Distribution, normal: "Tensor", rng: "Generator", tail: float) -> "Tensor":
    """Return normal values rearranged or stretched to what breaks a sum."""
    import torch

    level = min(64.0, tail / 4)
    if not normal.ndim:
        return normal
    match distribution:
        case Distribution.WIDE:
            magnitude = (4 * torch.randn(normal.shape, generator=rng)).exp().clamp_max(tail)
            return normal.sign() * magnitude
        case Distribution.CANCELLING:
            values = normal * level / 64
            first = normal[..., 0 : normal.shape[-1] // 2 * 2 : 2] * level / 4
            values[..., 0 : first.shape[-1] * 2 : 2] = first
            values[..., 1::2] -= first
            return values
        case Distribution.ALTERNATING:
            sign = 1.0 - 2.0 * (torch.arange(normal.shape[-1]) % 2)
            return sign * level * (0.5 + normal / 8)
        case Distribution.OUTLIERS:
            far = torch.rand(normal.shape, generator=rng) < 0.01
            return torch.where(far, (normal * tail).clamp(-tail, tail), normal)
        case Distribution.EQUAL:
            return normal[..., :1].expand(normal.shape)
        case Distribution.SORTED:
            return normal.sort(-1).values
    raise ValueError(f"no values are known for the distribution {distribution.value!r}")


def rounded(values: "Tensor", spec: TensorSpec) -> "Tensor":
    """Return the values in the spec's type without negative zeros, whose sign a sum or maximum may lose."""
    return values.to(torch_dtype(spec.dtype)) + 0.0


def exact_sum(dtype: DType) -> int:
    """Return the largest integer up to which every integer is representable."""
    return {DType.FP32: 1 << 24, DType.FP16: 1 << 11, DType.BF16: 1 << 8}[dtype]


def draw_few_integers(spec: TensorSpec, rng: "Generator", *, largest: int, at_most: int) -> "Tensor":
    """Return integers of which at most so many in each row are not zero, for sums that must stay exact."""
    import torch

    values = torch.randint(-largest, largest + 1, spec.shape, generator=rng).float()
    cols = spec.shape[-1]
    if at_most < cols:
        chosen = torch.rand(spec.shape, generator=rng) < 0.75 * at_most / cols
        values = torch.where(chosen & (chosen.cumsum(-1) <= at_most), values, 0.0)
    return rounded(values, spec)


def one_per_row(spec: TensorSpec, rng: "Generator") -> "Tensor":
    """Return a mask with one random place of each row, the first and the last among them where rows suffice."""
    import torch

    rows, cols = math.prod(spec.shape[:-1]), spec.shape[-1]
    place = torch.randint(cols, (rows, 1), generator=rng)
    place[: min(1, rows)], place[max(1, rows - 1) :] = 0, cols - 1
    return (torch.arange(cols) == place).reshape(spec.shape)


def draw_weight(spec: TensorSpec, rng: "Generator") -> "Tensor":
    """Return affine weights: both signs, magnitudes in [0.5, 1.5], never one, never zero."""
    import torch

    magnitude = 0.5 + torch.rand(spec.shape, generator=rng, dtype=torch.float32)
    sign = torch.where(torch.rand(spec.shape, generator=rng) < 0.5, -1.0, 1.0)
    return rounded(magnitude * sign, spec)


def planted(
    inputs: Mapping[str, "Tensor"], names: Sequence[str], seed: int, never_zero: Collection[str] = ()
) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return copies of the inputs with one NaN, infinity or -0.0 each, and what was planted where.

    Every value visits every named tensor, at the first, the last, a random place or the edge of a tile in turn; but no
    zero one that is never zero, because nothing but rounding would be left of an answer beside it.
    """
    rng = random.Random(seed)
    found = []
    for name in names:
        count = inputs[name].numel()
        if not count:
            continue
        tile = rng.choice([size for size in TILES if size < count] or [1])
        edge = min(count - 1, max(0, rng.randrange(1, count // tile + 1) * tile - rng.randrange(2)))
        places = [0, count - 1, rng.randrange(count), edge]
        rng.shuffle(places)
        for value, place in zip((math.nan, math.inf, -math.inf, -0.0), places, strict=True):
            if value == 0 and name in never_zero:
                continue
            changed = inputs[name].clone()
            changed.view(-1)[place] = value
            found.append((f"{value} at element {place} of {name}", {**inputs, name: changed}))
    return found


def log_uniform(low: int, high: int, uniform: float) -> int:
    """Return an integer in [low, high] whose logarithm is uniform."""
    return min(high, int(math.exp(math.log(low) + uniform * (math.log(high + 1) - math.log(low)))))


def hidden_extent(low: int, high: int, rng: random.Random) -> int:
    """Return an extent for a hidden test: log-uniform, every third time a tile multiple or its neighbour."""
    extent = log_uniform(low, max(low, high), rng.random())
    if rng.random() < 1 / 3:
        tile = rng.choice(TILES)
        extent = max(1, round(extent / tile)) * tile + rng.choice((-1, 0, 1))
    return min(max(low, high), max(low, extent))


def slices_beyond(elements: int, slice_elements: int) -> int:
    """Return how many slices of a tensor it takes to have a little more elements than that."""
    return elements // slice_elements + 3


def declared_compute(dtype: DType, wish: Compute | None = None) -> Compute:
    """Return the compute class of a case: strict unless the caller allows tf32, which needs fp32 inputs."""
    usual = Compute.STRICT_FP32 if dtype is DType.FP32 else Compute.FP32_ACCUMULATE
    if wish is None or wish is usual:
        return usual
    if wish is Compute.TF32_OK and dtype is DType.FP32:
        return wish
    raise ValueError(f"compute class {wish.value!r} does not go with {dtype.value} inputs")


def compute_class(case: Case) -> str:
    """Return the key of the matrix rate the case's FLOPs run at."""
    return "tf32" if case.compute is Compute.TF32_OK else case.dtype.value


def product(left: "Tensor", right: "Tensor") -> "Tensor":
    """Return the framework's matrix product, sums in fp32 and rounded once.

    On a CPU halves go through fp32, which is the same arithmetic: the half GEMM there runs at 1 GFLOP/s
    without AMX, and in bf16 oneDNN's AMX kernel died of an illegal instruction on a virtual machine.
    """
    if left.device.type == "cpu" and left.dtype.itemsize == 2:
        return (left.float() @ right.float()).to(left.dtype)
    return left @ right
