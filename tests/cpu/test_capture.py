"""The one graph: what is captured runs as the model does, to the bit, with composites whole and breaks told."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernelwright.model.capture import Capture, backend, capture, mutated
from kernelwright.model.splice import Tally, with_own_regions

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def operations(found: Capture) -> Counter[str]:
    nodes = [node for one in found.graphs for node in one.graph.graph.nodes if node.op == "call_function"]
    return Counter(str(node.target) for node in nodes)


class Composites(nn.Module):
    """Everything AOTAutograd would take apart."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rms = nn.LayerNorm(16), nn.RMSNorm(16, eps=1e-6)
        self.group = nn.GroupNorm(2, 4)
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.linear(self.rms(self.norm(x)))
        heads = self.group(h.view(2, 8, 4, 4).transpose(1, 2))
        attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        weights = F.softmax(attended, dim=-1) + attended.softmax(-1) + torch.softmax(attended, -1)
        mixed = weights @ heads.transpose(-1, -2) + torch.matmul(weights, heads.mT).log_softmax(-1)
        logits = F.silu(F.gelu(mixed)).reshape(-1, 8)
        return F.cross_entropy(logits, labels)


def test_composites_stay_one_operation_each_and_the_answer_is_the_same_to_the_bit() -> None:
    torch.manual_seed(0)
    model, x, labels = Composites(), torch.randn(2, 8, 16), torch.randint(8, (64,))
    with torch.no_grad():
        found = capture(model, (x, labels))
        assert torch.equal(found.outputs, model(x, labels))
    count = operations(found)
    assert {name: count[f"aten.{name}"] for name in KEPT_ONCE} == KEPT_ONCE
    assert not any("kernelwright" in name for name in count), "a shadow was left in the graph"


KEPT_ONCE = {
    "layer_norm.default": 1,
    "rms_norm.default": 1,
    "group_norm.default": 1,
    "linear.default": 1,
    "scaled_dot_product_attention.default": 1,
    "softmax.int": 3,
    "log_softmax.int": 1,
    "matmul.default": 2,
    "silu.default": 1,
    "gelu.default": 1,
    "cross_entropy_loss.default": 1,
}


class Cached(nn.Module):
    """Writes to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(3, 4))

    def forward(self, x: Tensor, row: int) -> Tensor:
        self.cache[row : row + 1] = self.linear(x)
        return self.cache.softmax(-1)


def test_a_written_buffer_is_functional_inside_and_copied_back_at_the_end() -> None:
    torch.manual_seed(0)
    model, twin, x = Cached(), Cached(), torch.randn(1, 4)
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        found = capture(model, (x, 1))
        assert torch.equal(found.outputs, twin(x, 1))
    assert torch.equal(model.cache, twin.cache)
    assert bool(model.cache[1].any()), "nothing was written"
    (one,) = found.graphs
    (written,) = mutated(one.graph)
    assert written.name in one.constants
    last = [node for node in one.graph.graph.nodes if node.op == "call_function"][-1]
    assert last.target is torch.ops.aten.copy_.default
    kept = dict(
        zip([n.name for n in one.graph.graph.nodes if n.op == "placeholder"], one.arguments, strict=True)
    )
    assert not kept[written.name].any(), "the argument is the buffer as it was before"


class Branching(nn.Module):
    """Goes one way or the other by what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x).relu()
        if h.sum() > 0:  # BREAK
            return self.other(h).softmax(-1)
        return h


def test_data_dependent_control_flow_gives_two_graphs_and_names_the_line() -> None:
    torch.manual_seed(0)
    model, x = Branching(), torch.randn(4, 8)
    with torch.no_grad():
        found = capture(model, (x,))
        assert torch.equal(found.outputs, model(x))
    assert len(found.graphs) == 2
    (cut,) = found.breaks
    path, _, line = cut.where.rpartition(":")
    assert "# BREAK" in Path(path).read_text().splitlines()[int(line) - 1]
    assert cut.reason


