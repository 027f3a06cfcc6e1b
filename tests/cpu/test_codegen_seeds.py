"""Fusions found in a model come with kernels of their own: the judge accepts them, and a run begins with them."""

from pathlib import Path

import pytest

from kernelwright.core.account import Against
from kernelwright.core.candidate import Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.events import ProblemFound, RunStarted
from kernelwright.core.problem import Problem
from kernelwright.core.region import read_back, written
from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.app import measured
from kernelwright.engine.offering import offered
from kernelwright.engine.regions import reference_of, regions_folder, write_regions
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import torch_device
from kernelwright.store.journal import Journal
from tests.cpu.fusions import MODULES, Gelu, Normed, Running, fusion, problem_of


@pytest.mark.parametrize("name", MODULES)
def test_the_judge_accepts_the_kernel_written_from_a_fusion(
    name: str, judge: JudgeClient, tmp_path: Path
) -> None:
    module, shapes = MODULES[name]
    one = fusion(module(), *shapes)
    assert (set(one.kernels), one.not_plain) == ({"cpp"}, "")
    problem = problem_of(one, tmp_path)
    (seed,) = Seeds(("cpp",), 2).first(problem)
    assert (seed.author.name, seed.origin, seed.op) == ("codegen", Origin.AUTHOR, "graph")
    verdict = judge.evaluate(problem, seed, Profile.KEEP)
    assert verdict.status is Status.ACCEPTED, verdict.stages[-1]


def test_what_is_returned_and_used_again_is_computed_once() -> None:
    text = fusion(Normed(), (24, 96), (24, 96)).kernels["cpp"]
    body = text[text.index("extern") :]
    assert body.count("#pragma omp parallel for") == 1, "sum, norm and residual are one pass over the rows"
    assert body.count("x0[") == 1 and "std::vector<float> t" not in body


def test_what_has_no_plain_form_has_no_seed_and_says_why() -> None:
    one = fusion(Running(), (8, 8), (8, 8))
    assert (one.kernels, one.not_plain) == ({}, "aten.lgamma")


def test_a_regions_file_and_a_problems_hash_do_not_depend_on_its_kernels(tmp_path: Path) -> None:
    one = fusion(Gelu(), (24, 96), (24, 96))
    bare = one.model_copy(update={"kernels": {}})
    assert written(one) == written(bare) and read_back(written(one), "x.py") == bare
    first, other = problem_of(one, tmp_path / "a"), problem_of(bare, tmp_path / "b")
    assert first.reference != other.reference and first.hash == other.hash
    again = Problem.model_validate_json(first.model_dump_json())
    assert [s.hash for s in Seeds(("cpp",), 2).first(again)] == [
        s.hash for s in Seeds(("cpp",), 2).first(first)
    ]
    assert Seeds(("cpp",), 2).first(other) == []


MODEL = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, residual):
        return torch.nn.functional.gelu(x + 1.5) * 0.5 + residual


def build():
    return Model()


def sample_inputs(seed):
    torch.manual_seed(seed)
    return torch.randn(256, 384), torch.randn(256, 384)
"""


def test_a_run_begins_a_fusion_with_the_kernel_written_from_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    home, folder = tmp_path / "home", tmp_path / "run"
    config = RunConfig(model=f"{tmp_path / 'model.py'}:build", against=Against.EAGER, threads=2)
    found, order = measured(config, home, 2, lambda _: None)
    device = torch_device(found.device)
    (problem,), told = offered(
        order, device, ("cpp",), 5, found.eager.total_us, regions_in=regions_folder(home)
    )
    assert [one.skipped for one in told.regions] == [""]
    folder.mkdir()
    with Journal.create(folder, "run") as journal:
        started = RunStarted(config=config.model_dump(mode="json"), versions={}, device=device)
        journal.append([started, told, ProblemFound(problem=problem)])
    # A later sitting knows the journal alone: it makes the region's file and finds the seed.
    kept = Journal.open(folder).tree().problems[problem.hash]
    write_regions([kept], regions_folder(home))
    assert kept.captured is not None and kept.reference == reference_of(kept.captured, regions_folder(home))
    assert Path(kept.reference.removeprefix("file:").split("#")[0]).read_text() == kept.captured.source
    seeds = Seeds(("cpp",), 2)
    (first,) = seeds.first(kept)
    assert (kept.op, first.backend, first.author.name) == ("graph", "cpp", "codegen")
    assert first.source == kept.captured.kernels["cpp"]
    (eager,) = seeds.baselines(kept)
    late = seeds.late_baseline(kept)
    assert late is not None and (eager.backend, late.backend) == ("eager", "compiled")
    assert eager.source.startswith(kept.captured.source) and eager.origin is Origin.BASELINE
