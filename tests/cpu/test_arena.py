"""The judge's buffers: what marks an element that nobody wrote."""

import random

import torch

from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.judge.arena import BITS, Arena


def test_the_mark_of_an_unwritten_element_is_a_nan_that_no_processor_makes() -> None:
    case = plugins.load("ops", "rmsnorm").case({"rows": 2, "cols": 8}, DType.FP32)
    seen = set()
    for seed in range(200):
        arena = Arena([case], [0], random.Random(seed))
        for dtype in (DType.FP64, DType.FP32, DType.FP16, DType.BF16):
            kind, quiet, free = BITS[dtype]
            bits = arena._poison(dtype)
            assert bits not in (quiet, quiet | ((1 << free) - 1)), "a CPU's own NaN, and a GPU's"
            of = {torch.int64: torch.float64, torch.int32: torch.float32}.get(kind)
            of = of or (torch.float16 if dtype is DType.FP16 else torch.bfloat16)
            assert bool(torch.tensor([bits], dtype=kind).view(of).isnan())
            seen.add((dtype, bits))
    assert len([one for one in seen if one[0] is DType.BF16]) == 16
