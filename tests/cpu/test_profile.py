"""Where a model's time goes: every operation has a row, the rows add up, and what is not attributed stays small."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config
from torch.autograd import DeviceType

from kernelwright.cli.profile import ProfileAnswer, _print, bar
from kernelwright.core.account import LARGEST_REST, Kind
from kernelwright.core.messages.model import ModelProfiled, ProfileModel
from kernelwright.model.capture import backend, capture
from kernelwright.model.compiled_account import Block, CompiledAccount
from kernelwright.model.inductor import Kernel, KernelTime, kernel_times, matched, profiled
from kernelwright.model.load import Loaded, load, loaded_from
from kernelwright.model.marks import CALL, PREFIX, Watch, busy_us, device_us, marked_times
from kernelwright.model.partition import flops
from kernelwright.model.profile import profile
from tests.cpu import model_zoo as zoo

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "llama.py:build(layers=2, width=64, heads=4, kv_heads=2)": {
        "rmsnorm": 5,
        "attention": 2,
        "swiglu_mlp": 2,
    },
    "gpt2.py:build(layers=2, width=64, heads=4)": {"layernorm": 5, "attention": 2, "matmul": 1},
    "bert.py:build(layers=2, width=64, heads=4)": {"layernorm": 5},
    "recommender.py:build(width=16, hidden=32, length=8)": {},
}
SLOW = (zoo.qwen2, zoo.mixtral, zoo.phi3, zoo.gptj, zoo.gpt2, zoo.vit, zoo.t5, zoo.whisper_encoder)
MODEL = """
import torch
import torch.nn.functional as F


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(64, 64), torch.nn.RMSNorm(64)
        self.proj = torch.nn.Linear(64, 64, bias=False)

    def forward(self, x):
        y = self.norm(x + F.gelu(self.up(x)))
        q = self.proj(y).view(2, 128, 4, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def build():
    return Model()


def sample_inputs(seed):
    rng = torch.Generator().manual_seed(seed)
    return [
        {"name": "long", "weight": 1, "args": (torch.randn(2, 128, 64, generator=rng),)},
        {"name": "again", "weight": 3, "args": (torch.randn(2, 128, 64, generator=rng),)},
    ]
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads wait for each other: on a busy machine that is all one would measure."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def found_in(loaded: Loaded, **asked: Any) -> ModelProfiled:
    request = ProfileModel(spec=loaded.spec, threads=1, **{"with_compiled": False, **asked})
    return profile(loaded, request, lambda _: None)


def counts(found: ModelProfiled) -> dict[str, float]:
    """Return how often each op runs in an average call, whatever the number of sets it was captured for."""
    ops: dict[str, float] = {}
    for one in found.regions:
        if one.kind is Kind.OP:
            ops[one.op] = ops.get(one.op, 0.0) + one.calls
    return {op: round(number, 9) for op, number in ops.items()}


def adds_up(found: ModelProfiled) -> None:
    """Check that regions, gaps and rest are the measured time, and the rest at most a twentieth of it."""
    account = found.captured
    inside = sum(one.captured_us for one in found.regions)
    assert inside + account.gaps_us + account.rest_us == pytest.approx(account.total_us, rel=1e-6)
    assert account.total_us == pytest.approx(
        sum(s.weight * s.captured.median_us for s in found.sets), rel=0.02
    )
    assert inside > 0.2 * account.total_us, "operations, not gaps, are most of what a model does"
    assert account.rest_share <= LARGEST_REST
    assert found.eager.gaps_us == pytest.approx(max(0.0, found.eager.total_us - inside))


@pytest.mark.parametrize("spec", EXAMPLES)
def test_the_time_of_our_models_is_attributed(spec: str) -> None:
    found = found_in(load(f"{ROOT}/examples/models/{spec}"))
    adds_up(found)
    seen = counts(found)
    assert EXAMPLES[spec].items() <= seen.items()
    assert all(one.work is not None for one in found.regions if one.kind is not Kind.VIEWS)


@pytest.mark.parametrize(
    "make",
    [zoo.llama, zoo.bert, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)],
    ids=lambda make: make.__name__,
)
def test_the_time_of_models_of_transformers_is_attributed(make: Callable[[], zoo.Built]) -> None:
    model, inputs = zoo.built(make)
    found = found_in(loaded_from(model, inputs))
    adds_up(found)
    assert {"attention"} <= counts(found).keys()


