"""Every op finds itself in the forms real code writes it, and leaves alone what only looks like it."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.model.capture import capture
from kernelwright.model.extract import Found, extract
from kernelwright.model.graph import OP

B, H, S, D, N = 2, 4, 16, 16, 64
"""batch, heads, positions, head_dim, width."""
HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@dataclass
class Form:
    """One way of writing something, and what must be found in it."""

    name: str
    forward: Callable[..., Tensor]
    inputs: tuple[tuple[int, ...], ...]
    found: Mapping[str, int]
    scalars: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    labels: int = 0
    """Classes of a last input that holds class numbers."""
    state_dtype: torch.dtype | None = None
    """Type of the state, if it is not that of the inputs."""


class Written(nn.Module):
    """A module whose forward is a function of itself and its inputs."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        for name, shape in form.state.items():
            self.register_buffer(name, torch.randn(shape).to(form.state_dtype or form.dtype))
        self.register_buffer("lower", torch.tril(torch.ones(2 * S, 2 * S)).view(1, 1, 2 * S, 2 * S))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.form.forward(self, *inputs)


def extracted(form: Form) -> list[Found]:
    model = Written(form)
    inputs = [torch.randn(shape).to(form.dtype) for shape in form.inputs]
    if form.labels:
        inputs.append(torch.randint(form.labels, form.inputs[0][:1]))
    with torch.no_grad():
        found = capture(model, tuple(inputs))
        assert torch.equal(found.outputs, model(*inputs))
        return extract(found)


def counted(found: list[Found]) -> dict[str, int]:
    count = Counter[str]()
    for one in found:
        count[one.op] += len(one.sites)
    return {op: number for op, number in count.items() if op != OP}


def upcast_norm(m: Any, x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return m.weight * wide.to(x.dtype)


def late_norm(m: Any, x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6) * m.weight.float()).type_as(x)


