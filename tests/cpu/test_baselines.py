"""The baselines: PyTorch eager and torch.compile, judged and timed like everybody else, and only from us."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.backends import _baseline, compiled, eager
from kernelwright.backends._tensors import tensor_at, tensors_at
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import DType, TensorSpec
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Evaluation, Profile, Stage, Status
from kernelwright.engine.seeds import compiled_baseline, seed
from kernelwright.engine.service import JudgeClient
from kernelwright.store.blobs import Blobs


def baseline(problem: Problem, mode: str = "default") -> Candidate:
    found = compiled_baseline(problem, 2, mode)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def verdict(judge: JudgeClient, problem: Problem) -> Evaluation:
    return judge.evaluate(problem, baseline(problem), Profile.KEEP)


def test_the_compiled_baseline_is_accepted_and_timed_like_a_candidate(verdict: Evaluation) -> None:
    assert verdict.status is Status.ACCEPTED, verdict.failure
    assert verdict.timing is not None
    assert verdict.timing.clock == "judge-slope"
    assert verdict.timing.cases[0].median_us > 0


def test_own_cases_run_inductors_code_and_all_others_the_source(
    verdict: Evaluation, judge: JudgeClient
) -> None:
    blobs = Blobs(Path(judge.settings.blob_folder))
    kinds = sorted(blobs.path(found).read_bytes()[:1] for found in verdict.artefact_hashes.values())
    assert kinds == [b"{", b"\x7f"]


def test_an_author_may_not_pass_off_torch_compile_as_a_kernel(judge: JudgeClient, problem: Problem) -> None:
    stolen = baseline(problem).model_copy(update={"origin": Origin.AUTHOR})
    found = judge.evaluate(problem, stolen, Profile.QUICK)
    assert (found.status, found.stages[-1].stage) == (Status.DELEGATION, Stage.GUARDS)


def test_a_mode_torch_does_not_have_fails_by_name(judge: JudgeClient, problem: Problem) -> None:
    found = judge.evaluate(problem, baseline(problem, "fastest"), Profile.QUICK)
    assert found.status is Status.BUILD_FAILED
    assert found.failure is not None
    assert "unknown mode 'fastest'; known: default, max-autotune" in found.failure.reason


@pytest.mark.parametrize("language", [compiled, eager], ids=["compiled", "eager"])
def test_a_parameter_a_baseline_does_not_have_fails_by_name(language: object, tmp_path: Path) -> None:
    result = language.build("def kernel_fn(x): return x", {"BLOCK": 4}, tmp_path)  # type: ignore[attr-defined]
    assert (result.status, "'BLOCK'" in result.log) == (Status.BUILD_FAILED, True)


def test_what_inductor_cannot_compile_fails_with_its_words(problem: Problem, tmp_path: Path) -> None:
    source = "def kernel_fn(x, weight, eps):\n    return x if x.sum().item() > 0 else weight\n"
    result = compiled.build(source, dict(baseline(problem).choices[0].values), tmp_path)
    assert result.status is Status.BUILD_FAILED
    assert "data-dependent" in result.log


def test_on_a_gpu_whoever_runs_it_compiles_the_cases_of_the_problem_and_no_others(problem: Problem) -> None:
    gpu = Device(kind=DeviceKind.CUDA, name="H200", arch="sm_90", units=132, memory_bytes=139 << 30)
    found = baseline(problem.model_copy(update={"device": gpu}), "max-autotune")
    (case,) = problem.cases
    rows = [(choice.case_hashes, choice.values) for choice in found.choices]
    assert rows == [((case.hash,), {"mode": "max-autotune", "jit": True}), ((), {"mode": "max-autotune"})]


def test_the_compiled_baseline_is_the_eager_source(problem: Problem) -> None:
    plain = seed("rmsnorm", "eager", Origin.BASELINE)
    assert plain is not None
    found = baseline(problem)
    assert (found.source, found.origin) == (plain.source, Origin.BASELINE)
    assert found.hash != plain.hash


def test_an_address_becomes_the_very_tensor_the_spec_describes() -> None:
    storage = torch.arange(40, dtype=torch.float32)
    spec = TensorSpec(name="x", shape=(3, 2), dtype=DType.FP32, strides=(5, 2), offset=4)
    view = tensor_at(spec, storage.data_ptr() + 4 * 4)
    assert torch.equal(view, storage.as_strided((3, 2), (5, 2), 4))
    view[1, 1] = -1
    assert storage[4 + 5 + 2] == -1


def test_tensors_that_start_at_one_address_share_one_storage() -> None:
    memory = torch.arange(12, dtype=torch.float32)
    whole = TensorSpec(name="x", shape=(3, 4), dtype=DType.FP32)
    row = TensorSpec(name="weight", shape=(4,), dtype=DType.FP32)
    found = tensors_at((row, whole), {"x": memory.data_ptr(), "weight": memory.data_ptr()})
    assert torch.equal(found["weight"], memory[:4])
    sizes = {tensor.untyped_storage().nbytes() for tensor in found.values()}
    assert sizes == {48}


def test_eager_attention_copies_what_the_fused_kernels_die_of_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = seed("attention", "eager", Origin.BASELINE)
    assert plain is not None
    space: dict[str, Any] = {}
    exec(plain.source, space)
    memory = torch.zeros(8192, dtype=torch.float16)
    as_in_a_model = memory.as_strided((2, 2, 16, 64), (2048, 64, 128, 1))
    odd_heads = memory[:640].view(2, 2, 8, 20)
    for kept in (memory[:4096].view(2, 2, 16, 64), as_in_a_model, odd_heads):
        assert space["aligned"](kept) is kept
    odd_start, odd_rows = (
        memory[1:4097].view(2, 2, 16, 64),
        memory.as_strided((2, 2, 8, 64), (999, 480, 65, 1)),
    )
    for copied in (odd_start, odd_rows):
        found = space["aligned"](copied)
        assert (found.data_ptr() % 16, found.is_contiguous()) == (0, True)
    # Under torch.compile an address is nothing to branch on, and Inductor copies what starts badly; not such rows.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert space["aligned"](odd_start) is odd_start
    assert space["aligned"](odd_rows).is_contiguous()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_cross_entropy_of_halves_is_as_exact_as_one_rounding_allows(kind: torch.dtype) -> None:
    found = seed("cross_entropy", "eager", Origin.BASELINE)
    assert found is not None
    own, native = _baseline.function_of(found.source), torch.nn.functional.cross_entropy
    off = {own: 0.0, native: 0.0}
    for number in range(40):
        rng = torch.Generator().manual_seed(number)
        logits = torch.randn(256, 4000, generator=rng).to(kind)
        labels = torch.randint(4000, (256,), generator=rng)
        exact = native(logits.double(), labels)
        for function in off:
            loss = function(logits, labels, ignore_index=-100)
            assert loss.dtype is kind
            off[function] = max(off[function], abs(float(loss.double() / exact - 1)))
    assert off[own] <= torch.finfo(kind).eps / 2 * 1.001
    assert off[native] > torch.finfo(kind).eps, "the framework's own would be refused on a CPU"