def test_marks_of_the_profiler_name_every_operation_of_the_graph() -> None:
    model, inputs = zoo.built(zoo.bert)
    watch = Watch()
    with torch.inference_mode():
        torch._dynamo.reset()
        call = torch.compile(model, backend=backend(model, watch.finish, watch.aside), dynamic=False)
        plain = zoo.first(call(**inputs))
        watch.annotate({})
        watch.form = "annotated"
        events = profiled(lambda: call(**inputs), 1, on_gpu=False)
        assert torch.equal(zoo.first(call(**inputs)), plain)
        watch.form = "stamped"
        assert torch.equal(zoo.first(call(**inputs)), plain)
        torch._dynamo.reset()
    times = marked_times(events, on_gpu=False)
    assert set(times) == {(0, name) for name in watch.names[0]}
    stamped, runs = watch.taken()
    assert set(stamped) == set(times)
    assert runs == {0: 1}


def test_a_graph_that_gradients_are_asked_of_is_one_row() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
    loaded = loaded_from(model.train(), (torch.randn(256, 64),))
    found = found_in(loaded)
    (row,) = found.regions
    assert (row.kind, row.sites, row.work) == (Kind.WHOLE, 1, None)
    assert row.captured_us > 0


def test_a_break_is_listed_and_both_sides_have_rows() -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.softmax(x, -1)
            torch._dynamo.graph_break()
            return y @ y.transpose(0, 1)

    found = found_in(loaded_from(Broken().eval(), (torch.randn(256, 256),)))
    assert found.graphs == 2
    (cut,) = found.breaks
    assert "test_profile.py" in cut.where
    assert {"softmax", "matmul"} <= {one.op for one in found.regions}
    adds_up(found)


def test_the_time_is_that_of_the_operation_that_takes_it() -> None:
    class Uneven(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            before = F.softmax(y, -1)
            return before, x @ x, before.sum(-1)

    found = found_in(loaded_from(Uneven().eval(), (torch.randn(384, 384), torch.randn(8, 8))))
    times = {one.op: one.captured_us for one in found.regions}
    assert times["matmul"] > 10 * sum(us for op, us in times.items() if op != "matmul")


def test_values_that_decide_the_way_through_a_model_are_averaged_over() -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softmax(x, -1) if x.sum() > 0 else x @ x

    def inputs(seed: int) -> tuple[torch.Tensor]:
        return (zoo.floats(192, 192).abs() * (1 if seed % 2 else -1),)

    found = found_in(loaded_from(Branch().eval(), inputs))
    assert {"softmax": 0.5, "matmul": 0.5}.items() <= counts(found).items()
    adds_up(found)


def kernels() -> list[tuple[Kernel, ...]]:
    fused = Kernel("cpp_fused_add_gelu_0", frozenset({"gelu", "add"}))
    return [(fused, Kernel("extern_kernels.mm", frozenset({"linear"})))]


def test_a_call_in_a_profile_is_known_by_its_sequence_of_kernels() -> None:
    seen = [KernelTime("graph_0_cpp_fused_add_gelu_0", 3.0), KernelTime("aten::mm", 5.0)]
    assert matched(seen, kernels()) == 0
    assert matched(seen[::-1], kernels()) is None
    assert matched(seen[:1], kernels()) is None


def test_a_fused_kernel_is_shared_out_as_its_operations_share_the_captured_time() -> None:
    weights = [{"gelu": {0: 30.0}, "add": {1: 10.0}, "linear": {2: 50.0}}]
    account = CompiledAccount(kernels(), weights, [30.0, 10.0, 50.0], [0.0] * 3)
    seen = [KernelTime("graph_0_cpp_fused_add_gelu_0", 8.0), KernelTime("aten::mm", 4.0)]
    account.add([Block([seen], 1, 24.0)] * 4, 48.0, 0.5)
    rows, stray = account.shared_out()
    assert rows == pytest.approx([6.0, 2.0, 4.0]), "half the weight of twice the time beside the profile"
    assert (stray, account.busy_us, account.is_estimated) == (0, pytest.approx(12.0), False)
    assert (account.kernels, account.linked) == (2, 2)


def test_what_a_gpu_does_outside_compiled_graphs_is_the_rest() -> None:
    account = CompiledAccount(
        [(Kernel("triton_fused_a_0", frozenset("a")),)], [{"a": {0: 1.0}}], [1.0], [0.0]
    )
    call = [KernelTime("triton_fused_a_0", 30.0)]
    account.add([Block([call], calls=1, plain_us=100.0, busy_us=50.0)] * 4, total_us=200.0, weight=0.5)
    rows, stray = account.shared_out()
    assert (rows, stray) == ([pytest.approx(30.0)], pytest.approx(20.0))
    assert account.busy_us == pytest.approx(50.0)


def span(name: str, start: float, end: float, device: DeviceType, **more: Any) -> SimpleNamespace:
    """Return an event such as torch.profiler gives."""
    more = {"kernels": [], "cpu_children": [], "is_user_annotation": False, **more}
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), device_type=device, **more
    )