def biased_norm(m: Any, x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    spread = (x - mean).pow(2).mean(-1, keepdim=True)
    return m.weight * ((x - mean) / torch.sqrt(spread + 1e-5)) + m.bias


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def causal_fill(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = scores(q, k).masked_fill(m.lower[:, :, :S, :S] == 0, float("-inf"))
    return F.softmax(hidden, dim=-1) @ v


def causal_where(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    visible = torch.ones(S, S, dtype=torch.bool).tril()
    return torch.where(visible, scores(q, k), torch.tensor(-1e9)).softmax(-1) @ v


def causal_add(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.full((S, S), torch.finfo(torch.float32).min).triu(1)[None, None]
    return F.softmax(scores(q, k) + mask, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def banded(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    visible = torch.ones(S, S, dtype=torch.bool).tril().triu(-3)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def repeated(_: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def copied(x: Tensor) -> Tensor:
        return x[:, :, None].expand(B, H // 2, 2, S, D).reshape(B, H, S, D)

    return F.scaled_dot_product_attention(q, copied(k), copied(v))


def rotated(m: Any, x: Tensor) -> Tensor:
    cos, sin = torch.cat((m.cos, m.cos), -1), torch.cat((m.sin, m.sin), -1)
    return x * cos + torch.cat((-x[..., D // 2 :], x[..., : D // 2]), -1) * sin


def unlike_tables(m: Any, x: Tensor) -> Tensor:
    cos, sin = torch.cat((m.cos, m.sin), -1), torch.cat((m.sin, m.sin), -1)
    return x * cos + torch.cat((-x[..., D // 2 :], x[..., : D // 2]), -1) * sin


def by_parts(m: Any, x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * m.cos - b * m.sin, b * m.cos + a * m.sin), -1)


def positions_first(m: Any, x: Tensor) -> Tensor:
    cos, sin = m.cos[None, :, None], m.sin[None, :, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def interleaved(m: Any, x: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * m.cos - b * m.sin, b * m.cos + a * m.sin), -1).flatten(-2)


def every_two(m: Any, x: Tensor) -> Tensor:
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * m.cos.repeat_interleave(2, -1) + turned * m.sin.repeat_interleave(2, -1)


def merged_gate(m: Any, x: Tensor) -> Tensor:
    gate, up = F.linear(x, m.both).chunk(2, -1)
    return F.linear(F.silu(gate) * up, m.down)


def swapped_gate(m: Any, x: Tensor) -> Tensor:
    both = F.linear(x, m.both)
    return F.linear(both[..., :96] * F.silu(both[..., 96:]), m.down)


def own_silu(m: Any, x: Tensor) -> Tensor:
    gate = F.linear(x, m.gate)
    return F.linear(gate * torch.sigmoid(gate) * F.linear(x, m.up), m.down)


NORM, AFFINE = {"weight": (N,)}, {"weight": (N,), "bias": (N,)}
ROWS, HEADS = (B, S, N), (B, H, S, D)
QKV, GROUPED = (HEADS, HEADS, HEADS), (HEADS, (B, H // 2, S, D), (B, H // 2, S, D))
TABLES = {"cos": (S, D // 2), "sin": (S, D // 2)}
GATED = {"gate": (96, N), "up": (96, N), "down": (N, 96), "both": (192, N), "narrow": (32, 96)}
FORMS = [
    Form("rms_norm", lambda m, x: F.rms_norm(x, (N,), m.weight, 1e-6), (ROWS,), {"rmsnorm": 1}, {"eps": 1e-6}, NORM),
    Form("rms_norm without eps", lambda m, x: F.rms_norm(x, (N,), m.weight), (ROWS,), {"rmsnorm": 1},
         {"eps": 2.0**-23}, NORM),
    Form("rms norm by division", lambda m, x: m.weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)),
         (ROWS,), {"rmsnorm": 1}, {"eps": 1e-6}, NORM),
    Form("rms norm without weight", lambda _, x: F.rms_norm(x, (N,)), (ROWS,), {}),
    Form("rms norm over another axis", lambda m, x: m.weight * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)),
         (ROWS,), {}, {}, NORM),
    *(Form(f"upcast norm {kind}", upcast_norm, (ROWS,), {"rmsnorm": 1}, {"eps": 1e-6}, NORM, kind)
      for kind in (*HALVES, torch.float32)),
    *(Form(f"norm cast at the end {kind}", late_norm, (ROWS,), {"rmsnorm": 1}, {"eps": 1e-6}, NORM, kind)
      for kind in HALVES),
    Form("layer_norm", lambda m, x: F.layer_norm(x, (N,), m.weight, m.bias), (ROWS,), {"layernorm": 1}, {"eps": 1e-5},
         AFFINE),
    Form("layer norm written out", biased_norm, (ROWS,), {"layernorm": 1}, {"eps": 1e-5}, AFFINE),
    Form("layer norm by var", lambda m, x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(
        x.var(-1, keepdim=True, unbiased=False) + 1e-5) * m.weight + m.bias, (ROWS,), {"layernorm": 1}, {}, AFFINE),
    Form("layer norm by the unbiased variance", lambda m, x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(
        x.var(-1, keepdim=True) + 1e-5) * m.weight + m.bias, (ROWS,), {}, {}, AFFINE),
    Form("layer norm without weights", lambda _, x: F.layer_norm(x, (N,)), (ROWS,), {}),
    Form("softmax", lambda _, x: x.softmax(-1), (ROWS,), {"softmax": 1}),
    Form("softmax of another axis", lambda _, x: x.softmax(1), (ROWS,), {}),
    *(Form(f"softmax in fp32 {kind}", lambda _, x: F.softmax(x, -1, dtype=torch.float32).to(x.dtype), (ROWS,),
           {"softmax": 1}, {}, {}, kind) for kind in HALVES),
    Form("sdpa", lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v), QKV, {"attention": 1},
         {"causal": False, "scale": 0.25}),
    *(Form(f"causal sdpa {kind}", lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), QKV,
           {"attention": 1}, {"causal": True}, {}, kind) for kind in HALVES),
    Form("sdpa with groups", lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), GROUPED,
         {"attention": 1}, {"causal": False}),
    Form("sdpa with repeated heads", repeated, GROUPED, {"attention": 1}, {"causal": False}),
    Form("sdpa with a band for a mask", banded, QKV, {}),
    Form("sdpa with a mask of data", lambda _, q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask),
         (*QKV, (B, 1, S, S)), {}),
    Form("attention written out", lambda _, q, k, v: scores(q, k).softmax(-1) @ v, QKV, {"attention": 1, "softmax": 1},
         {"causal": False, "scale": 0.25}),
    Form("attention with a causal buffer", causal_fill, QKV, {"attention": 1, "softmax": 1}, {"causal": True}),
    Form("attention with torch.where", causal_where, QKV, {"attention": 1, "softmax": 1}, {"causal": True}),
    Form("attention with an added mask", causal_add, QKV, {"attention": 1, "softmax": 1}, {"causal": True}),
    Form("attention with added data", lambda _, q, k, v, mask: (scores(q, k) + mask).softmax(-1) @ v,
         (*QKV, (B, 1, S, S)), {"softmax": 1}),
    Form("rope by rotated halves", rotated, (HEADS,), {"rope": 1}, {"interleaved": False}, TABLES),
    *(Form(f"rope by parts {kind}", by_parts, (HEADS,), {"rope": 1}, {"interleaved": False}, TABLES, kind)
      for kind in (*HALVES, torch.float32)),
    Form("rope before the heads are moved", positions_first, ((B, S, H, D),), {"rope": 1}, {"interleaved": False},
         TABLES),
    Form("rope interleaved", interleaved, (HEADS,), {"rope": 1}, {"interleaved": True}, TABLES),
    Form("rope of every two", every_two, (HEADS,), {"rope": 1}, {"interleaved": True}, TABLES),
    Form("rope with unlike tables", unlike_tables, (HEADS,), {}, {}, TABLES),
    Form("swiglu", lambda m, x: F.linear(F.silu(F.linear(x, m.gate)) * F.linear(x, m.up), m.down), (ROWS,),
         {"swiglu_mlp": 1, "matmul": 3}, {}, GATED),
    Form("swiglu with one weight", merged_gate, (ROWS,), {"swiglu_mlp": 1, "matmul": 2}, {}, GATED),
    Form("swiglu with one weight, up first", swapped_gate, (ROWS,), {"swiglu_mlp": 1, "matmul": 2}, {}, GATED),
    Form("swiglu with its own silu", own_silu, (ROWS,), {"swiglu_mlp": 1, "matmul": 3}, {}, GATED),
    Form("geglu", lambda m, x: F.linear(F.gelu(F.linear(x, m.gate)) * F.linear(x, m.up), m.down), (ROWS,),
         {"matmul": 3}, {}, GATED),
    Form("swiglu to another width", lambda m, x: F.linear(F.silu(F.linear(x, m.gate)) * F.linear(x, m.up), m.narrow),
         (ROWS,), {"matmul": 3}, {}, GATED),
    Form("cross_entropy", lambda _, x, y: F.cross_entropy(x, y, ignore_index=3), ((32, 100),), {"cross_entropy": 1},
         {"ignore_index": 3}, labels=100),
    Form("nll of log_softmax", lambda _, x, y: F.nll_loss(F.log_softmax(x, -1), y), ((32, 100),), {"cross_entropy": 1},
         {"ignore_index": -100}, labels=100),
    Form("summed cross_entropy", lambda _, x, y: F.cross_entropy(x, y, reduction="sum"), ((32, 100),), {}, labels=100),
    Form("smoothed cross_entropy", lambda _, x, y: F.cross_entropy(x, y, label_smoothing=0.1), ((32, 100),), {},
         labels=100),
    Form("sum", lambda _, x: x.sum(-1), (ROWS,), {"reduce": 1}, {"is_max": False}),
    Form("sum that keeps the axis", lambda _, x: x.sum(-1, keepdim=True), (ROWS,), {"reduce": 1}, {"is_max": False}),
    Form("amax", lambda _, x: x.amax(-1), (ROWS,), {"reduce": 1}, {"is_max": True}),
    Form("max", lambda _, x: x.max(-1).values, (ROWS,), {"reduce": 1}, {"is_max": True}),
    Form("sum over rows", lambda _, x: x.sum(0), (ROWS,), {}),
    Form("mean", lambda _, x: x.mean(-1), (ROWS,), {}),
    Form("matmul", lambda m, x: x @ m.gate.T, (ROWS,), {"matmul": 1}, {}, GATED),
    Form("linear with bias", lambda m, x: F.linear(x, m.both, torch.arange(192.0)), (ROWS,), {}, {}, GATED),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_forms_real_code_has_are_found_and_what_only_looks_alike_is_not(form: Form) -> None:
    found = extracted(form)
    assert counted(found) == form.found
    if form.scalars:
        (one,) = [one for one in found if one.op == next(iter(form.found))]
        assert {name: one.case.scalars[name] for name in form.scalars} == pytest.approx(form.scalars)


def test_every_op_of_the_drawer_is_found_in_some_form() -> None:
    ops = {op for form in FORMS for op in form.found}
    own = {name for name in plugins.names("ops") if hasattr(plugins.load("ops", name), "recognise")}
    assert ops == own
    assert len(own) == 9


def test_the_case_has_the_types_sizes_and_strides_of_the_model() -> None:
    form = next(form for form in FORMS if form.name == "matmul")
    (one,) = extracted(form)
    assert one.case.axes == {"m": B * S, "n": 96, "k": N}
    assert one.case.dtype is DType.FP32
    a, b = one.case.inputs
    assert (a.shape, a.strides) == ((B * S, N), None)
    assert (b.shape, b.strides) == ((N, 96), (1, N)), "a transposed weight stays transposed"


def test_what_looks_like_an_op_but_gives_other_numbers_stays_a_graph_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rmsnorm, form = plugins.load("ops", "rmsnorm"), FORMS[0]
    found = rmsnorm.recognise

    def hasty(node: Any) -> Any:
        match = found(node)
        if match is None:
            return None
        changed = match.case.model_copy(update={"scalars": {"eps": 1e-2}})
        return type(match)(changed, match.inputs, match.outputs)

    monkeypatch.setattr(rmsnorm, "recognise", hasty)
    (one,) = extracted(form)
    assert (one.op, one.rejected, one.case.op) == (OP, "rmsnorm", OP)
