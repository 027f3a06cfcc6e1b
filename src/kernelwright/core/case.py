"""`Case`: one concrete size of an op, the workload object that test, timing, profile and report all share."""

import math
from enum import StrEnum

from pydantic import Field, model_validator

from kernelwright.core.frozen import Frozen, Noun


class DType(StrEnum):
    """Element types a tensor of a case may have."""

    FP32 = "fp32"
    """IEEE single precision."""
    FP16 = "fp16"
    """IEEE half precision."""
    BF16 = "bf16"
    """Brain float: the exponent of fp32 with 8 bits of significand."""
    FP64 = "fp64"
    """IEEE double precision; references only."""
    INT64 = "int64"
    """Indices and labels."""
    INT32 = "int32"
    """Indices and labels."""
    BOOL = "bool"
    """Masks."""

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return {"fp64": 8, "int64": 8, "fp32": 4, "int32": 4, "fp16": 2, "bf16": 2, "bool": 1}[self.value]


class Compute(StrEnum):
    """How precisely the arithmetic of a case must be done."""

    STRICT_FP32 = "strict_fp32"
    """fp32 inputs, every product and sum in fp32."""
    TF32_OK = "tf32_ok"
    """fp32 inputs, products may be rounded to tf32, sums in fp32."""
    FP32_ACCUMULATE = "fp32_accumulate"
    """fp16 or bf16 inputs, sums in fp32, one rounding at the end."""


class Distribution(StrEnum):
    """How the values of an input are drawn."""

    SIGNED = "signed"
    """Standard normal, both signs."""
    SCALED = "scaled"
    """Normal, each row with its own scale over six powers of two."""
    OFFSET = "offset"
    """Normal around a large common offset, so that unstable formulas lose their digits."""
    HEAVY_TAILED = "heavy_tailed"
    """Student's t with two degrees of freedom: a few values dominate."""
    SPARSE = "sparse"
    """Normal with 95 % exact zeros."""
    INTEGER = "integer"
    """Small integers, so that every partial sum is exact in the op's own precision."""
    WIDE = "wide"
    """Log-normal magnitudes over many powers of two, both signs."""
    CANCELLING = "cancelling"
    """Neighbours that cancel to a small rest."""
    DENORMAL = "denormal"
    """Values below the smallest normal number of their type."""
    ALTERNATING = "alternating"
    """Nearly one magnitude, the sign changing from element to element."""
    OUTLIERS = "outliers"
    """Normal with one element in a hundred far outside."""
    EQUAL = "equal"
    """Every row has one value of its own throughout."""
    SORTED = "sorted"
    """Normal, ascending along each row."""
    NEAR_MAX = "near_max"
    """Magnitudes near the largest the op can take without overflow."""


class Layout(StrEnum):
    """How the tensors of a case may lie in memory besides densely and well aligned."""

    OFFSET = "offset"
    """Dense, the first element 1, 2, 4 or 8 elements behind an aligned address."""
    ROW_STRIDED = "row_strided"
    """Last axis dense, rows further apart than they are long, outer axes in another order."""
    TRANSPOSED = "transposed"
    """Last two axes exchanged in memory; a vector with a gap between its elements."""
    BROADCAST = "broadcast"
    """One row stands for all of them: stride zero on the first axis."""


class TensorSpec(Frozen):
    """Shape, type and layout of one tensor."""

    name: str
    """Name in the op's signature."""
    shape: tuple[int, ...]
    """Extent of each axis; zero is legal."""
    dtype: DType
    """Element type."""
    strides: tuple[int, ...] | None = None
    """Elements between neighbours on each axis; None means contiguous."""
    offset: int = Field(default=0, ge=0)
    """Elements between the start of the (well aligned) storage and the first element."""

    @model_validator(mode="after")
    def _strides_fit(self) -> "TensorSpec":
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ValueError(
                f"tensor {self.name!r} has {len(self.shape)} axes but {len(self.strides)} strides"
            )
        if any(extent < 0 for extent in self.shape) or any(stride < 0 for stride in self.strides or ()):
            raise ValueError(f"tensor {self.name!r} has a negative extent or stride")
        return self

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def element_strides(self) -> tuple[int, ...]:
        """Return the strides, those of a contiguous tensor if none were given."""
        if self.strides is not None:
            return self.strides
        strides, step = [], 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= max(extent, 1)
        return tuple(reversed(strides))

    @property
    def is_contiguous(self) -> bool:
        """Tell whether the elements lie densely in row-major order."""
        dense = self.model_copy(update={"strides": None}).element_strides
        return all(a == b or n <= 1 for a, b, n in zip(self.element_strides, dense, self.shape, strict=True))

    @property
    def storage_elements(self) -> int:
        """Return the elements the storage must hold, offset included."""
        if self.numel == 0:
            return self.offset
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.element_strides, strict=True))
        return self.offset + reach + 1

    @property
    def nbytes(self) -> int:
        """Return the bytes of the elements themselves."""
        return self.numel * self.dtype.itemsize


class Case(Noun):
    """One concrete size of an op: shapes, dtypes, strides, alignment, scalars, weight by time."""

    op: str
    """The op this is a case of."""
    axes: dict[str, int]
    """Extent by axis name; one spelling across ops: rows, cols, batch, heads, seq, head_dim, m, n, k, vocab."""
    dtype: DType
    """The type that names the case."""
    compute: Compute
    """How precisely the arithmetic must be done."""
    inputs: tuple[TensorSpec, ...]
    """Input tensors in the order of the op's signature."""
    outputs: tuple[TensorSpec, ...]
    """Output tensors in the order of the op's signature."""
    scalars: dict[str, bool | int | float] = Field(default_factory=dict)
    """Scalar arguments by name, in the order of the op's signature."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the problem's time; no part of the identity."""

    def identity(self) -> object:
        """Return everything but the weight: the same size is the same case in every problem."""
        # Scalars as pairs: their order is the signature's and must survive the sorted keys of the hash.
        named = self.model_dump(mode="json", exclude={"weight", "scalars"})
        return named | {"scalars": [[name, value] for name, value in self.scalars.items()]}

    @property
    def label(self) -> str:
        """Return a short human name such as `rmsnorm 512x256 fp32`."""
        return f"{self.op} {'x'.join(str(n) for n in self.axes.values())} {self.dtype.value}"
