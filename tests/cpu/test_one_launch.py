"""What one CUDA graph needs of inputs, graphs and answers, as far as it shows without a GPU; see tests/gpu, too."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import kernelwright
from kernelwright.core.errors import BadInput, DeviceMissing
from kernelwright.model import one_launch
from kernelwright.model.capture import Captured, capture
from kernelwright.model.one_launch import (
    ALIGNMENT,
    MOST_COUNTED,
    MOST_RECORDED,
    WARM_UP,
    NotReplayed,
    OneLaunch,
    copied,
    hindrance,
    indistinct,
    is_apart,
)
from kernelwright.model.tally import Tally

X = torch.ones(4)


def captured(function: Callable[..., Tensor], *given: Tensor) -> Captured:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, *tensors: Tensor) -> Tensor:
            return function(self, *tensors)

    (found,) = capture(Model(), given).graphs
    return found


def on_a_gpu(found: Captured) -> Captured:
    """Say of all values that they are on a GPU, but for those made on the host."""
    for node in found.graph.graph.nodes:
        if isinstance(node.meta.get("val"), Tensor) and "rand" not in str(node.target):
            node.meta["val"] = SimpleNamespace(device=torch.device("cuda"))
    return found


@pytest.mark.parametrize(
    "laid_out",
    [
        torch.arange(24.0).view(4, 6),
        torch.arange(24.0).view(4, 6).T,
        torch.arange(25.0)[1:].view(4, 6),
        torch.arange(48.0).view(4, 12)[:, 3:9],
        torch.zeros(0, 3),
        torch.tensor(5.0),
    ],
)
def test_a_copy_lies_as_its_original(laid_out: Tensor) -> None:
    made = copied(laid_out)
    assert torch.equal(made, laid_out)
    assert (made.shape, made.stride()) == (laid_out.shape, laid_out.stride())
    assert made.data_ptr() % ALIGNMENT == laid_out.data_ptr() % ALIGNMENT or not laid_out.numel()
    assert made.data_ptr() != laid_out.data_ptr() or not laid_out.numel()
    assert is_apart(laid_out)


@pytest.mark.parametrize(
    "shared", [X.expand(3, 4), X.as_strided((3, 2), (1, 1)), X.as_strided((2, 2), (0, 1))]
)
def test_elements_that_share_memory_are_seen(shared: Tensor) -> None:
    assert not is_apart(shared)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda model, x: model.seen.add_(1) + x, ""),
        (lambda _, x: x.add_(1) * 2, "it writes to an input"),
        (lambda _, x: x.as_strided((2,), (1,), 1) * 2, "it reads an input's memory at places of its own"),
        (lambda _, x: x * torch.rand(()), "it computes on the host"),
    ],
)
def test_a_graph_is_replayed_unless_something_of_it_would_not_come_again(
    function: Callable[..., Tensor], reason: str
) -> None:
    found = captured(function, X.clone())
    weights = OneLaunch(len, found, Tally()).weights
    if reason != "it computes on the host":
        found = on_a_gpu(found)
    assert hindrance(found, weights) == reason


def test_answers_are_copied_only_where_copies_are_what_they_are() -> None:
    whole = torch.ones(4, 4)
    assert indistinct((whole, torch.ones(4), None, torch.zeros(0))) == ""
    assert indistinct((whole, whole[:2])) == "answers share memory"
    assert indistinct([whole[:, :2]]) == "an answer is not laid out densely"


def test_what_is_not_on_a_gpu_runs_as_it_is_and_is_counted() -> None:
    tally = Tally()
    found = captured(lambda _, x: x * 2, X)
    once = OneLaunch(found.graph.forward, on_a_gpu(found), tally)
    assert torch.equal(once(X)[0], X * 2)
    assert dict(tally.launched_one_by_one) == {"a tensor is not on a GPU": 1}
    assert tally.lines() == ["1 calls of graphs were launched kernel by kernel: a tensor is not on a GPU"]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for CUDA: what is recorded answers with the sizes it was recorded for."""
    told: dict[str, Any] = {"recorded": [], "refused": ()}

    def recording(_: object, given: tuple[Tensor, ...], __: object) -> SimpleNamespace:
        size = len(given[0])
        if size in told["refused"]:
            raise NotReplayed("answers share memory")
        told["recorded"].append(size)
        return SimpleNamespace(replay=lambda _: f"replayed {size}")

    monkeypatch.setattr(one_launch, "recording", recording)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return told


def launch() -> OneLaunch:
    return OneLaunch(lambda *_: "ran", on_a_gpu(captured(lambda _, x: x * 2, X)), Tally())


def test_a_form_is_recorded_once_it_is_warm_and_the_last_used_ones_are_kept(recorder: dict[str, Any]) -> None:
    once = launch()
    assert [once._on_stream((X,)) for _ in range(WARM_UP + 2)] == ["ran"] * WARM_UP + ["replayed 4"] * 2
    for size in range(5, 5 + MOST_RECORDED):
        for _ in range(WARM_UP + 1):
            once._on_stream((torch.ones(size),))
    assert len(once.recorded) == MOST_RECORDED
    assert recorder["recorded"] == list(range(4, 5 + MOST_RECORDED))
    once._on_stream((X,))
    assert recorder["recorded"][-1] == 4  # it had been the longest unused
    once.forget()
    assert not once.recorded


def test_a_form_that_cannot_be_recorded_does_not_stop_the_others(recorder: dict[str, Any]) -> None:
    once, recorder["refused"] = launch(), (4,)
    for size in (4, 5):
        for _ in range(WARM_UP + 2):
            once._on_stream((torch.ones(size),))
    assert recorder["recorded"] == [5]
    assert once.tally.replays == 2
    assert dict(once.tally.launched_one_by_one) == {"it cannot be recorded: answers share memory": 2}


def test_forms_that_never_come_again_are_forgotten(recorder: dict[str, Any]) -> None:
    once = launch()
    for size in range(2 * MOST_COUNTED):
        once._on_stream((torch.ones(size),))
    assert len(vars(once.warm)["counts"]) == MOST_COUNTED


def test_a_graph_is_asked_for_by_name_and_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="neither 'plain' nor 'graph'"):
        kernelwright.apply(torch.nn.Linear(2, 2), Path("nowhere"), launch="graphs")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceMissing, match="no GPU is visible"):
        kernelwright.apply(torch.nn.Linear(2, 2), Path("nowhere"), launch="graph")
