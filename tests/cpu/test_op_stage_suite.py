"""The conformance suite notices an op that does not give the judge's stages what they need."""

import types

import pytest
import torch

from kernelwright.core.case import Distribution
from kernelwright.core.verdict import NullModel
from kernelwright.ops import attention, reduce, rmsnorm
from kernelwright.testing import op_suite


def _rough_points(case, seed):
    return rmsnorm.make_inputs(case, Distribution.SIGNED, seed), 0


BROKEN = {
    "no exact point": (rmsnorm, "exact points", {"exact_inputs": lambda case, seed: None}, "no exact point"),
    "a point that is not exact": (rmsnorm, "exact points", {"exact_inputs": _rough_points}, "misses a point"),
    "no special values": (
        rmsnorm,
        "special values",
        {"special_inputs": lambda case, seed: []},
        "special values",
    ),
    "a value that is not planted": (
        rmsnorm,
        "special values",
        {
            "special_inputs": lambda case, seed: [
                (what, {name: torch.ones_like(t) for name, t in inputs.items()})
                for what, inputs in rmsnorm.special_inputs(case, seed)
            ]
        },
        "is not there",
    ),
    "a scalar that never changes": (
        attention,
        "other scalars",
        {"other_scalars": lambda case: [{"scale": 1.0}]},
        "causal",
    ),
    "a change that changes nothing": (
        rmsnorm,
        "other scalars",
        {"other_scalars": lambda case: [{"eps": case.scalars["eps"]}]},
        "changes nothing",
    ),
    "growth of nothing": (
        reduce,
        "growth",
        {"growth_cases": lambda dtype: reduce.public_cases()[:1] * 3},
        "growth cases of depth",
    ),
    "a depth of nothing": (
        reduce,
        "depth",
        {"depth": lambda case: 0, "ROUNDED_INTERMEDIATES": -1},
        "times its depth's bound",
    ),
    "no layout": (rmsnorm, "layouts", {"REQUIRED_LAYOUTS": ()}, "are not required"),
    "an exception without a reason": (
        rmsnorm,
        "null exceptions",
        {"NULL_EXCEPTIONS": {NullModel.ZEROS: "no"}},
        "is no reason",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_suite_notices(fault):
    op, claim, changes, complaint = BROKEN[fault]
    broken = types.SimpleNamespace(**{**vars(op), **changes})
    with pytest.raises(AssertionError, match=complaint):
        op_suite.CHECKS[claim](broken)
