"""Regions as real code has them, written small: complex rotary, mixed types, masks, biases, losses; then models."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor

from kernelwright.core.case import DType
from kernelwright.model.extract import Found
from kernelwright.model.graph import OP
from kernelwright.model.splice import Tally, with_own_regions
from tests.cpu import model_zoo as zoo
from tests.cpu.test_recognise import (
    AFFINE,
    GATED,
    GROUPED,
    HEADS,
    NORM,
    QKV,
    ROWS,
    TABLES,
    B,
    D,
    Form,
    H,
    N,
    S,
    counted,
    extracted,
)

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")
BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Keep oneDNN out: its bf16 product dies of an illegal instruction on virtual machines that do not know AMX."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.backends.mkldnn.flags(enabled=False):
        yield
    torch._dynamo.reset()


def as_complex(m: Any, x: Tensor) -> Tensor:
    """Meta's LLaMA: positions before heads, pairs as complex numbers."""
    table = torch.view_as_complex(torch.stack((m.cos, m.sin), -1).float())[None, :, None]
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table).flatten(3).type_as(x)


def in_pairs(m: Any, x: Tensor) -> Tensor:
    """gpt-fast: the table holds cosine and sine side by side."""
    table = torch.stack((m.cos, m.sin), -1).view(1, S, 1, D // 2, 2)
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    turned = torch.stack(
        (
            pairs[..., 0] * table[..., 0] - pairs[..., 1] * table[..., 1],
            pairs[..., 1] * table[..., 0] + pairs[..., 0] * table[..., 1],
        ),
        -1,
    )
    return turned.flatten(3).type_as(x)


def partly(m: Any, x: Tensor) -> Tensor:
    first, rest = x[..., :D], x[..., D:]
    cos, sin = torch.cat((m.cos, m.cos), -1), torch.cat((m.sin, m.sin), -1)
    turned = torch.cat((-first[..., D // 2 :], first[..., : D // 2]), -1)
    return torch.cat((first * cos + turned * sin, rest), -1)


def turned_twice(m: Any, x: Tensor) -> Tensor:
    """Two rotations, one behind the other."""
    table = torch.view_as_complex(torch.stack((m.cos, m.sin), -1))[None, :, None]
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table * table).flatten(3)


def weight_last(m: Any, x: Tensor) -> Tensor:
    """OLMo: everything in fp32, one cast at the end."""
    wide = x.float()
    return (m.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6))).to(x.dtype)


def weight_outside(m: Any, x: Tensor) -> Tensor:
    """LLaMA with norms left in fp32: the result is fp32 as well."""
    wide = x.float()
    return m.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def plus_one(m: Any, x: Tensor) -> Tensor:
    """Gemma."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (wide * (1.0 + m.weight.float())).type_as(x)


def wide_norm(m: Any, x: Tensor) -> Tensor:
    """fairseq's norm in fp32."""
    return F.layer_norm(x.float(), (N,), m.weight.float(), m.bias.float(), 1e-5).type_as(x)


def by_groups(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Meta's LLaMA: heads repeated before they are moved, scores in fp32, a mask of minus infinities added."""

    def repeated(x: Tensor) -> Tensor:
        return x[:, :, :, None].expand(B, S, H // 2, 2, D).reshape(B, S, H, D)

    q, k, v = (x.transpose(1, 2) for x in (q, repeated(k), repeated(v)))
    scores = q @ k.transpose(2, 3) / math.sqrt(D) + torch.full((S, S), float("-inf")).triu(1)
    return F.softmax(scores.float(), -1).type_as(q) @ v


def summed(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * D**-0.5
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


def permuted(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1) * D**-0.5
    return scores.softmax(-1) @ v.permute(0, 2, 1, 3)


def in_one_batch(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """OPT and BART: all heads in one batch."""
    return torch.bmm(torch.bmm(q * D**-0.5, k.transpose(1, 2)).softmax(-1), v)


def windowed(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    visible = torch.ones(S, S, dtype=torch.bool).tril().triu(-3)
    return (q @ k.transpose(2, 3) * D**-0.5).masked_fill(~visible, float("-inf")).softmax(-1) @ v


def wide_window(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(S)
    visible = (place[:, None] >= place) & (place[:, None] - place < 4 * S)
    return F.scaled_dot_product_attention(
        q, k, v, torch.where(visible, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
    )


def merged_matmul(m: Any, x: Tensor) -> Tensor:
    gate, up = (x @ m.both.T).split(96, -1)
    return (F.silu(gate) * up) @ m.down.T


def picked(_: Any, x: Tensor, y: Tensor) -> Tensor:
    return -F.log_softmax(x, -1).gather(-1, y[:, None]).squeeze(-1).mean()


def streamed(_: Any, x: Tensor, y: Tensor) -> Tensor:
    return (x.logsumexp(-1) - x.gather(-1, y.unsqueeze(-1)).squeeze(-1)).mean()


def classes_second(_: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.view(8, 4, 100).transpose(1, 2), y.view(8, 4), ignore_index=7)


def shifted(_: Any, x: Tensor, y: Tensor) -> Tensor:
    """transformers: logits in fp32, labels moved by one, the last one ignored."""
    return F.cross_entropy(x.float(), F.pad(y, (0, 1), value=-100)[1:], ignore_index=-100)


def averaged(_: Any, x: Tensor, y: Tensor) -> Tensor:
    """transformers with a number of items: a sum, divided."""
    return F.cross_entropy(x.float(), y, reduction="sum") / 24


BEFORE = (B, S, H, D)
LOGITS = ((32, 100),)
FORMS = [
    *(Form(f"rope by complex numbers {kind}", as_complex, (BEFORE,), {"rope": 1}, {"interleaved": True}, TABLES, kind)
      for kind in (FP32, BF16)),
    *(Form(f"rope in pairs {kind}", in_pairs, (BEFORE,), {"rope": 1}, {"interleaved": True}, TABLES, kind)
      for kind in (FP32, BF16)),
    Form("rope in pairs, tables in fp32", in_pairs, (BEFORE,), {"rope": 1}, {}, TABLES, BF16,
         state_dtype=FP32),
    *(Form(f"rope of a part {kind}", partly, ((B, H, S, 2 * D),), {"rope": 1}, {"interleaved": False}, TABLES, kind)
      for kind in (FP32, BF16)),
    Form("rope turned twice", turned_twice, (BEFORE,), {}, {}, TABLES),
    Form("fp32 weight, one cast", weight_last, (ROWS,), {"rmsnorm": 1}, {"eps": 1e-6}, NORM, BF16,
         state_dtype=FP32),
    Form("fp32 weight, fp32 result", weight_outside, (ROWS,), {"rmsnorm": 1}, {"eps": 1e-6}, NORM, BF16,
         state_dtype=FP32),
    Form("one plus weight in fp32", plus_one, (ROWS,), {"rmsnorm": 1}, {"eps": 1e-6}, NORM, BF16),
    Form("layer norm in fp32 of halves", wide_norm, (ROWS,), {"layernorm": 1}, {"eps": 1e-5}, AFFINE, BF16),
    Form("layer norm in fp32 with fp32 weights", wide_norm, (ROWS,), {"layernorm": 1}, {}, AFFINE, BF16,
         state_dtype=FP32),
    Form("layer norm of halves with fp32 weights", lambda m, x: F.layer_norm(x, (N,), m.weight, m.bias), (ROWS,), {},
         {}, AFFINE, BF16, state_dtype=FP32),
    *(Form(f"attention by groups {kind}", by_groups, (BEFORE, (B, S, H // 2, D), (B, S, H // 2, D)),
           {"attention": 1, "softmax": 1}, {"causal": True, "scale": 0.25}, {}, kind) for kind in (FP32, BF16)),
    Form("repeat_interleave", lambda _, q, k, v: F.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)), GROUPED, {"attention": 1}),
    Form("attention by einsum", summed, QKV, {"attention": 1, "softmax": 1}, {"causal": False, "scale": 0.25}),
    Form("attention of permuted heads", permuted, (BEFORE,) * 3, {"attention": 1, "softmax": 1}, {"scale": 0.25}),
    Form("attention in one batch", in_one_batch, ((B * H, S, D),) * 3, {"attention": 1, "softmax": 1}, {"scale": 1.0}),
    Form("attention in a window", windowed, QKV, {"softmax": 1}),
    Form("attention in a window wider than the sequence", wide_window, QKV, {"attention": 1}, {"causal": True}),
    Form("swiglu by one matmul", merged_matmul, (ROWS,), {"swiglu_mlp": 1, "matmul": 2}, {}, GATED),
    Form("loss by gather", picked, LOGITS, {"cross_entropy": 1}, {"ignore_index": -100}, labels=100),
    Form("loss by logsumexp", streamed, LOGITS, {"cross_entropy": 1}, {"ignore_index": -100}, labels=100),
    Form("loss with classes second", classes_second, LOGITS, {"cross_entropy": 1}, {"ignore_index": 7}, labels=100),
    Form("loss of halves in fp32", shifted, LOGITS, {"cross_entropy": 1}, {"ignore_index": -100}, {}, BF16, 100),
    Form("loss by a sum", averaged, LOGITS, {}, {}, {}, BF16, 100),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_regions_of_real_code_are_found(form: Form) -> None:
    found = extracted(form)
    assert counted(found) == form.found
    assert not any(one.rejected for one in found)
    if form.scalars:
        (one,) = [one for one in found if one.op == next(iter(form.found))]
        assert {name: one.case.scalars[name] for name in form.scalars} == pytest.approx(form.scalars)


def found_in(name: str) -> list[Found]:
    return extracted(next(form for form in FORMS if form.name == name))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fp32 weight, one cast", DType.FP32),
        ("one plus weight in fp32", DType.FP32),
        ("layer norm in fp32 with fp32 weights", DType.FP32),
        ("layer norm in fp32 of halves", DType.BF16),
        (f"rope by complex numbers {BF16}", DType.FP32),
        ("rope in pairs, tables in fp32", DType.FP32),
        (f"rope of a part {BF16}", DType.BF16),
    ],
)
def test_types_that_differ_leave_the_casts_outside_and_one_type_takes_them_in(name: str, kind: DType) -> None:
    (one,) = [one for one in found_in(name) if one.op != OP]
    assert {spec.dtype for spec in (*one.case.inputs, *one.case.outputs)} == {kind}
    assert ("bfloat16" in one.source) == (kind is DType.BF16)


def test_shared_heads_stay_shared() -> None:
    (one,) = [one for one in found_in(f"attention by groups {FP32}") if one.op == "attention"]
    assert (one.case.axes["heads"], one.case.axes["kv_heads"]) == (H, H // 2)
    assert one.case.inputs[1].shape == (B, H // 2, S, D)


def alone(form: Form) -> Found:
    """Return the only problem of a form, which must be a graph's."""
    (one,) = extracted(form)
    assert (one.op, one.rejected) == (OP, "")
    return one


def test_a_bias_stays_with_its_product_so_that_the_sum_is_rounded_once() -> None:
    state = {"both": (192, N), "shift": (192,)}
    one = alone(Form("", lambda m, x: F.linear(x, m.both, m.shift), (ROWS,), {}, {}, state, BF16))
    assert one.source.count("torch.ops.") == 1 and "aten.linear.default" in one.source
    found = extracted(Form("", lambda m, x: F.gelu(F.linear(x, m.both, m.shift)), (ROWS,), {}, {}, state))
    texts = [one.source for one in found if one.op == OP]
    assert sum("linear" in text and "gelu" in text for text in texts) == 1, "the product with its epilogue"
    assert len(found) == len(texts) == 2


@pytest.mark.parametrize(
    "form",
    [
        Form("rms_norm", lambda _, x: F.rms_norm(x, (N,)), (ROWS,), {}),
        Form("layer_norm", lambda _, x: F.layer_norm(x, (N,)), (ROWS,), {}),
        Form("band", lambda _, q, k, v: F.scaled_dot_product_attention(
            q, k, v, torch.ones(S, S, dtype=torch.bool).tril().triu(-3)), QKV, {}),
        Form("data", lambda _, q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask), (*QKV, (B, 1, S, S)), {}),
        Form("smoothed", lambda _, x, y: F.cross_entropy(x, y, label_smoothing=0.1), LOGITS, {}, labels=100),
        Form("summed", lambda _, x, y: F.cross_entropy(x, y, reduction="sum"), LOGITS, {}, labels=100),
        Form("written", lambda _, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), (HEADS,), {}),
    ],
    ids=lambda form: form.name,
)  # fmt: skip
def test_what_no_op_allows_is_a_problem_of_its_own(form: Form) -> None:
    alone(form)


SMALL = {**zoo.SMALL, **zoo.GROUPED}
PLAIN = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
MODELS = {
    "mistral in a window": (hf.MistralForCausalLM, hf.MistralConfig(**SMALL, sliding_window=8), {"rope": 4}),
    "mistral in a wide window": (
        hf.MistralForCausalLM, hf.MistralConfig(**SMALL, sliding_window=64), {"rope": 4, "attention": 2}),
    "llama, eager attention": (
        hf.LlamaForCausalLM, hf.LlamaConfig(**SMALL, attn_implementation="eager"),
        {"rope": 4, "attention": 2, "softmax": 2, "swiglu_mlp": 2}),
    "phi, part of a head": (
        hf.PhiForCausalLM, hf.PhiConfig(**SMALL, partial_rotary_factor=0.5),
        {"rope": 4, "attention": 2, "layernorm": 3}),
    "gpt-neox, part of a head": (
        hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**PLAIN, rotary_pct=0.5), {"rope": 4, "attention": 2, "layernorm": 5}),
    "gemma": (
        hf.GemmaForCausalLM, hf.GemmaConfig(**SMALL, head_dim=16), {"rope": 4, "attention": 2, "rmsnorm": 5}),
    "cohere, interleaved": (hf.CohereForCausalLM, hf.CohereConfig(**SMALL), {"rope": 4, "attention": 2}),
}  # fmt: skip


@pytest.mark.parametrize("kind", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_models_are_recognised_in_both_types_and_come_back_to_the_bit(name: str, kind: torch.dtype) -> None:
    make, config, expected = MODELS[name]
    model, inputs = zoo.built(lambda: (make(config), {"input_ids": zoo.tokens()}))
    model, tally, seen = model.to(kind), Tally(), list[Found]()
    with torch.no_grad():
        answer = with_own_regions(model, tally, seen)(**inputs).logits
        assert torch.equal(answer, model(**inputs).logits)
    count = Counter[str]()
    for one in seen:
        count[one.op] += len(one.sites)
    assert {op: count[op] for op in expected} == expected
    assert (tally.spliced > 0, tally.fallbacks, [one.rejected for one in seen if one.rejected]) == (
        True,
        0,
        [],
    )
    if "window" in name and "wide" not in name:
        own = [one for one in seen if "scaled_dot_product" in one.source]
        assert [(one.op, len(one.sites)) for one in own] == [(OP, 2)]
