"""From models to problems and back: counts per model, round trips to the bit, files that run and read back."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kernelwright.core.case import DType
from kernelwright.core.errors import BadInput
from kernelwright.core.frozen import digest
from kernelwright.core.region import Extracted, read_back, written
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.user_module import PREFIX, UserModule
from kernelwright.model.capture import capture
from kernelwright.model.extract import choose, chosen_sites, extract, extracted, values
from kernelwright.model.fusion import fusions, reach
from kernelwright.model.graph import OP, loaded_text
from kernelwright.model.listing import problems as model_problems
from kernelwright.model.load import Loaded
from kernelwright.ops._draw import torch_dtype
from tests.cpu import model_zoo as zoo

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ROOT = Path(__file__).parents[2]


class Layer(nn.Module):
    """A residual layer whose norm has weights of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


def stack(layers: int, width: int = 32) -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(width) for _ in range(layers))), (torch.randn(4, 6, width),)


def test_the_same_layer_many_times_is_one_problem_with_a_count() -> None:
    model, inputs = stack(8)
    with torch.no_grad():
        found = extract(capture(model, inputs))
    count = {(one.op, one.source): len(one.sites) for one in found}
    assert sorted(count.values(), reverse=True)[:3] == [8, 8, 8]
    (norm,) = [one for one in found if one.op == "rmsnorm"]
    assert (len(norm.sites), norm.constants, norm.case.axes) == (8, (1,), {"rows": 24, "cols": 32})
    assert norm.where == f"{__file__}:{Layer.forward.__code__.co_firstlineno + 1}"


def test_norm_and_residual_and_a_product_with_what_follows_it_are_found_as_fusions() -> None:
    model, inputs = stack(2)
    with torch.no_grad():
        (one,) = capture(model, inputs).graphs
    names = [
        tuple(str(node.target).split(".")[1] for node in region.nodes)
        for region in fusions(one.graph.graph, one.constants)
    ]
    assert ("add", "rms_norm") in names
    assert ("linear", "gelu") in names
    assert ("gelu", "linear", "add") in names


def test_every_fusion_is_convex() -> None:
    model, inputs = zoo.built(zoo.llama)
    with torch.no_grad():
        (one,) = capture(model, (), inputs).graphs
    known, regions = reach(one.graph.graph), list(fusions(one.graph.graph, one.constants))
    assert len(regions) > 10
    for region in regions:
        inside = set(region.nodes)
        for start in region.nodes:
            waiting, left = [user for user in start.users if user not in inside], set()
            while waiting:
                node = waiting.pop()
                assert node not in inside, "a path leaves the region and comes back"
                waiting += [user for user in node.users if user not in left]
                left.add(node)
        assert known.is_convex(inside)


def test_a_region_runs_by_itself_and_in_float64_with_its_inner_casts_widened() -> None:
    class Upcast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype).exp()

    torch.manual_seed(0)
    x = torch.randn(8, 64).bfloat16()
    with torch.no_grad():
        found = capture(Upcast(), (x,))
        (one,) = extract(found)
    call = loaded_text(one.source)
    assert torch.equal(call(x)[0], found.outputs)
    exact = x.double()
    exact = (exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6)).exp()
    assert call(x.double())[0].dtype is torch.float64
    assert float((call(x.double())[0] - exact).abs().max()) < 1e-12
    assert float((found.outputs.double() - exact).abs().max()) > 1e-4, (
        "in its own precision it is not that exact"
    )


def test_strides_shared_memory_and_constants_of_a_region_are_recorded() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(8))

        def forward(self, x: Tensor) -> Tensor:
            a, b = x.transpose(0, 1).chunk(2, -1)
            return torch.exp(a @ torch.eye(8)) * torch.sigmoid(b @ torch.eye(8)) + torch.tanh(
                self.scale * a + b
            )

    torch.manual_seed(0)
    with torch.no_grad():
        found = extract(capture(Split(), (torch.randn(4, 6, 16),)))
    one = max(found, key=lambda one: len(one.sites[0].region.nodes))
    strided = [spec for spec in one.own_case.inputs if spec.strides == (16, 96, 1)]
    assert strided, "parts of a transposed tensor keep its strides"
    assert len(one.constants) == 1
    assert one.own_case.inputs[one.constants[0]].shape == (8,)


def small() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.RMSNorm(16, eps=1e-6)), (torch.randn(4, 16),)


def problems() -> list[Extracted]:
    model, inputs = small()
    with torch.no_grad():
        found = extract(capture(model, inputs))
    chosen = Counter(place for place, _ in chosen_sites(found))
    return [extracted(one, chosen[place]) for place, one in enumerate(found)]


def test_a_problem_is_written_as_a_file_that_runs_and_is_read_back_as_it_was(tmp_path: Path) -> None:
    for one in problems():
        path = tmp_path / f"{one.name}.py"
        path.write_text(written(one))
        bare = one.model_copy(
            update={"kernels": {}, "not_plain": ""}
        )  # the file is what is computed, no more
        assert read_back(path.read_text(), str(path)) == bare
    ops = {one.op for one in problems()}
    assert ops == {"rmsnorm", OP}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "(4, 16) torch.float32\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("1e-06", "1e-05"), "changed since it was written"),
        (lambda text: text.replace("PROBLEM = r'''", "SOMETHING = r'''"), "holds no PROBLEM"),
        (lambda text: text.replace('"count":', '"counts":'), "cannot be read"),
    ],
)
def test_a_file_that_was_changed_is_refused(change: Callable[[str], str], words: str) -> None:
    (norm,) = [one for one in problems() if one.op == "rmsnorm"]
    text = change(written(norm))
    assert text != written(norm)
    with pytest.raises(BadInput, match=words):
        read_back(text, "norm.py")