def test_kernels_of_a_gpu_are_counted_once_and_marks_drawn_there_are_none() -> None:
    mark = f"{PREFIX}|0|mm|"
    inner = span("aten::mm", 1, 2, DeviceType.CPU, kernels=[SimpleNamespace(name="gemm", duration=7.0)])
    outer = span(
        mark,
        0,
        3,
        DeviceType.CPU,
        cpu_children=[inner],
        kernels=[SimpleNamespace(name=mark, duration=90.0), SimpleNamespace(name="copy", duration=2.0)],
    )
    assert device_us(outer) == 9.0
    on_gpu = [
        span("gemm", 10, 17, DeviceType.CUDA),
        span("copy", 15, 20, DeviceType.CUDA),
        span(mark, 10, 90, DeviceType.CUDA, is_user_annotation=True),
        span(f"{CALL} f1 ##", 5, 95, DeviceType.CUDA),
        span("Memset (Device)", 30, 31, DeviceType.CUDA),
    ]
    assert marked_times([outer, inner, *on_gpu], on_gpu=True) == {(0, "mm"): 9.0}
    assert busy_us([outer, inner, *on_gpu]) == 11.0
    call = span(
        f"{CALL} f1 ##", 0, 9, DeviceType.CPU, cpu_children=[span("cudaMalloc", 0, 1, DeviceType.CPU), inner]
    )
    assert kernel_times([call], on_gpu=True) == [[KernelTime("aten::mm", 7.0)]]


def test_the_work_of_attention_with_shared_heads_is_counted() -> None:
    class Grouped(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, k, mask, enable_gqa=True)

    given = torch.randn(2, 4, 16, 8), torch.randn(2, 2, 32, 8), torch.randn(16, 32)
    with torch.inference_mode():
        found = flops(capture(Grouped(), given).graphs)
    assert sum(found.values()) == 4 * (2 * 4) * 16 * 32 * 8


def test_kernels_nobody_can_tell_are_shared_out_like_the_captured_time_and_said_to_be() -> None:
    account = CompiledAccount([], [], [30.0, 10.0], [0.0, 0.0])
    account.add([Block([[KernelTime("triton_poi_1", 8.0)]], 1, 10.0)] * 4, 10.0, 1.0)
    rows, _ = account.shared_out()
    assert rows == pytest.approx([6.0, 2.0])
    assert account.is_estimated
    assert (account.kernels, account.linked) == (1, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, calibrated: Callable[[Path], Path]) -> Path:
    made = calibrated(tmp_path_factory.mktemp("profile") / "home").parent
    (made / "model.py").write_text(MODEL)
    (made / "kernelwright.toml").write_text("threads = 1\n")
    return made


