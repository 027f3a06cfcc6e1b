"""Spliced models replayed from CUDA graphs by `apply(launch="graph")`: right, or launched as they are and counted."""

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import kernelwright
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.manifest import FOLDER
from kernelwright.hardware.detect import devices
from kernelwright.model.one_launch import WARM_UP
from tests.cpu.splice_winners import gpu_winner, problem_of, written

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_dynamo")]
RESTS = ["eager", "inductor"]


class Small(nn.Module):
    """A norm and a product with a seed each, a count of calls, and a second answer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.RMSNorm(256, eps=1e-6), nn.Linear(256, 512, bias=False)
        self.register_buffer("count", torch.zeros(()))
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, x: Tensor, shift: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        self.count += 1
        normed = self.norm(x * 2)
        return self.wide(normed) + shift, normed[:, 0]


class Writing(Small):
    """One that writes to its input."""

    def forward(self, x: Tensor, shift: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        answer = super().forward(x, shift)
        x += 1
        return answer


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gpu: Device = next(device for device in devices() if device.kind is DeviceKind.CUDA)
    folder = tmp_path_factory.mktemp("units")
    cases = [problem_of(model(), values(0), op=op).case for op in ("rmsnorm", "matmul")]
    written(folder / FOLDER, *(gpu_winner(case, "cuda", gpu, folder / case.op) for case in cases))
    return folder


def model(kind: type[Small] = Small) -> Small:
    torch.manual_seed(0)
    return kind().to("cuda", torch.bfloat16).eval()


def values(number: int, rows: int = 64) -> Tensor:
    drawn = torch.randn(2, rows, 256, generator=torch.Generator().manual_seed(number))
    return drawn.to("cuda", torch.bfloat16)


def both(kernels: Path, rest: str, kind: type[Small] = Small) -> tuple[Small, Small]:
    """Return the model with its kernels launched one by one, and as one graph."""
    plain = kernelwright.apply(model(kind), kernels, rest)
    return plain, kernelwright.apply(model(kind), kernels, rest, launch="graph")


@pytest.mark.parametrize("rest", RESTS)
def test_replayed_answers_are_those_of_single_launches(rest: str, kernels: Path) -> None:
    plain, graphed = both(kernels, rest)
    with torch.inference_mode():
        expected = [plain(values(number)) for number in range(8)]
        found = [graphed(values(number)) for number in range(8)]  # kept: a later call must not write to them
    for mine, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))
    assert float(graphed.count) == 8
    tally = kernelwright.spliced(graphed)
    assert (tally.replays, tally.fallbacks, tally.launched_one_by_one.total()) == (8 - WARM_UP, 0, 0)


@pytest.mark.parametrize("rest", RESTS)
def test_what_cannot_be_replayed_is_launched_and_counted(rest: str, kernels: Path) -> None:
    plain, graphed = both(kernels, rest, Writing)
    with torch.inference_mode():
        for number in range(WARM_UP + 2):
            mine, theirs = values(number), values(number)
            answers = zip(graphed(mine), plain(theirs), strict=True)
            assert all(torch.equal(one, other) for one, other in answers)
            assert torch.equal(mine, theirs)
    tally = kernelwright.spliced(graphed)
    assert tally.replays == 0
    assert dict(tally.launched_one_by_one) == {"it writes to an input": WARM_UP + 2}


def test_a_value_on_the_host_is_read_with_every_call(kernels: Path) -> None:
    plain, graphed = both(kernels, "eager")
    with torch.inference_mode():
        for number in range(WARM_UP + 3):
            shift = torch.tensor(float(number), dtype=torch.bfloat16)
            assert torch.equal(graphed(values(0), shift)[0], plain(values(0), shift)[0])
    assert kernelwright.spliced(graphed).launched_one_by_one.total() == WARM_UP + 3


def test_other_layouts_and_other_weights_are_recorded_anew(kernels: Path) -> None:
    plain, graphed = both(kernels, "eager")
    rooms = {rows: torch.empty(2, rows, 512, device="cuda", dtype=torch.bfloat16) for rows in (64, 32)}
    with torch.inference_mode():
        for rows, room in rooms.items():
            for number in range(WARM_UP + 2):
                x, wide = values(number, rows), room[..., 8:264]
                wide.copy_(x)
                for given in (x, wide):
                    assert torch.equal(graphed(given)[0], plain(given)[0])
        assert kernelwright.spliced(graphed).replays == 2 * 2 * 2
        for one in (plain, graphed):
            one.wide.weight = nn.Parameter(one.wide.weight * 3)
            one.norm.weight.mul_(2)
        for number in range(WARM_UP + 2):
            assert torch.equal(graphed(values(number))[0], plain(values(number))[0])
    assert kernelwright.spliced(graphed).replays == 2 * 2 * 2 + 2


@pytest.mark.parametrize("own_streams", [True, False])
def test_threads_do_not_get_each_others_answers(own_streams: bool, kernels: Path) -> None:
    plain, graphed = both(kernels, "eager")
    with torch.inference_mode():
        expected = [plain(values(number))[0] for number in range(3)]
        graphed(values(0))
    wrong: list[int] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream() if own_streams else torch.cuda.default_stream()
        with torch.inference_mode(), torch.cuda.stream(stream):
            x = values(number)
            for _ in range(100):
                if not torch.equal(graphed(x)[0], expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def test_whoever_records_the_model_replays_it(kernels: Path) -> None:
    plain, graphed = both(kernels, "eager")
    with torch.inference_mode():
        x = values(1)
        for _ in range(WARM_UP):
            graphed(x)
        torch.cuda.synchronize()
        own = torch.cuda.CUDAGraph()
        with torch.cuda.graph(own):
            answer, _ = graphed(x)
        x.copy_(values(2))
        own.replay()
        assert torch.equal(answer, plain(values(2))[0])
    assert kernelwright.spliced(graphed).replays == 0


def test_gradients_go_their_own_way(kernels: Path) -> None:
    graphed, twin = kernelwright.apply(model(), kernels, launch="graph"), model()
    for _ in range(WARM_UP + 2):
        graphed(values(6))[0].sum().backward()
        twin(values(6))[0].sum().backward()
    assert torch.equal(graphed.norm.weight.grad, twin.norm.weight.grad)
    assert kernelwright.spliced(graphed).replays == 0


class Refused(Small):
    """One whose call waits for the device, which no recording may."""

    def forward(self, x: Tensor, shift: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        first, second = super().forward(x, shift)
        return first[first.abs() > 1], second


def test_a_refused_recording_leaves_stream_and_random_numbers_as_they_were(kernels: Path) -> None:
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        plain, graphed = both(kernels, "eager", Refused)
        with torch.inference_mode():
            for number in range(WARM_UP + 3):
                assert torch.equal(graphed(values(number))[0], plain(values(number))[0])
                assert torch.cuda.current_stream() == torch.cuda.default_stream()
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False
    assert kernelwright.spliced(graphed).replays == 0
    torch.manual_seed(1)
    first = torch.randn(8, device="cuda")
    torch.manual_seed(1)
    assert torch.equal(torch.randn(8, device="cuda"), first)
    others, again = both(kernels, "eager")  # the device records as before
    with torch.inference_mode():
        for number in range(WARM_UP + 2):
            assert torch.equal(again(values(number))[0], others(values(number))[0])
    assert kernelwright.spliced(again).replays == 2


@pytest.mark.parametrize("rest", RESTS)
def test_modes_without_gradients_may_alternate(rest: str, kernels: Path) -> None:
    plain, graphed = both(kernels, rest)
    for number in range(2 * WARM_UP + 6):
        with torch.inference_mode() if number % 2 else torch.no_grad():
            assert torch.equal(graphed(values(number))[0], plain(values(number))[0])
    assert kernelwright.spliced(graphed).replays > 0
    with torch.inference_mode():
        torch.randn(8, device="cuda")
    torch.randn(8, device="cuda")


class Broken(Small):
    """One with a graph break between a value and a view of it that both are used."""

    def forward(self, x: Tensor, shift: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        whole, normed = super().forward(x, shift)
        part = whole[:, :2]
        torch._dynamo.graph_break()
        whole.add_(1)
        return part * 1.0, normed


def test_views_across_a_graph_break_stay_views(kernels: Path) -> None:
    plain, graphed = both(kernels, "eager", Broken)
    with torch.inference_mode():
        for number in range(WARM_UP + 3):
            assert torch.equal(graphed(values(number))[0], plain(values(number))[0])


def test_removing_the_kernels_gives_back_what_was_recorded(kernels: Path) -> None:
    graphed = kernelwright.apply(model(), kernels, launch="graph")
    with torch.inference_mode():
        for number in range(WARM_UP + 2):
            graphed(values(number))
    before = torch.cuda.memory_reserved()
    kernelwright.remove(graphed)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before


def test_host_random_numbers_are_drawn_with_every_call(kernels: Path) -> None:
    class Drawing(Small):
        def forward(self, x: Tensor, shift: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
            first, second = super().forward(x, shift)
            return first * torch.rand(()), second

    torch.manual_seed(0)
    graphed = kernelwright.apply(Drawing().to("cuda", torch.bfloat16).eval(), kernels, launch="graph")
    with torch.inference_mode():
        told = [float(graphed(values(0))[0][0, 0, 0]) for _ in range(WARM_UP + 3)]
    assert len(set(told)) == len(told)
