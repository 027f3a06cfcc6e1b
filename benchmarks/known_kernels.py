"""Kernels of a known truth for `judge_validity`: the same one twice, and some that do a known share of work more."""

from collections.abc import Mapping
from typing import NamedTuple

from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, Origin
from kernelwright.core.case import Case, DType
from kernelwright.core.device import Device
from kernelwright.core.problem import Problem
from kernelwright.engine.seeds import seed

BASE_SHARE = 0.25
"""Work the incumbent of an effect does beyond its own; challengers do more or less of it."""


class Kernel(NamedTuple):
    """What decisions are made on."""

    op: str
    backend: str
    axes: Mapping[str, int]
    dtype: DType


KERNELS = {
    "cpu": (
        Kernel("matmul", "cpp", {"m": 192, "n": 192, "k": 192}, DType.FP32),
        Kernel("softmax", "cpp", {"rows": 256, "cols": 512}, DType.FP32),
        Kernel("swiglu_mlp", "cpp", {"m": 64, "k": 192, "n": 256}, DType.FP32),
        Kernel("rmsnorm", "cpp", {"rows": 256, "cols": 256}, DType.FP32),
        Kernel("reduce", "cpp", {"rows": 512, "cols": 1024}, DType.FP32),
    ),
    "cuda": (
        Kernel("rmsnorm", "triton", {"rows": 2048, "cols": 2048}, DType.FP16),
        Kernel("softmax", "cuda", {"rows": 2048, "cols": 1024}, DType.BF16),
        Kernel("layernorm", "triton", {"rows": 1024, "cols": 4096}, DType.FP16),
        Kernel("matmul", "cuda", {"m": 512, "n": 1024, "k": 512}, DType.FP16),
        Kernel("reduce", "cuda", {"rows": 4096, "cols": 2048}, DType.FP32),
        Kernel("softmax", "triton", {"rows": 8192, "cols": 8192}, DType.FP16),
        Kernel("rmsnorm", "cuda", {"rows": 16384, "cols": 8192}, DType.BF16),
        Kernel("cross_entropy", "triton", {"rows": 8192, "vocab": 32000}, DType.BF16),
    ),
}
"""Kernels of about 5 to 400 microseconds."""
CPP_LONG = """
#include "kernelwright.h"
#include <cmath>
#include <cstdint>
/*kernelwright
PARAMS = {}
*/
extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    const float* w = static_cast<const float*>(weight->data);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* from = static_cast<const float*>(x->data) + row * cols;
        float* to = static_cast<float*>(out->data) + row * cols;
        double sum = 0;
        float idle = from[0];
        for (int64_t i = 0; i < cols; ++i) sum += double(from[i]) * from[i];
        for (int i = 0; i < STEPS; ++i) idle = idle * 0.5f + 1.0f;
        const float scale = float(1 / std::sqrt(sum / cols + eps)) + 0.0f * idle;
        for (int64_t i = 0; i < cols; ++i) to[i] = from[i] * scale * w[i];
    }
    return KW_OK;
}
"""
"""Takes as long as its steps, each of which waits for the one before it: rows that are done twice are in the cache the
second time, and 10 % of them were 5 % of the time. So does the one for GPUs."""
STEPS = 4000
TRITON_LONG = """
import triton
import triton.language as tl

@triton.jit
def norm(x, weight, out, cols, eps, steps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    value = tl.load(x + row * cols + col, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    total = tl.sum(value * value)
    idle = total
    for _ in range(steps):
        idle = idle * 0.5 + 1.0
    scale = 1.0 / tl.sqrt(total / cols + eps) + 0.0 * idle
    tl.store(out + row * cols + col, (value * scale * gain).to(out.dtype.element_ty), mask=inside)

def plan(case, params, device):
    rows, cols = case.axes.rows, case.axes.cols
    return {"launches": [{
        "kernel": "norm",
        "grid": (rows,),
        "args": ["x", "weight", "out", cols, case.scalars.eps, STEPS],
        "constants": {"BLOCK": next_power_of_2(cols)},
        "num_warps": 8,
    }]}
"""
PYTHON_NORM = """
import torch
import triton
import triton.language as tl

@triton.jit
def norm(x, weight, out, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    value = tl.load(x + row * cols + col, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / cols + eps)
    tl.store(out + row * cols + col, (value * scale * gain).to(out.dtype.element_ty), mask=inside)

def kernel_fn(x, weight, eps):
    out = torch.empty_like(x)
    rows, cols = x.shape
    norm[(rows,)](x, weight, out, cols, eps, BLOCK=triton.next_power_of_2(cols), num_warps=8)
    return out
"""
TIER_B = Kernel("rmsnorm", "python", {"rows": 2048, "cols": 2048}, DType.FP16)


def problem_of(kernel: Kernel, device: Device) -> Problem:
    """Return the problem decisions are made on."""
    case: Case = plugins.load("ops", kernel.op).case(kernel.axes, kernel.dtype)
    return Problem(op=kernel.op, cases=(case,), device=device)


def marked(candidate: Candidate, mark: str) -> Candidate:
    """Return the same kernel from a source that differs in a comment: another artefact, built on its own."""
    sign = "//" if candidate.backend in ("cpp", "cuda") else "#"
    return candidate.model_copy(update={"source": f"{candidate.source}\n{sign} {mark}\n"})


def honest(kernel: Kernel) -> Candidate:
    """Return the seed of an op, or the Python file with host code of its own."""
    if kernel.backend == "python":
        return written(kernel, PYTHON_NORM)
    found = seed(kernel.op, kernel.backend, Origin.AUTHOR)
    assert found is not None
    return found


def written(kernel: Kernel, source: str) -> Candidate:
    """Return a candidate of a source."""
    return Candidate(op=kernel.op, backend=kernel.backend, source=source, author=Author(name="benchmark"))


def diluted(device: Device, share: float) -> tuple[Kernel, Candidate]:
    """Return an rmsnorm that does a known amount of work more."""
    steps = str(round(STEPS * (1 + share) / (1 + BASE_SHARE)))
    if device.kind != "cpu":
        kernel = Kernel("rmsnorm", "triton", {"rows": 2048, "cols": 1024}, DType.FP16)
        return kernel, written(kernel, TRITON_LONG.replace("STEPS", steps))
    kernel = Kernel("rmsnorm", "cpp", {"rows": 512, "cols": 64}, DType.FP32)
    return kernel, written(kernel, CPP_LONG.replace("STEPS", steps))