def verb(folder: Path, *words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERNELWRIGHT_HOME": str(folder / "home")}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        [sys.executable, "-m", "kernelwright", "profile", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def answer(folder: Path) -> dict[str, Any]:
    words = ("--export-trace", "trace.json", "--memory-snapshot", "memory.pickle")
    done = verb(folder, "model.py:build", "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_verb_ranks_against_torch_compile_with_kernels_traced_to_regions(answer: dict[str, Any]) -> None:
    assert (answer["against"], answer["compile_error"], answer["graphs"]) == ("compiled", "", 1)
    assert answer["compile_s"] > 0
    assert answer["kernels"] == answer["linked"] > 0
    assert [(one["name"], one["weight"]) for one in answer["sets"]] == [("again", 0.75), ("long", 0.25)]
    rows = {row["region"]["op"]: row for row in answer["rows"]}
    assert {"attention", "matmul", "rmsnorm"} <= rows.keys()
    assert not any(row["region"]["is_estimated"] for row in answer["rows"])
    assert all(rows[op]["time_us"] > 0 for op in ("attention", "matmul", "rmsnorm"))
    account = answer["compiled"]
    parts = sum(row["time_us"] for row in answer["rows"]) + account["gaps_us"] + account["rest_us"]
    assert parts == pytest.approx(account["total_us"], rel=1e-6)
    assert answer["limit"] >= max([1.0, *answer["together"]]) * (1 - 1e-9)


def test_the_trace_has_every_way_of_running_and_the_regions_by_name(
    folder: Path, answer: dict[str, Any]
) -> None:
    trace = json.loads((folder / "trace.json").read_text())
    named = {str(event.get("name", "")) for event in trace["traceEvents"]}
    assert {"eager", "captured", "compiled"} <= named
    assert any(name.startswith("kernelwright|0|") and "attention_" in name for name in named)
    assert not (folder / "memory.pickle").exists()
    assert "no memory snapshot: the model runs on cpu, torch records GPU memory only" in answer["notes"]


def test_the_table_has_bars_gaps_rest_totals_and_a_what_if(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _print(ProfileAnswer.model_validate(answer))
    lines = capsys.readouterr().out.splitlines()
    (attention,) = [line for line in lines if line.startswith("attention_2x4x128x16_fp32_")]
    share = next(row["share"] for row in answer["rows"] if row["region"]["op"] == "attention")
    assert f"{100 * share:.1f} %" in attention
    assert bar(share) in attention
    for words in (
        "gaps: outside operations",
        "rest: not attributed",
        "all of compiled",
        "torch.compile compiled in",
    ):
        assert [line for line in lines if line.startswith(words)], words
    assert sum("eager" in line and "captured" in line and "compiled" in line for line in lines) == 2, (
        "per set"
    )
    assert any("Limit, with all regions at their floors and no gaps: x" in line for line in lines)


@pytest.mark.parametrize(
    ("share", "drawn"), [(0.0, ""), (1.0, "█" * 12), (0.5, "█" * 6), (1 / 96, "▏"), (-0.2, ""), (7, "█" * 12)]
)
def test_a_bar_is_as_long_as_its_share(share: float, drawn: str) -> None:
    assert bar(share) == drawn


def test_without_a_compiler_an_impossible_target_is_refused_against_eager(folder: Path) -> None:
    done = verb(folder, "model.py:build", "--target-speedup", "100000", path=str(folder))
    assert (done.returncode, done.stdout) == (3, "")
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("error: A speed-up of 100000 is out of reach for 'model.py:build': eager takes ")
    assert "Ask for --target-speedup " in line


def test_that_torch_compile_fails_is_a_result() -> None:
    loaded = loaded_from(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval(), (torch.ones(64, 64),)
    )
    with config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        found = found_in(loaded, with_compiled=True)
    assert found.compiled is None
    assert "compiler" in found.compile_error.lower()
    assert all(one.compiled_us is None for one in found.regions)
    assert found.sets[0].compiled is None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 3, "no model given"),
        (("model.py:build", "--against", "magic"), 2, "magic"),
        (("model.py:build", "--export-trace", "nowhere/trace.json"), 2, "a folder that does not exist"),
        (("model.py:nothing",), 3, "has no function or class 'nothing'"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = verb(folder, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
