"""Every op keeps the claims of the conformance suite, and the suite notices an op that does not."""

import types

import pytest
import torch

from kernelwright.core import plugins
from kernelwright.core.case import Compute, Distribution, DType
from kernelwright.ops import attention, layernorm, matmul, reduce, rope, softmax, swiglu_mlp
from kernelwright.testing import op_suite


@pytest.fixture(autouse=True)
def one_thread():
    """Keep torch on one thread: on a busy machine the barriers of many small ops cost 10x the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("claim", op_suite.CHECKS)
@pytest.mark.parametrize(
    "name", [name for name in plugins.names("ops") if plugins.load("ops", name).public_cases()]
)  # comes with a file
def test_op_keeps_its_claim(name, claim):
    op = op_suite.load_op(name)
    assert op.public_cases()[0].op == name
    op_suite.CHECKS[claim](op)


def _seedless(case, distribution, seed):
    return softmax.make_inputs(case, distribution, 0)


def _always_signed(case, distribution, seed):
    return softmax.make_inputs(case, Distribution.SIGNED, seed)


def _biasless(inputs, scalars):
    return layernorm.reference({**inputs, "bias": inputs["bias"] * 0}, scalars)


def _low_precision(inputs, scalars):
    return tuple(t.bfloat16().to(t.dtype) for t in softmax.reference(inputs, scalars))


def _truncated(inputs, scalars):
    return tuple(t[:-1] for t in softmax.reference(inputs, scalars))


def _dense_integers(case, distribution, seed):
    return {"x": softmax.make_inputs(case, distribution, seed)["x"] * 8}


BROKEN = {
    "two lines": (softmax, "description", {"SUMMARY": "a\nb"}, "one line"),
    "a case twice": (softmax, "cases", {"edge_cases": softmax.public_cases}, "listed twice"),
    "largest first": (
        softmax,
        "cases",
        {"public_cases": lambda: softmax.public_cases()[::-1]},
        "smallest first",
    ),
    "no zero size": (softmax, "edges", {"edge_cases": softmax.public_cases}, "empty input"),
    "work of nothing": (
        softmax,
        "work",
        {"work": lambda case: softmax.work(case).model_copy(update={"bytes_read": 0})},
        "bytes read",
    ),
    "one sample": (softmax, "samples", {"sample_case": lambda rng: softmax.public_cases()[0]}, "repeat"),
    "a seed unread": (softmax, "inputs", {"make_inputs": _seedless}, "ignores the seed"),
    "one distribution": (softmax, "distributions", {"make_inputs": _always_signed}, "not offset"),
    "an output cut off": (softmax, "precision", {"reference": _truncated}, "has shape"),
    "an imprecise reference": (softmax, "precision", {"reference": _low_precision}, "half-ulps"),
    "an empty scale": (
        softmax,
        "precision",
        {"error_scale": lambda inputs, scalars: (inputs["x"] * 0,)},
        "scale is zero",
    ),
    "inexact sums": (reduce, "exactness", {"make_inputs": _dense_integers}, "not exact"),
    "a bias unread": (layernorm, "sensitivity", {"reference": _biasless}, "depend on bias"),
    "inputs of zero": (
        softmax,
        "null models",
        {"reference": lambda inputs, scalars: (inputs["x"] * 0,)},
        "zeros pass",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_suite_notices(fault):
    op, claim, changes, complaint = BROKEN[fault]
    broken = types.SimpleNamespace(**{**vars(op), **changes})
    with pytest.raises(AssertionError, match=complaint):
        op_suite.CHECKS[claim](broken)


def test_check_op_refuses_cases_that_name_another_op(monkeypatch):
    monkeypatch.setattr(op_suite, "load_op", lambda name: softmax)
    with pytest.raises(AssertionError, match="'gelu'"):
        op_suite.check_op("gelu")


@pytest.mark.parametrize("op", [matmul, attention, swiglu_mlp], ids=lambda op: op.SUMMARY)
def test_tf32_is_declared_by_the_caller_and_only_for_fp32(op):
    axes = op.public_cases()[0].axes
    relaxed = op.case(axes, DType.FP32, compute=Compute.TF32_OK)
    assert relaxed.compute is Compute.TF32_OK
    assert op.work(relaxed).compute_class == "tf32"
    assert relaxed.hash != op.case(axes, DType.FP32).hash
    with pytest.raises(ValueError, match="tf32_ok"):
        op.case(axes, DType.FP16, compute=Compute.TF32_OK)


@pytest.mark.parametrize(
    ("op", "axes", "scalars", "complaint"),
    [
        (attention, (1, 3, 2, 4, 4, 16), {}, "multiple of kv_heads"),
        (attention, (1, 2, 2, 4, 5, 16), {"causal": True}, "seq equal to kv_seq"),
        (attention, (1, 2, 2, 4, 0, 16), {}, "needs a key"),
        (rope, (1, 1, 4, 7), {}, "must be even"),
        (reduce, (3, 0), {"is_max": True}, "maximum over no columns"),
    ],
)
def test_illegal_size_is_refused_by_name(op, axes, scalars, complaint):
    named = dict(zip(op.public_cases()[0].axes, axes, strict=True))
    with pytest.raises(ValueError, match=complaint):
        op.case(named, DType.FP32, scalars)


def test_causal_attention_counts_half_the_square():
    axes = {"batch": 1, "heads": 32, "kv_heads": 32, "seq": 4096, "kv_seq": 4096, "head_dim": 128}
    assert attention.work(attention.case(axes, DType.FP16, {"causal": True})).flops == 2 * 32 * 4096**2 * 128
    assert attention.work(attention.case(axes, DType.FP16)).flops == 4 * 32 * 4096**2 * 128


@pytest.mark.parametrize("dtype", list(DType)[:3])
def test_a_half_accumulator_is_wrong_about_an_infinity_among_large_numbers(dtype: DType) -> None:
    case = reduce.case({"rows": 3, "cols": 100}, dtype)
    x = reduce.special_inputs(case, 7)[-1][1]["x"][-1]
    assert float(x.float().sum()) == float("-inf")
    total = torch.zeros((), dtype=torch.half)
    for value in x.half():
        total = total + value
    assert bool(total.isnan())


def test_nothing_under_an_infinite_weight_is_the_mean_of_its_row() -> None:
    """There 0 times infinity is NaN, and what rounds the mean otherwise is infinite: an honest kernel was refused."""
    case, undecided = layernorm.case({"rows": 4096, "cols": 3}, DType.BF16), 0
    for seed in range(4):
        plain = layernorm.make_inputs(case, Distribution.SIGNED, seed)["x"].double()
        undecided += int((plain - plain.mean(-1, keepdim=True) == 0).sum())
        for what, inputs in layernorm.special_inputs(case, seed):
            x = inputs["x"].double()
            centred = (x - x.mean(-1, keepdim=True))[:, inputs["weight"].isinf()]
            assert not bool((centred.abs() < 1e-4).any()), what
    assert undecided > 0, "such rows are drawn"
