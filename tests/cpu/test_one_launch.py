"""What one CUDA graph needs of its inputs, as far as that shows without a GPU; replaying is in tests/gpu."""

from pathlib import Path

import pytest
import torch

import kernelwright
from kernelwright.core.errors import BadInput, DeviceMissing
from kernelwright.model.capture import Captured, capture
from kernelwright.model.one_launch import BYTES, OneLaunch, _copy
from kernelwright.model.tally import Tally


def captured(function: object, *given: torch.Tensor) -> Captured:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return function(self, *tensors)  # type: ignore[operator, no-any-return]

    (found,) = capture(Model(), given).graphs
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
def test_a_copy_lies_as_its_original(laid_out: torch.Tensor) -> None:
    made = _copy(laid_out)
    assert torch.equal(made, laid_out)
    assert (made.shape, made.stride()) == (laid_out.shape, laid_out.stride())
    assert made.data_ptr() % BYTES == laid_out.data_ptr() % BYTES or not laid_out.numel()
    assert made.data_ptr() != laid_out.data_ptr() or not laid_out.numel()


def test_a_graph_that_writes_to_its_weights_alone_can_be_replayed() -> None:
    x = torch.ones(4)
    counts = OneLaunch(len, captured(lambda model, x: model.seen.add_(1) + x, x), Tally())
    assert counts.hindrance == ""
    assert len(counts.weights) == 1
    writes = OneLaunch(len, captured(lambda _, x: x.add_(1) * 2, x), Tally())
    assert writes.hindrance == "it writes to an input"


def test_what_is_not_on_a_gpu_runs_as_it_is_and_is_counted() -> None:
    x, tally = torch.ones(4), Tally()
    found = captured(lambda _, x: x * 2, x)
    once = OneLaunch(found.graph.forward, found, tally)
    assert torch.equal(once(x)[0], x * 2)
    assert dict(tally.launched_one_by_one) == {"a tensor is not on the GPU": 1}
    assert tally.lines() == ["1 calls of graphs were launched kernel by kernel: a tensor is not on the GPU"]


def test_a_graph_is_asked_for_by_name_and_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="neither 'plain' nor 'graph'"):
        kernelwright.apply(torch.nn.Linear(2, 2), Path("nowhere"), launch="graphs")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceMissing, match="no GPU is visible"):
        kernelwright.apply(torch.nn.Linear(2, 2), Path("nowhere"), launch="graph")
