"""GPU winners in a model on a GPU: eager, compiled, in CUDA graphs, on streams and threads. Needs one NVIDIA GPU."""

import copy
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import kernelwright
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.manifest import FOLDER
from kernelwright.core.messages.model import Winner
from kernelwright.hardware.detect import devices
from kernelwright.model.splice import Tally, compiled_with
from tests.cpu.splice_winners import gpu_winner, problem_of, written

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_dynamo")]
DRIFT = 1.5


class Small(nn.Module):
    """A norm and a product, each with a seed in both languages."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.RMSNorm(256, eps=1e-6), nn.Linear(256, 512, bias=False)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.norm(x * 2)) + 1


@pytest.fixture(scope="module")
def gpu() -> Device:
    return next(device for device in devices() if device.kind is DeviceKind.CUDA)


def small() -> nn.Module:
    torch.manual_seed(0)
    return Small().to("cuda", torch.bfloat16).eval()


def values(number: int) -> Tensor:
    return torch.randn(2, 64, 256, generator=torch.Generator().manual_seed(number)).to("cuda", torch.bfloat16)


@pytest.fixture(scope="module", params=["triton", "cuda"])
def winners(
    request: pytest.FixtureRequest, gpu: Device, tmp_path_factory: pytest.TempPathFactory
) -> list[Winner]:
    folder = tmp_path_factory.mktemp("units")
    cases = [problem_of(small(), values(0), op=op).case for op in ("rmsnorm", "matmul")]
    return [gpu_winner(case, request.param, gpu, folder / case.op) for case in cases]


def drift(model: nn.Module, answer: Tensor, x: Tensor) -> float:
    exact = copy.deepcopy(model).double()(x.double())
    mine, theirs = (float((one.double() - exact).norm()) for one in (answer, model(x)))
    return mine / theirs


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_a_spliced_model_is_right_plainly_and_from_a_cuda_graph(rest: str, winners: list[Winner]) -> None:
    model, tally = small(), Tally()
    with torch.inference_mode():
        compiled = compiled_with(copy.copy(model), winners, tally, rest)  # type: ignore[arg-type]
        assert drift(model, compiled(values(1)), values(1)) <= DRIFT
        x, side = values(2).clone(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                compiled(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer = compiled(x)
        x.copy_(values(3))
        graph.replay()
        assert drift(model, answer, values(3)) <= DRIFT
    assert [one.calls for one in tally.winners.values()] == [5, 5]
    assert tally.fallbacks == 0


def test_threads_and_streams_do_not_disturb_each_other(winners: list[Winner]) -> None:
    model, tally = small(), Tally()
    compiled = compiled_with(copy.copy(model), winners, tally)
    with torch.inference_mode():
        compiled(values(0))
        expected = [compiled(values(number)) for number in range(3)]
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not torch.equal(compiled(values(number)), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert (wrong, tally.fallbacks) == ([], 0)


def test_what_was_not_certified_runs_the_original(winners: list[Winner]) -> None:
    model, tally = small(), Tally()
    compiled = compiled_with(model, winners[:1], tally)
    with torch.inference_mode():
        compiled(values(0))
        odd = torch.empty(2 * 64 * 256 + 1, device="cuda", dtype=torch.bfloat16)[1:].view(2, 64, 256)
        odd.copy_(values(4))
        compiled(odd)  # doubled before the norm: what the norm reads is aligned
        assert tally.fallbacks == 0
        bare = compiled_with(model.norm, winners[:1], tally)
        bare(values(0))
        assert torch.equal(bare(odd), model.norm(odd))
    assert sum((one.fallbacks for one in tally.winners.values()), Counter()) == Counter({"alignment": 1})


def test_a_model_on_the_gpu_gets_and_loses_its_kernels(winners: list[Winner], tmp_path: Path) -> None:
    model = small()
    written(tmp_path / FOLDER, *winners)
    with torch.inference_mode():
        before = model(values(5))
        kernelwright.apply(model, tmp_path)
        found = model(values(5))
        assert float((found.double() - before.double()).norm() / before.double().norm()) < 0.01
        assert kernelwright.spliced(model).spliced >= 2
        assert torch.equal(kernelwright.remove(model)(values(5)), before)


def test_a_gradient_on_the_gpu_is_not_lost(winners: list[Winner]) -> None:
    model, twin, tally = small(), small(), Tally()
    compiled_with(model, winners, tally)(values(6)).sum().backward()
    twin(values(6)).sum().backward()
    assert torch.equal(model.norm.weight.grad, twin.norm.weight.grad)
    assert (tally.spliced, tally.aside) == (0, 1)