def test_the_judge_takes_an_extracted_file_for_a_reference(tmp_path: Path) -> None:
    fused = next(one for one in problems() if one.op == OP)
    path = tmp_path / "fused.py"
    path.write_text(written(fused))
    described = UserModule(f"{PREFIX}{path}#{digest(written(fused))}").describe()
    assert described.case is not None
    assert [spec.shape for spec in described.case.inputs] == [spec.shape for spec in fused.case.inputs]


KERNEL = """
#include <cmath>
#include "kernelwright.h"
extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* out) {
    if (!kw_is_contiguous(a) || a->dtype != KW_FP32) return KW_UNSUPPORTED_LAYOUT;
    const float* x = static_cast<const float*>(a->data);
    float* y = static_cast<float*>(out->data);
    for (int64_t i = 0; i < a->shape[0] * a->shape[1]; ++i) y[i] = FORMULA;
    return KW_OK;
}
"""


@pytest.mark.parametrize(
    ("formula", "code"), [("std::exp(-x[i] * x[i])", 0), ("1.0f / (1.0f + x[i] * x[i])", 1)]
)
def test_a_kernel_for_a_discovered_fusion_is_judged_against_the_region(
    tmp_path: Path, formula: str, code: int
) -> None:
    class Bell(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(-(x * x))

    with torch.no_grad():
        (found,) = extract(capture(Bell(), (torch.randn(32, 48),)))
    one = extracted(found, 1)
    region, problem, kernel = tmp_path / "bell.py", tmp_path / "bell.json", tmp_path / "bell.cpp"
    region.write_text(written(one))
    problem.write_text(one.problem(cpu_device(), str(region)).model_dump_json())
    kernel.write_text(KERNEL.replace("FORMULA", formula))
    words = ["judge", str(kernel), "--problem", str(problem), "--profile", "quick", "--home", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("accepted" in done.stdout) == (code == 0)


def test_alternatives_are_chosen_disjoint_and_by_gain() -> None:
    whole, left, right, other = frozenset("abc"), frozenset("ab"), frozenset("c"), frozenset("d")
    assert choose([(left, 5.0), (whole, 9.0), (right, 5.0), (other, 0.0)]) == [1, 3]
    assert choose([(left, 9.5), (whole, 9.0), (right, 5.0), (other, 0.0)]) == [0, 2, 3]
    assert choose([(left, 1.0), (whole, 1.0)]) == [1], "of equal gain the larger one"
    assert choose([(frozenset(), 7.0)]) == []


@given(st.lists(st.tuples(st.frozensets(st.integers(0, 12), max_size=5), st.floats(0, 100)), max_size=12))
def test_what_is_chosen_is_disjoint_and_nothing_that_fits_is_left_out(
    alternatives: list[tuple[frozenset[int], float]],
) -> None:
    chosen = choose(alternatives)
    taken = [node for place in chosen for node in alternatives[place][0]]
    assert len(taken) == len(set(taken))
    for place, (nodes, _) in enumerate(alternatives):
        assert place in chosen or not nodes or nodes & set(taken)


def test_the_same_region_on_both_sides_of_a_break_is_one_problem_and_the_break_is_named() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.RMSNorm(64, eps=1e-6), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(self.linear(self.norm(x)))
            return h if h.sum() > 1e9 else self.norm(h)

    model = Cut().eval()
    found = model_problems(Loaded("cut", model, lambda number: (torch.full((4, 8, 64), 1.0 + number),)))
    assert [(one.op, one.count) for one in found.problems if one.op != OP] == [("rmsnorm", 3)]
    assert (found.graphs, len(found.breaks)) == (2, 1)
    assert found.breaks[0].where.startswith(__file__)


def test_work_is_counted_of_a_model_whose_weights_want_gradients() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embed(tokens))

    tokens = Loaded("embedded", Embedded().eval(), lambda number: (torch.full((2, 8), number),))
    work = {one.op: one.flops for one in model_problems(tokens, "cuda").problems}
    assert work["matmul"] == 2 * 16 * 32 * 64


def test_values_are_those_of_the_first_call_and_nothing_is_written_for_them() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.calls

    model = Counting()
    with torch.no_grad():
        (one,) = capture(model, (torch.ones(4),)).graphs
        last = next(node for node in one.graph.graph.nodes if "mul" in node.name)
        assert torch.equal(values(one, {last})[last], torch.ones(4))
    assert torch.equal(model.calls, torch.ones(4)), "only the capture itself counted"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernelwright", "extract", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def test_the_verb_writes_one_file_per_problem_and_says_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\n\ndef build():\n    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())\n\n"
        "def sample_inputs(seed=0):\n    return (torch.randn(4, 8),)\n"
    )
    done = run(f"{tmp_path}/m.py:build", "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["nodes"], answer["graphs"], answer["breaks"]) == (2, 1, [])
    assert [(row["op"], row["count"]) for row in answer["problems"]] == [(OP, 1), (OP, 1)]
    assert sorted(str(path) for path in (tmp_path / "out").iterdir()) == sorted(
        row["file"] for row in answer["problems"]
    )
    for row in answer["problems"]:
        one = read_back(Path(row["file"]).read_text(), row["file"])
        assert (one.op, one.case.dtype, torch_dtype(one.case.dtype)) == (OP, DType.FP32, torch.float32)


def test_bad_words_are_one_line_errors(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for words, told in (
        (("nosuch.py:build",), "nosuch.py"),
        (("examples/models/llama.py:build", "--out", str(tmp_path / "taken")), "is a file"),
        ((), "no model given"),
    ):
        done = run(*words)
        assert done.returncode in (2, 3), done.stderr
        assert (told in done.stderr, "Traceback" in done.stderr) == (True, False)
