"""Inputs that share their storage keep what an op asks of the smaller ones: else a right kernel fails now and then."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.judge.stages.layout import _tied, overlaps

SIZES = {
    "layernorm": {"rows": 7, "cols": 5992},
    "rmsnorm": {"rows": 7, "cols": 5992},
    "matmul": {"m": 5, "n": 7, "k": 9},
}


@pytest.mark.parametrize("op_name", SIZES)
def test_a_bias_in_the_storage_of_the_rows_stays_away_from_zero(op_name: str) -> None:
    op = plugins.load("ops", op_name)
    case = op.case(SIZES[op_name], DType.FP32)
    bench: Any = SimpleNamespace(op=op)
    for seed in range(3):
        for _, shared in overlaps(case):
            inputs = _tied(bench, case, shared, seed)
            for small, large in shared.items():
                own = inputs[small]
                assert torch.equal(own.reshape(-1), inputs[large].reshape(-1)[: own.numel()])
                if small in ("weight", "bias"):
                    assert float(own.abs().min()) >= 0.5
            assert all(inputs[spec.name].shape == spec.shape for spec in case.inputs)


def test_no_zero_is_planted_in_a_layernorms_bias() -> None:
    op = plugins.load("ops", "layernorm")
    case = op.case({"rows": 3, "cols": 40}, DType.FP32)
    told = [what for seed in range(5) for what, _ in op.special_inputs(case, seed)]
    assert {what.split()[0] for what in told if what.endswith("of x")} == {"nan", "inf", "-inf", "-0.0"}
    assert {what.split()[0] for what in told if what.endswith("of bias")} == {"nan", "inf", "-inf"}
