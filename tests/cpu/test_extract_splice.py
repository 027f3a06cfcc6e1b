"""Kernels go back into the model: every op's seed, behind its guards, and never where a gradient is asked for."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelwright.backends import cpp
from kernelwright.core import plugins
from kernelwright.core.candidate import Origin
from kernelwright.core.case import Case
from kernelwright.core.errors import BlobMissing
from kernelwright.core.frozen import digest
from kernelwright.core.messages.model import Winner
from kernelwright.core.verdict import Status
from kernelwright.engine.seeds import seed
from kernelwright.model.capture import capture
from kernelwright.model.extract import extract
from kernelwright.model.graph import loaded_text, region_of
from kernelwright.model.splice import (
    SplicedKernel,
    Tally,
    compiled_with,
    open_winner,
    region_text,
    with_calls,
)

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class EveryOp(nn.Module):
    """One of each op, at sizes the seeds serve."""

    def __init__(self) -> None:
        super().__init__()
        self.rms, self.norm = nn.RMSNorm(64, eps=1e-6), nn.LayerNorm(64)
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((64, 96), (64, 96), (96, 64))
        )
        self.head = nn.Linear(64, 40, bias=False)
        angle = torch.rand(16, 8)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for parameter in (self.rms.weight, self.norm.weight, self.norm.bias):
            nn.init.uniform_(parameter, 0.5, 1.5)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.norm(self.rms(x)).view(2, 16, 4, 16).transpose(1, 2)
        a, b = heads.chunk(2, -1)
        turned = torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1)
        mixed = F.scaled_dot_product_attention(turned, turned, heads, is_causal=True)
        h = mixed.transpose(1, 2).reshape(2, 16, 64)
        h = self.down(F.silu(self.gate(h)) * self.up(h))
        logits = self.head(h)
        return logits.softmax(-1), logits.amax(-1), F.cross_entropy(logits.view(-1, 40), labels)


def winner(case: Case, folder: Path) -> Winner:
    """Return the C++ seed of a case's op, built here."""
    candidate = seed(case.op, "cpp", Origin.AUTHOR)
    assert candidate is not None
    folder.mkdir()
    built = cpp.build(candidate.source, candidate.values_for(case.hash), folder)
    assert (built.status, built.artefact) == (Status.ACCEPTED, "kernel.so"), built.log
    artefact = folder / "kernel.so"
    return Winner(
        problem_hash="p",
        candidate_hash="c",
        backend="cpp",
        case=case,
        artefact=str(artefact),
        artefact_hash=digest(artefact.read_bytes()),
    )


def test_the_seeds_of_all_nine_ops_go_back_into_a_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = EveryOp(), (torch.randn(2, 16, 64), torch.randint(40, (32,)))
    with torch.no_grad():
        found = [one for one in extract(capture(model, inputs), with_fusions=False)]
        # The products inside the gated layer are alternatives to it, and overlap.
        cases = {one.op: one.case for one in found if one.op != "matmul" or one.case.axes["n"] == 40}
        assert len(cases) == 9
        tally = Tally()
        winners = [winner(case, tmp_path / op) for op, case in cases.items()]
        compiled = compiled_with(model, winners, tally)
        answers = compiled(*inputs)
        expected = model.double()(inputs[0].double(), inputs[1])
    assert (tally.spliced, tally.fallbacks) == (9, 0)
    for answer, exact in zip(answers, expected, strict=True):
        assert float((answer.double() - exact).norm() / exact.norm()) < 1e-5


def test_an_output_lies_in_memory_as_the_next_kernel_expects_it(tmp_path: Path) -> None:
    class Turned(nn.Module):
        """Pointwise work keeps the order of its input's axes in memory: heads behind positions."""

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            heads = x.view(2, 16, 4, 16).transpose(1, 2)
            cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
            turned = heads * cos + torch.cat((-heads[..., 8:], heads[..., :8]), -1) * sin
            mixed = F.scaled_dot_product_attention(turned, turned, heads, is_causal=True)
            return mixed.transpose(1, 2).reshape(2, 16, 64)

    torch.manual_seed(0)
    inputs = torch.randn(2, 16, 64), torch.randn(16, 8), torch.randn(16, 8)
    with torch.no_grad():
        found = extract(capture(Turned(), inputs), with_fusions=False)
        cases = {one.op: one.case for one in found}
        strides = {op: [spec.strides for spec in case.outputs] for op, case in cases.items()}
        assert strides == {"rope": [(1024, 16, 64, 1)], "attention": [(1024, 16, 64, 1)]}
        tally = Tally()
        compiled = compiled_with(Turned(), [winner(case, tmp_path / op) for op, case in cases.items()], tally)
        answer, expected = compiled(*inputs), Turned()(*inputs)
    assert (tally.spliced, tally.fallbacks) == (2, 0)
    assert float((answer - expected).norm() / expected.norm()) < 1e-5


