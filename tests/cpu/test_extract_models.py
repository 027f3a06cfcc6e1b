"""Models of transformers, tiny and random: each is captured, recognised and put together again."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernelwright.core.case import DType
from kernelwright.model.extract import Found
from kernelwright.model.graph import OP
from kernelwright.model.load import load
from kernelwright.model.splice import Tally, with_own_regions
from tests.cpu import model_zoo as zoo

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ROOT = Path(__file__).parents[2]
LAYERS = 2
EXPECTED: dict[Callable[[], zoo.Built], dict[str, int]] = {
    zoo.llama: {"rmsnorm": 2 * LAYERS + 1, "rope": 2 * LAYERS, "attention": LAYERS, "swiglu_mlp": LAYERS,
                "matmul": 7 * LAYERS + 1},
    zoo.qwen2: {"rmsnorm": 2 * LAYERS + 1, "rope": 2 * LAYERS, "attention": LAYERS, "swiglu_mlp": LAYERS,
                "matmul": 4 * LAYERS + 1},
    zoo.mixtral: {"rmsnorm": 2 * LAYERS + 1, "rope": 2 * LAYERS, "attention": LAYERS, "matmul": 5 * LAYERS + 1,
                  "softmax": LAYERS, "reduce": LAYERS},
    zoo.phi3: {"rmsnorm": 2 * LAYERS + 1, "rope": 2 * LAYERS, "attention": LAYERS, "swiglu_mlp": LAYERS,
               "matmul": 4 * LAYERS + 1},
    zoo.gptj: {"layernorm": LAYERS + 1, "rope": 2 * LAYERS, "attention": LAYERS, "softmax": LAYERS,
               "matmul": 4 * LAYERS},
    zoo.gpt2: {"layernorm": 2 * LAYERS + 1, "attention": LAYERS, "matmul": 1},
    zoo.bert: {"layernorm": 2 * LAYERS + 1, "attention": LAYERS},
    zoo.vit: {"layernorm": 2 * LAYERS + 1, "attention": LAYERS},
    # Self-attention adds a learnt bias of positions to its scores; only cross-attention is this op's.
    zoo.t5: {"rmsnorm": 5 * LAYERS + 2, "attention": LAYERS, "matmul": 16 * LAYERS + 1},
    zoo.whisper_encoder: {"layernorm": 2 * LAYERS + 1, "attention": LAYERS, "matmul": LAYERS},
}  # fmt: skip


def round_trip(make: Callable[[], zoo.Built], kind: torch.dtype) -> list[Found]:
    """Put a model together again from its own regions, compare to the bit, and return what was found in it."""
    model, inputs = zoo.built(make)
    model = model.to(kind)
    inputs = {name: one.to(kind) if one.is_floating_point() else one for name, one in inputs.items()}
    tally, seen = Tally(), list[Found]()
    compiled = with_own_regions(model, tally, seen)
    with torch.no_grad():
        expected = zoo.first(model(**inputs))
        assert expected.dtype is kind
        assert torch.equal(zoo.first(compiled(**inputs)), expected)
        once = tally.spliced
        assert torch.equal(zoo.first(compiled(**inputs)), expected)
    assert once >= sum(EXPECTED[make].values()) - 3 * LAYERS, "what is recognised is put back, swiglu as one"
    assert (tally.spliced, tally.fallbacks, tally.aside) == (2 * once, 0, 0)
    return seen


def check_found(make: Callable[[], zoo.Built], seen: list[Found]) -> None:
    """Fail unless the ops of a model were found, each as often as it occurs."""
    count = Counter[str]()
    for one in seen:
        count[one.op] += len(one.sites)
    assert {op: number for op, number in count.items() if op != OP} == EXPECTED[make]
    assert count[OP] >= 2 * LAYERS, "fusions were found too"
    assert not any(one.rejected for one in seen)


@pytest.mark.parametrize("make", EXPECTED, ids=lambda make: make.__name__)
def test_a_model_is_recognised_and_put_together_again_to_the_bit(make: Callable[[], zoo.Built]) -> None:
    check_found(make, round_trip(make, torch.float32))


QUICK = (zoo.llama, zoo.qwen2, zoo.gpt2, zoo.bert)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize(
    "make",
    [pytest.param(make, marks=() if make in QUICK else pytest.mark.slow) for make in EXPECTED],
    ids=lambda make: make.__name__,
)
def test_halves_are_recognised_alike_and_come_back_to_the_bit(make: Callable[[], zoo.Built]) -> None:
    # oneDNN's bf16 product dies of an illegal instruction on virtual machines that do not know AMX.
    with torch.backends.mkldnn.flags(enabled=False):
        seen = round_trip(make, torch.bfloat16)
    check_found(make, seen)
    kinds = {one.case.dtype for one in seen if one.op != OP}
    assert DType.BF16 in kinds


def test_the_loss_of_a_language_model_is_recognised_with_its_ignored_labels() -> None:
    model, inputs = zoo.built(zoo.llama)
    seen: list[Found] = []
    compiled = with_own_regions(model, Tally(), seen)
    with torch.no_grad():
        loss = compiled(**inputs, labels=inputs["input_ids"]).loss
        assert torch.equal(loss, model(**inputs, labels=inputs["input_ids"]).loss)
    (one,) = [one for one in seen if one.op == "cross_entropy"]
    assert (one.case.axes, one.case.scalars) == ({"rows": 48, "vocab": 128}, {"ignore_index": -100})


def test_attention_under_a_mask_of_the_batch_is_a_problem_of_its_own() -> None:
    model, inputs = zoo.built(zoo.llama)
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, :4] = 0
    seen: list[Found] = []
    compiled = with_own_regions(model, Tally(), seen)
    with torch.no_grad():
        answer, expected = (call(**inputs, attention_mask=mask).logits for call in (compiled, model))
    assert torch.equal(answer, expected)
    assert not [one for one in seen if one.op == "attention"], (
        "the mask is data: nothing may be assumed of it"
    )
    own = [one for one in seen if one.op == OP and "scaled_dot_product" in one.source]
    assert [len(one.sites) for one in own] == [LAYERS]
    assert [spec.dtype for spec in own[0].case.inputs].count(DType.BOOL) == 1


def test_a_cache_is_filled_the_same_through_prompt_and_decoding() -> None:
    sizes = "(layers=2, width=64, heads=4, kv_heads=2, vocab=128, max_seq=32)"
    model, twin = (load(f"{ROOT}/examples/models/llama.py:build_decode{sizes}").module for _ in range(2))
    tally, prompt = Tally(), zoo.tokens(12)[:1]
    compiled = with_own_regions(model, tally)
    with torch.no_grad():
        for start, tokens in ((0, prompt), (12, prompt[:, :1]), (13, prompt[:, 1:2]), (14, prompt[:, 2:3])):
            answer = compiled(tokens, torch.tensor(start))
            assert torch.equal(answer, twin(tokens, torch.tensor(start)))
    expected = dict(twin.named_buffers())
    caches = [name for name, _ in model.named_buffers() if "cache" in name]
    assert len(caches) == 4
    for name in caches:
        assert torch.equal(dict(model.named_buffers())[name], expected[name]), name
        assert bool(expected[name].any()), "nothing was written"
    assert tally.fallbacks == 0
    assert tally.spliced > 4 * 10


def test_training_a_spliced_model_gives_the_gradients_of_the_framework() -> None:
    model, inputs = zoo.built(zoo.llama, train=True)
    twin, _ = zoo.built(zoo.llama, train=True)
    tally = Tally()
    compiled = with_own_regions(model, tally)
    compiled(**inputs, labels=inputs["input_ids"]).loss.backward()
    twin(**inputs, labels=inputs["input_ids"]).loss.backward()
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name
    assert (tally.spliced, tally.aside >= 1) == (0, True)
