"""Which regions a run works on: ranked by what they would gain, the others named with the reason."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelwright.backends import _compute_sanitizer
from kernelwright.core.account import Account, Against, Kind, Ranking, Region, ranking
from kernelwright.core.captured import CapturedRegion
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Ceiling, Ceilings, DeviceKind
from kernelwright.core.errors import BackendUnavailable
from kernelwright.core.problem import Problem
from kernelwright.core.roofline import Work
from kernelwright.engine.app import Beginning, begin
from kernelwright.engine.offering import (
    AT_FLOOR,
    NO_AUTHOR,
    NO_PROBLEM,
    languages,
    offered,
    refuse_unusable,
    refuse_unwatched,
)
from kernelwright.engine.regions import reference_of, regions_folder, write_regions
from kernelwright.engine.seeds import Seeds

LINE = Ceiling(fixed_us=0, rate=1e12)
DEVICE = Ceilings(reading=LINE, copying=LINE, flops={"fp32": 1e12})
"""A megabyte takes one microsecond."""


def region(case, name: str, time_us: float, floor_us: int = 1, **given: object) -> Region:
    fields: dict[str, object] = {
        "kind": Kind.OP,
        "op": case.op if case else name,
        "name": name,
        "sites": 3,
        "calls": 1.0,
        "captured_us": time_us,
        "compiled_us": time_us,
        "case": case,
        "work": Work(bytes_read=floor_us * 1_000_000, bytes_written=0, flops=0, compute_class="fp32"),
    }
    return Region.model_validate(fields | given)


def ranked(*regions: Region) -> Ranking:
    return ranking(regions, Account(total_us=1000, gaps_us=0, rest_us=0), DEVICE, Against.COMPILED)


def test_problems_come_by_the_end_to_end_gain_still_to_win_and_no_more_than_asked_for(make):
    rows = [region(make.case(rows=8 * n), f"r{n}", time_us=100 * n) for n in (1, 3, 2)]
    problems, told = offered(ranked(*rows), make.device(kind=DeviceKind.CPU), ("cpp",), 2, 1200.0)
    assert [problem.cases[0].axes["rows"] for problem in problems] == [24, 16]
    assert [problem.share for problem in problems] == [pytest.approx(0.3), pytest.approx(0.2)]
    assert [(one.name, one.skipped) for one in told.regions] == [
        ("r3", ""),
        ("r2", ""),
        ("r1", "beyond --top 2"),
    ]
    assert (told.against, told.total_us, told.eager_us) == (Against.COMPILED, 1000, 1200)


def test_what_is_not_offered_is_named_with_the_reason(make):
    graph = make.case().model_copy(update={"op": "graph"})
    near = region(make.case(rows=16), "near", time_us=102, floor_us=100)
    rows = (
        region(make.case(rows=8), "norm", time_us=50),
        near,
        region(graph, "fusion", 300, kind=Kind.FUSION),
        region(None, "embedding", 200, kind=Kind.SINGLE),
        region(None, "views", 10, kind=Kind.VIEWS, work=None),
    )
    problems, told = offered(ranked(*rows), make.device(kind=DeviceKind.CPU), ("cpp",), 5, 1.0)
    assert [problem.op for problem in problems] == ["rmsnorm"]
    assert {one.name: one.skipped for one in told.regions} == {
        "norm": "",
        "near": AT_FLOOR,
        "fusion": NO_AUTHOR,
        "embedding": NO_PROBLEM,
    }


def test_a_fusion_is_offered_where_a_kernel_was_written_from_it_and_named_where_not(make, tmp_path):
    graph = make.case().model_copy(update={"op": "graph"})
    written = CapturedRegion(source="a", kernels={"cpp": "int x;"})
    other = CapturedRegion(source="b", not_plain="aten.cumsum")
    rows = (
        region(graph, "fusion", 300, kind=Kind.FUSION, captured=written),
        region(graph, "running sum", 200, kind=Kind.FUSION, captured=other),
    )
    device = make.device(kind=DeviceKind.CPU)
    (problem,), told = offered(ranked(*rows), device, ("cpp",), 5, 1.0, regions_in=tmp_path)
    assert problem.captured == written
    assert problem.reference == f"file:{tmp_path / written.reference_hash}.py#{written.reference_hash}"
    assert [one.skipped for one in told.regions] == ["", "no plain loops for aten.cumsum"]
    both, _ = offered(ranked(*rows), device, ("cpp",), 5, 1.0, drafts=True, regions_in=tmp_path)
    assert len({one.hash for one in both}) == 2, "the same case, and two things computed"
    assert offered(ranked(*rows), device, ("triton",), 5, 1.0, regions_in=tmp_path)[0] == []


def test_a_region_is_found_from_any_working_folder():
    assert regions_folder(Path("home")) == Path.cwd() / "home" / "regions"


def test_a_regions_problem_is_what_its_text_says(make, tmp_path):
    def problem(text: str, folder: str, **kernels: str) -> Problem:
        region = CapturedRegion(source=text, kernels=kernels)
        case = make.case().model_copy(update={"op": "graph"})
        reference = reference_of(region, tmp_path / folder)
        return make.problem(op="graph", cases=(case,), reference=reference, captured=region)

    first = problem("a", "x")
    assert first.hash == problem("a", "y", cpp="int x;").hash != problem("b", "x").hash
    write_regions([first], tmp_path / "x")
    assert (tmp_path / "x" / f"{first.captured.reference_hash}.py").read_text() == "a"


def test_one_case_written_in_two_forms_is_one_problem(make):
    rows = [region(make.case(), "a", 100), region(make.case(), "b", 60)]
    (problem,), _ = offered(ranked(*rows), make.device(kind=DeviceKind.CPU), ("cpp",), 1, 1.0)
    assert (problem.count, problem.share) == (6, pytest.approx(0.16))


def test_a_language_without_a_seed_has_no_author(make):
    problems, told = offered(
        ranked(region(make.case(), "a", 100)), make.device(kind=DeviceKind.CPU), ("python",), 5, 1.0
    )
    assert (problems, told.regions[0].skipped) == ([], NO_AUTHOR)


def test_a_cpu_gets_cpp_and_a_gpu_gets_triton_before_cuda(make):
    assert languages(RunConfig(), make.device(kind=DeviceKind.CPU)) == ("cpp",)
    found = languages(RunConfig(), make.device())
    assert found[0] == "triton"
    assert set(found) <= {"triton", "cuda"}


@pytest.mark.parametrize(
    ("backend", "kind", "words"),
    [
        ("triton", DeviceKind.CPU, "'triton' needs the model on a GPU. Pass --device cuda."),
        ("cpp", DeviceKind.CUDA, "'cpp' needs the model on a CPU. Pass --device cpu."),
    ],
)
def test_a_language_of_the_other_device_is_refused_by_name(make, backend, kind, words):
    with pytest.raises(BackendUnavailable, match=words):
        languages(RunConfig(backend=backend), make.device(kind=kind))


def test_an_explicit_language_is_taken_where_it_fits(make):
    assert languages(RunConfig(backend="cpp"), make.device(kind=DeviceKind.CPU)) == ("cpp",)
    assert languages(RunConfig(backend="cuda"), make.device()) == ("cuda",)
    refuse_unusable(RunConfig())


def test_a_run_whose_winners_no_sanitizer_could_look_into_is_refused_before_it_begins(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_compute_sanitizer, "program", lambda: None)
    beginning = Beginning(datetime.now(UTC), make.device(), Seeds(("triton", "cuda"), 1), ())
    with pytest.raises(BackendUnavailable, match="'triton' needs compute-sanitizer") as caught:
        begin(RunConfig(op="rmsnorm"), tmp_path, beginning, print)
    assert "pip install nvidia-cuda-sanitizer-api" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_only_plans_on_an_nvidia_gpu_need_compute_sanitizer(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compute_sanitizer, "program", lambda: None)
    refuse_unwatched(("cpp", "triton"), make.device(kind=DeviceKind.CPU))
    refuse_unwatched(("python",), make.device())
    monkeypatch.setattr(_compute_sanitizer, "program", lambda: "/usr/local/cuda/bin/compute-sanitizer")
    refuse_unwatched(("triton", "cuda"), make.device())
