"""A large product with what is around it is one C++ kernel: what comes before is packed, what follows is stored."""

import ctypes
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.backends import cpp
from kernelwright.codegen import product_cpp
from kernelwright.codegen.values import NotPlain
from kernelwright.core.plan_language import parse_params
from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import JudgeClient
from tests.cpu.fusions import fusion, problem_of
from tests.cpu.test_plain_kernels import Function, assert_alike, drawn, sketched, struct


class Interaction(nn.Module):
    """Reads one row of its second input for eight of the first: an input with an axis that is only repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(64, 64)

    def forward(self, k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        q = q.expand_as(k)
        return F.silu(self.wide(torch.cat((k, q, k - q, k * q), -1)))


SMALL = 1 << 12
"""Products beyond which one is large, so that the tests are quick."""


def pairs(k: torch.Tensor, q: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(torch.cat((k, q.expand_as(k), k - q, k * q), -1), w, b))


def normed(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * g, w)


def residual(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    total = F.linear(x, w, b) + r
    return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)


FUNCTIONS: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "interaction": (pairs, (drawn(9, 7, 12), drawn(9, 1, 12), drawn(40, 48) / 7, drawn(40))),
    "gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (drawn(50, 33), drawn(37, 33) / 6, drawn(37))),
    "norm before": (normed, (drawn(49, 64), drawn(64), drawn(17, 64) / 8)),
    "residual and norm after": (residual, (drawn(61, 20), drawn(32, 20) / 4, drawn(32), drawn(61, 32))),
    "weight as it stands": (lambda x, w: torch.relu(x @ w), (drawn(3, 17, 40), drawn(40, 19) / 6)),
    "halves": (
        lambda x, w: F.silu(F.linear(x, w)),
        (drawn(48, 64).half(), (drawn(32, 64) / 8).half()),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_product_kernel_gives_the_functions_answer(name: str, tmp_path: Path) -> None:
    one = sketched(*FUNCTIONS[name])
    source = product_cpp.written(one.graph, one.inputs, one.outputs, one.order, SMALL)
    assert set(parse_params(source)) >= {"ROWS", "PIECE"}
    built = cpp.build(source, {"ROWS": 24, "PIECE": 64}, tmp_path)
    assert (built.status, built.log) == (Status.ACCEPTED, "")
    got = [torch.full_like(tensor, float("nan")) for tensor in one.wanted]
    structs = [struct(tensor) for tensor in (*one.given, *got)]
    assert cpp.open_kernel(tmp_path / "kernel.so")(*map(ctypes.byref, structs)) == 0
    assert_alike(name, got, one.wanted)


def test_nothing_but_inputs_and_outputs_is_as_large_as_the_product() -> None:
    one = sketched(*FUNCTIONS["interaction"])
    source = product_cpp.written(one.graph, one.inputs, one.outputs, one.order, SMALL)
    buffers = [line.strip() for line in source.splitlines() if "std::vector<float>" in line]
    assert buffers == [
        "std::vector<float> packed(WIDE * K);",
        "std::vector<float> lines((ROWS + 1) * K), block(ROWS * WIDE);",
    ]


def test_the_judge_accepts_and_times_a_product_with_what_is_around_it(
    judge: JudgeClient, tmp_path: Path
) -> None:
    one = fusion(Interaction(), (32, 8, 16), (32, 1, 16))
    assert any(0 in spec.element_strides for spec in one.case.inputs), "a repeated axis stays one"
    problem = problem_of(one, tmp_path)
    (seed,) = Seeds(("cpp",), 2).first(problem)
    assert "multiplied(" in seed.source
    verdict = judge.evaluate(problem, seed, Profile.KEEP)
    assert verdict.status is Status.ACCEPTED, verdict.stages[-1]
    assert verdict.timing is not None


@pytest.mark.parametrize(
    ("function", "given", "reason"),
    [
        (lambda x: torch.relu(x), (drawn(50, 50),), "no large product"),
        (
            lambda x, w, v: F.linear(F.relu(F.linear(x, w)), v),
            (drawn(50, 40), drawn(30, 40), drawn(20, 30)),
            "a second large product",
        ),
        (
            lambda x, w: F.linear(x, w).sum(0),
            (drawn(50, 40), drawn(30, 40)),
            "a product whose rows are not worked on one by one",
        ),
        (
            lambda x, w: F.linear(x, w),
            (drawn(2, 5000), drawn(3, 5000)),
            "a product of 2x5000 and 5000x3: its rows are too long",
        ),
    ],
)
def test_what_is_no_large_product_is_said(
    function: Function, given: tuple[torch.Tensor, ...], reason: str
) -> None:
    one = sketched(function, given)
    with pytest.raises(NotPlain, match=reason):
        product_cpp.written(one.graph, one.inputs, one.outputs, one.order, SMALL)