class Doubled(torch.autograd.Function):
    """Forward of its own, and a backward that is not its derivative."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 3


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(self.linear(x)).softmax(-1)


@pytest.mark.parametrize("make", [Branching, Custom])
def test_training_has_the_gradients_of_the_framework_to_the_bit(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, twin = make(), make()
    twin.load_state_dict(model.state_dict())
    tally, x = Tally(), torch.randn(4, 8)
    compiled = with_own_regions(model, tally)
    compiled(x).square().sum().backward()
    twin(x).square().sum().backward()
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert one.grad is not None, name
        assert torch.equal(one.grad, other.grad), name
    assert tally.spliced == 0
    assert tally.aside >= 1


@pytest.mark.parametrize("make", [Branching, Custom])
def test_models_with_branches_and_functions_of_their_own_go_out_and_back(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x, tally = make(), torch.randn(4, 8), Tally()
    compiled = with_own_regions(model, tally)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
        assert torch.equal(compiled(-x), model(-x)), "the other branch, if there is one"
    assert tally.spliced >= 2
    assert (tally.fallbacks, tally.aside) == (0, 0)


def test_a_custom_autograd_function_is_captured_by_its_forward() -> None:
    torch.manual_seed(0)
    model, x = Custom(), torch.randn(4, 8)
    with torch.no_grad():
        found = capture(model, (x,))
        assert torch.equal(found.outputs, model(x))
    assert operations(found)["aten.mul.Tensor"] == 1


class Small(nn.Module):
    """A layer whose forward is given."""

    def __init__(self, forward: Callable[["Small", Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.norm, self.own = nn.Linear(8, 8), nn.LayerNorm(8), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self, x)


AWKWARD: dict[str, Callable[[Small, Tensor], Tensor]] = {
    "torch.cond": lambda m, x: (
        torch.cond(x.sum() > 0, lambda v: m.norm(v).sin(), lambda v: v.cos(), (x,)).exp().neg()
    ),
    "vmap": lambda m, x: torch.vmap(lambda row: m.linear(row).relu().softmax(-1))(x),
    "checkpoint": lambda m, x: checkpoint(lambda v: m.norm(m.linear(v)), x, use_reentrant=False).softmax(-1),
    "written input": lambda m, x: F.gelu(m.linear(x.add_(1))),
    "returned input": lambda m, x: x if m.linear(x).relu().exp().sum() < 0 else x.view(-1).exp().neg(),
    "data-dependent size": lambda m, x: m.linear(x[x[:, 0] > 0]).relu().exp(),
    "random values": lambda m, x: m.linear(x).relu() + torch.rand(4, 8),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_code_is_captured_and_put_together_again(name: str) -> None:
    torch.manual_seed(0)
    model, x, tally = Small(AWKWARD[name]).eval(), torch.randn(4, 8), Tally()
    ours, theirs = x.clone(), x.clone()
    with torch.no_grad():
        compiled = with_own_regions(model, tally)
        compiled(x.clone())
        torch.manual_seed(1)
        answer = compiled(ours)
        torch.manual_seed(1)
        assert torch.equal(answer, model(theirs))
    assert torch.equal(ours, theirs), "what the model writes to its input is written"
    assert tally.spliced >= 1
    assert tally.fallbacks == 0


def test_under_autocast_composites_are_taken_apart_and_the_casts_stay() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), torch.randn(4, 16)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = capture(model, (x,))
        assert torch.equal(found.outputs, model(x))
    assert operations(found)["aten.linear.default"] == 0
    assert operations(found)["aten._to_copy.default"] >= 1


def test_weights_are_known_as_constants_and_inputs_are_not() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.no_grad():
        (one,) = capture(model, (x,)).graphs
    names = [node.name for node in one.graph.graph.nodes if node.op == "placeholder"]
    by_name = dict(zip(names, one.arguments, strict=True))
    assert {tuple(by_name[name].shape) for name in one.constants} == {(8, 8), (8,)}
    assert [tuple(by_name[name].shape) for name in names if name not in one.constants] == [(4, 8)]


def test_another_shape_is_captured_anew_and_both_stay_right() -> None:
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), []
    compiled = torch.compile(
        model, backend=backend(model, lambda one: seen.append(one) or one.graph.forward), dynamic=False
    )
    with torch.no_grad():
        for rows in (4, 7, 4):
            x = torch.randn(rows, 8)
            assert torch.equal(compiled(x), model(x))
    shapes = [
        tuple(next(n for n in one.graph.graph.nodes if "softmax" in n.name).meta["val"].shape) for one in seen
    ]
    assert shapes == [(4, 8), (7, 8)]


def test_manual_attention_runs_the_same_kernels() -> None:
    class Manual(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), dim=-1) @ v

    torch.manual_seed(0)
    inputs = tuple(torch.randn(2, 3, 16, 8) for _ in range(3))
    with torch.no_grad():
        found = capture(Manual(), inputs)
        assert torch.equal(found.outputs, Manual()(*inputs))
    assert operations(found)["aten.matmul.default"] == 2
