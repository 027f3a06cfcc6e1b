"""What the files of this drawer share, not an op: how values are drawn, hidden sizes, compute classes."""

import math
import random
from typing import TYPE_CHECKING

from kernelwright.core.case import Case, Compute, Distribution, DType, TensorSpec

if TYPE_CHECKING:
    from torch import Generator, Tensor, dtype

INTERNAL_SHARE = 1 / 32
"""Share at which the magnitude of an intermediate (a row's mean, a score) enters an error scale.

Its rounding is that of fp32 whatever the type of the output. Counted in full, an offset of 64 would let a
bf16 answer pass for fp16; left out, strict fp32 would look a thousand times worse than it is at offset 1000.
"""


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
    """Return a generator of its own for a seed."""
    import torch

    return torch.Generator().manual_seed(seed & ((1 << 63) - 1))


def draw(
    spec: TensorSpec,
    distribution: Distribution,
    rng: "Generator",
    *,
    largest_integer: int = 8,
    offset: float | None = None,
    tail: float = 1e3,
) -> "Tensor":
    """Return a contiguous tensor of the spec's shape and type, drawn from the distribution.

    `largest_integer` bounds the magnitude of integer-exact values, `offset` replaces the usual offset and
    `tail` bounds heavy-tailed values: an op whose sums or exponentials would overflow passes smaller ones.
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
    return rounded(values, spec)


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


def draw_weight(spec: TensorSpec, rng: "Generator") -> "Tensor":
    """Return affine weights: both signs, magnitudes in [0.5, 1.5], never one, never zero."""
    import torch

    magnitude = 0.5 + torch.rand(spec.shape, generator=rng, dtype=torch.float32)
    sign = torch.where(torch.rand(spec.shape, generator=rng) < 0.5, -1.0, 1.0)
    return rounded(magnitude * sign, spec)


def log_uniform(low: int, high: int, uniform: float) -> int:
    """Return an integer in [low, high] whose logarithm is uniform."""
    return min(high, int(math.exp(math.log(low) + uniform * (math.log(high + 1) - math.log(low)))))


def hidden_extent(low: int, high: int, rng: random.Random) -> int:
    """Return an extent for a hidden test: log-uniform, every third time a tile multiple or its neighbour."""
    extent = log_uniform(low, max(low, high), rng.random())
    if rng.random() < 1 / 3:
        tile = rng.choice((8, 16, 32, 64, 128, 256))
        extent = max(1, round(extent / tile)) * tile + rng.choice((-1, 0, 1))
    return min(max(low, high), max(low, extent))


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