def test_a_gradient_is_never_lost_to_a_spliced_kernel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.RMSNorm(64, eps=1e-6), torch.randn(8, 64)
    with torch.no_grad():
        (one,) = extract(capture(model, (x,)), with_fusions=False)
    tally = Tally()
    compiled = compiled_with(model, [winner(one.case, tmp_path / "norm")], tally)
    compiled(x).sum().backward()
    gradient, model.weight.grad = model.weight.grad, None
    model(x).sum().backward()
    assert torch.equal(gradient, model.weight.grad)
    assert (tally.spliced, tally.aside) == (0, 1)
    with torch.no_grad():
        compiled(x)
        compiled(
            torch.randn(9, 64)
        )  # a shape nobody certified: captured anew, and the winner does not serve it
    assert (tally.spliced, tally.fallbacks) == (1, 0)


def test_a_call_that_is_not_what_was_certified_runs_the_original_and_is_counted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.RMSNorm(64, eps=1e-6), torch.randn(8, 64)
    with torch.no_grad():
        (one,) = extract(capture(model, (x,)), with_fusions=False)
        (site,) = one.sites
        assert site.match is not None
        made, tally = winner(one.case, tmp_path / "norm"), Tally()
        call = SplicedKernel(made.case, open_winner(made), (site.region, site.match), tally)
        (answer,) = call(x, model.weight)
        assert float((answer - model(x)).abs().max()) < 1e-5
        assert (tally.spliced, tally.fallbacks) == (1, 0)
        others = (torch.randn(9, 64), torch.randn(64, 8).T, x.double(), torch.randn(8, 128)[:, :64])
        for number, other in enumerate(others, start=1):
            weight = model.weight.to(other.dtype)
            (answer,) = call(other, weight)
            assert torch.equal(answer, F.rms_norm(other, (64,), weight, 1e-6))
            assert (tally.spliced, tally.fallbacks) == (1, number)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            call(x, model.weight)
        assert (tally.spliced, tally.fallbacks) == (1, len(others) + 1)
    (answer,) = call(x, model.weight)
    answer.sum().backward()
    assert model.weight.grad is not None
    assert (tally.spliced, tally.fallbacks) == (1, len(others) + 2)


def test_an_artefact_that_was_exchanged_is_refused(tmp_path: Path) -> None:
    case = plugins.load("ops", "rmsnorm").case(
        {"rows": 8, "cols": 64}, plugins.load("ops", "rmsnorm").DTYPES[0]
    )
    made = winner(case, tmp_path / "norm")
    path = Path(made.artefact)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(BlobMissing, match="certificate"):
        open_winner(made)


def test_two_regions_that_need_each_other_are_not_both_replaced() -> None:
    class Crossed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp().tan() + x.sin().cos()

    torch.manual_seed(0)
    x = torch.randn(8)
    with torch.no_grad():
        (one,) = capture(Crossed(), (x,)).graphs
        named = {node.name: node for node in one.graph.graph.nodes}
        crossed = [region_of([named["exp"], named["cos"]]), region_of([named["sin"], named["tan"]])]
        calls = Counter[int]()

        def counted(place: int) -> Callable[..., tuple[Tensor, ...]]:
            text = loaded_text(region_text(crossed[place]))

            def call(*given: Tensor) -> tuple[Tensor, ...]:
                calls[place] += 1
                return text(*given)

            return call

        spliced = with_calls(one.graph, [(region, counted(place)) for place, region in enumerate(crossed)])
        (answer,) = spliced(x)
    assert torch.equal(answer, Crossed()(x))
    assert calls == {0: 1}
