"""Triton winners under torch.compile, without a GPU: what Inductor is shown, and what it is spared."""

import json
import operator
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from kernelwright.core.errors import BlobMissing
from kernelwright.core.messages.model import Winner
from kernelwright.core.plan import LaunchPlan, ScalarArg
from kernelwright.model.seen_through import as_triton_operator, hindrance, is_understood, loaded_source
from kernelwright.model.spliced import SplicedKernel
from kernelwright.model.tally import Tally
from tests.cheats.test_catalogue import H200
from tests.cpu.splice_winners import Normed, gpu_winner, problem_of

triton = pytest.importorskip("triton")
GIVEN = ((8, 64), (64,))


@pytest.fixture(scope="module")
def winner(tmp_path_factory: pytest.TempPathFactory) -> Winner:
    one = problem_of(Normed().half(), torch.randn(8, 64).half())
    return gpu_winner(one.case, "triton", H200, tmp_path_factory.mktemp("units"))


@pytest.fixture
def on_hopper() -> Iterator[None]:
    """Have Triton take this machine for one with a Hopper GPU, as long as nothing is launched."""
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    before = vars(triton.runtime.driver)["_active"]
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: target))
    yield
    triton.runtime.driver.set_active(before)  # `reset_active` fails where there is no GPU


def spliced_on(device: str) -> SplicedKernel:
    one = problem_of(Normed().half(), torch.randn(8, 64).half())
    site = one.sites[0]
    assert site.match is not None
    made = SplicedKernel(one.case, lambda *_: 0, (site.region, site.match), Tally())
    with FakeTensorMode():
        made.given = [torch.empty(shape, dtype=torch.float16, device=device) for shape in GIVEN]
    return made


def lowered(call: object, given: list[torch.Tensor]) -> list[Node]:
    """Return what AOTAutograd makes of one call of an operator."""
    graph, seen = Graph(), []
    inputs = [graph.placeholder(f"a{place}") for place in range(len(given))]
    graph.output((graph.call_function(operator.getitem, (graph.call_function(call, tuple(inputs)), 0)),))

    def look(found: GraphModule, _: object) -> object:
        seen.extend(found.graph.nodes)
        return found.forward

    with torch.no_grad():
        aot_module_simplified(GraphModule({}, graph), given, fw_compiler=look, inference_compiler=look)
    return seen


def test_inductor_is_shown_the_kernel_itself(winner: Winner, on_hopper: None) -> None:
    spliced, module = spliced_on("cuda"), loaded_source(winner.source)
    call = as_triton_operator(winner, spliced, module)
    assert hindrance(winner) == ""
    nodes = lowered(call, spliced.given)
    (kernel,) = [node for node in nodes if "triton_kernel_wrapper" in str(node.target)]
    assert winner.plan is not None
    (launch,) = winner.plan.launches
    assert kernel.kwargs["grid"][0] == launch.grid
    passed = kernel.kwargs["kwargs"]
    assert {name: passed[name] for name in launch.constants} == launch.constants
    assert (passed["rows"], passed["cols"], passed["x_stride"], passed["eps"]) == (8, 64, 64, 1e-6)
    assert kernel.kwargs["tensors_to_clone"] == ["out"]
    assert not [node for node in nodes if node.target is torch.ops.aten.copy_.default]
    assert is_understood(call, winner, spliced, module)


def test_one_content_is_one_operator(winner: Winner) -> None:
    module = loaded_source(winner.source)
    first, second = (as_triton_operator(winner, spliced_on("cuda"), module) for _ in range(2))
    assert first is second
    with FakeTensorMode():
        given = [torch.empty(shape, dtype=torch.float16, device="cuda") for shape in GIVEN]
        (answer,) = first(*given)
    assert (tuple(answer.shape), answer.dtype, answer.device.type) == ((8, 64), torch.float16, "cuda")


def changed(winner: Winner, **launch: object) -> Winner:
    assert winner.plan is not None
    (one,) = winner.plan.launches
    return winner.model_copy(update={"plan": LaunchPlan(launches=(one.model_copy(update=launch),))})


def test_what_triton_would_launch_otherwise_is_not_shown(winner: Winner, tmp_path: Path) -> None:
    assert winner.plan is not None
    (launch,) = winner.plan.launches
    double = ScalarArg(value=1e-6, type="fp64")
    (unit,) = winner.units
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(json.loads(Path(unit.facts).read_text()) | {"global_scratch_size": 128}))
    needy = winner.model_copy(update={"units": (unit.model_copy(update={"facts": str(facts)}),)})
    told = {
        "opaque": winner.model_copy(update={"backend": "cuda"}),
        "does not hand on maxnreg": changed(winner, meta={"maxnreg": 128}),
        "would not pass fp64": changed(winner, args=(*launch.args[:-1], double)),
        "clusters": changed(winner, cluster=(2, 1, 1)),
        "scratch memory": needy,
    }
    for words, one in told.items():
        assert words in hindrance(one)


def test_a_source_the_guards_refuse_is_not_imported(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    source = (
        f"import triton\nopen({str(mark)!r}, 'w')\n\n\ndef plan(case, params, device):\n    return {{}}\n"
    )
    with pytest.raises(BlobMissing, match="no Triton source"):
        loaded_source(source)
    assert not mark.exists()


def test_all_seeds_but_those_with_descriptors_are_seen_through(tmp_path: Path) -> None:
    class Softmax(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.softmax(-1)

    one = problem_of(Softmax(), torch.randn(8, 64).half(), op="softmax")
    assert hindrance(gpu_winner(one.case, "triton", H200, tmp_path / "a")) == ""
    other = problem_of(nn.Linear(64, 64, bias=False).half(), torch.randn(64, 64).half(), op="matmul")
    made = gpu_winner(other.case, "triton", H200, tmp_path / "b")
    assert hindrance(made) == "the kernel needs scratch memory"
