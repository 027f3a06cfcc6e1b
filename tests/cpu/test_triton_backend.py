"""The Triton backend without a GPU: what it refuses, how it fails, what it leaves, what the judge says of it."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from kernelwright.backends import triton as backend
from kernelwright.backends._triton_report import nvidia_resources
from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import DType
from kernelwright.core.plan import KernelUnit, Parameter
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Profile, Stage, Status
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import cpu_device

HEAD = "import triton\nimport triton.language as tl\n"
PLAN = "\n\ndef plan(case, params, device):\n    return {'launches': []}\n"
KERNEL = """

@triton.jit
def scale_all(x, out, count, step, factor, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place * step, mask=place < count, other=0.0)
    tl.store(out + place, value * factor, mask=place < count)
"""
GOOD = HEAD + KERNEL + PLAN
POINTER = Parameter(type="*fp16", divisible_by_16=True)
ARGUMENTS = (
    POINTER,
    POINTER,
    Parameter(type="i32", divisible_by_16=True),
    Parameter(type="i32", is_one=True),
    Parameter(type="fp32"),
)
UNIT = KernelUnit(kernel="scale_all", parameters=ARGUMENTS, constants={"BLOCK": 1024}, meta={"num_warps": 4})


def changed(**update: object) -> KernelUnit:
    return UNIT.model_copy(update=update)


def test_kernel_compiles_and_leaves_binary_and_launch_facts(tmp_path: Path) -> None:
    result = backend.compile_unit(GOOD, UNIT, "sm_90", tmp_path)
    assert result.status is Status.ACCEPTED, result.log
    facts = json.loads((tmp_path / f"{UNIT.hash[:16]}.json").read_text())
    assert result.artefact == f"{UNIT.hash[:16]}.cubin"
    assert (tmp_path / result.artefact).read_bytes()[:4] == b"\x7fELF"
    assert facts["entry"] == "scale_all"
    assert facts["threads"] == 128
    # The step of one is folded into the code; two pointers of Triton's own follow the four arguments that are left.
    assert facts["folded"] == [3]
    assert (facts["parameters"], facts["trailing_pointers"]) == (4, 2)
    assert facts["parameter_bytes"] == [8, 8, 4, 4, 8, 8]
    assert facts["triton"] == metadata.version("triton")
    assert result.resources["spill_store_bytes"] == 0
    assert 0 < result.resources["registers"] < 64
    assert result.resources["ld_global_16B"] == 1
    assert result.resources["ptx_version"] >= 80


def test_nothing_but_artefact_and_source_stays_behind(tmp_path: Path) -> None:
    folder = tmp_path / "build"
    backend.compile_unit(GOOD, UNIT, "sm_80", folder)
    stem = UNIT.hash[:16]
    names = sorted(path.name for path in folder.iterdir())
    assert [name for name in names if not name.startswith(("candidate_", "__pycache__"))] == [
        f"{stem}.cubin",
        f"{stem}.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["build"]


def test_an_argument_without_alignment_gets_narrow_loads(tmp_path: Path) -> None:
    loose = changed(parameters=(Parameter(type="*fp16"), *ARGUMENTS[1:]))
    resources = backend.compile_unit(GOOD, loose, "sm_90", tmp_path).resources
    assert "ld_global_16B" not in resources
    assert resources["ld_global_2B"] == 8


def test_amd_targets_leave_a_code_object(tmp_path: Path) -> None:
    result = backend.compile_unit(GOOD, UNIT, "gfx942", tmp_path)
    assert result.status is Status.ACCEPTED, result.log
    assert result.artefact == f"{UNIT.hash[:16]}.hsaco"
    facts = json.loads((tmp_path / f"{UNIT.hash[:16]}.json").read_text())
    assert facts["threads"] == 256
    assert facts["parameter_bytes"][:4] == [8, 8, 4, 4]
    assert result.resources["registers"] > 0


REFUSED = {
    "syntax error": (HEAD + "\ndef broken(:\n", "not valid Python"),
    "no plan": (HEAD + KERNEL, "named 'plan'"),
    "plan outside the subset": (
        HEAD + KERNEL + "\n\ndef plan(case, params, device):\n    import os\n",
        "line 13: Import is outside",
    ),
    "no kernel": (HEAD + PLAN, "triton.jit or gluon.jit"),
    "forbidden import": ("import os\n" + GOOD, "import of os is not allowed"),
    "forbidden part of triton": ("from triton.runtime import driver\n" + GOOD, "triton.runtime.driver"),
    "star import": ("from triton.language import *\n" + GOOD, "not allowed"),
    "relative import": ("from . import softmax\n" + GOOD, "not allowed"),
    "call at module level": (GOOD + "\nprint('side effect')\n", "Expr is not allowed at module level"),
    "value computed at module level": (GOOD + "\nSIZE = open('/etc/hostname').read()\n", "literal"),
    "loop at module level": (GOOD + "\nfor i in (1,):\n    pass\n", "For is not allowed"),
    "class": (GOOD + "\nclass Thing:\n    pass\n", "ClassDef is not allowed"),
    "undecorated function": (GOOD + "\ndef helper():\n    return 1\n", "'helper' must be decorated"),
    "foreign decorator": (GOOD + "\n@print\ndef helper():\n    return 1\n", "'helper' must be decorated"),
    "default that runs": (
        HEAD + KERNEL.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr = print('x')") + PLAN,
        "must be literals",
    ),
    "annotation that runs": (
        HEAD + KERNEL.replace("BLOCK: tl.constexpr", "BLOCK: print('x')") + PLAN,
        "annotations of 'scale_all'",
    ),
    "import inside a kernel": (
        HEAD + KERNEL.replace("    place", "    import os\n    place", 1) + PLAN,
        "import must stand at module level",
    ),
    "dunder": (
        HEAD + KERNEL.replace("value * factor", "value * x.__class__") + PLAN,
        "'__class__' is not allowed",
    ),
    "host call": (HEAD + KERNEL.replace("value * factor", "eval('value')") + PLAN, "'eval' is not allowed"),
    "too long": (GOOD + "#" * backend.SOURCE_LIMIT, "bytes of source"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_source_is_refused_by_name_before_anything_runs(name: str, tmp_path: Path) -> None:
    source, words = REFUSED[name]
    reason = backend.check(source)
    assert reason is not None
    assert words in reason
    assert backend.compile_unit(source, UNIT, "sm_90", tmp_path).status is Status.REFUSED
    assert list(tmp_path.iterdir()) == []


def test_kernels_helpers_constants_and_docstrings_are_accepted() -> None:
    more = '''
LIMIT = tl.constexpr(-1.0)
PARAMS = {"BLOCK": [128, 256]}


@triton.jit(noinline=False)
def helper(a, b=None):
    """Return the sum."""
    return a + b
'''
    assert backend.check('"""Doc."""\n' + GOOD + more) is None


FAILED = {
    "unknown kernel": (
        changed(kernel="scale_some"),
        "sm_90",
        "no kernel named 'scale_some'; there are scale_all",
    ),
    "unknown target": (UNIT, "sm_9x", "unknown target 'sm_9x'; known: sm_75"),
    "unknown AMD target": (UNIT, "gfx000", "unknown target 'gfx000'"),
    "unknown option": (changed(meta={"warps": 4}), "sm_90", "unknown option 'warps'"),
    "option of another vendor": (changed(meta={"kpack": 2}), "sm_90", "'kpack' does not exist for sm_90"),
    "unsupported dtype": (
        changed(parameters=(Parameter(type="*fp4"), *ARGUMENTS[1:])),
        "sm_90",
        "no pointer type for 'fp4'",
    ),
    "tensor map": (
        changed(parameters=(Parameter(type="tensor_map"), *ARGUMENTS[1:])),
        "sm_90",
        "tl.make_tensor_descriptor",
    ),
    "too few arguments": (
        changed(parameters=ARGUMENTS[:4]),
        "sm_90",
        "takes 5 arguments (x, out, count, step, factor)",
    ),
    "missing constant": (changed(constants={}, parameters=ARGUMENTS), "sm_90", "needs a constant 'BLOCK'"),
    "stray constant": (
        changed(constants={"BLOCK": 64, "SIZE": 1}),
        "sm_90",
        "constant 'SIZE' is no parameter",
    ),
    "warps that are no power of two": (changed(meta={"num_warps": 3}), "sm_90", "power of 2"),
}


@pytest.mark.parametrize("name", FAILED)
def test_what_cannot_be_compiled_comes_back_as_a_status_with_the_reason(name: str, tmp_path: Path) -> None:
    unit, target, words = FAILED[name]
    result = backend.compile_unit(GOOD, unit, target, tmp_path)
    assert result.status is Status.BUILD_FAILED
    assert words in result.log
    assert result.artefact is None


def test_compiler_errors_carry_the_lines_of_the_file(tmp_path: Path) -> None:
    helper = "\n\n@triton.jit\ndef helper(a):\n    return tl.dot(a, a)\n"
    source = HEAD + helper + KERNEL.replace("value * factor", "helper(value)") + PLAN
    result = backend.compile_unit(source, UNIT, "sm_90", tmp_path)
    assert result.status is Status.BUILD_FAILED
    lines = source.splitlines()
    caller = 1 + next(i for i, line in enumerate(lines) if "helper(value)" in line)
    callee = 1 + next(i for i, line in enumerate(lines) if "tl.dot" in line)
    assert f"line {caller}, column" in result.log
    assert f"line {callee}, column" in result.log
    assert result.log.index(f"line {caller},") < result.log.index(f"line {callee},")
    assert str(tmp_path) not in result.log


def test_assembler_errors_come_back_bounded(tmp_path: Path) -> None:
    poison = 'tl.inline_asm_elementwise("frobnicate.b32 $0, $1;", "=r,r", [place], tl.int32, True, 1)'
    source = HEAD + KERNEL.replace("mask=place < count, other", f"mask={poison} < count, other") + PLAN
    result = backend.compile_unit(source, UNIT, "sm_90", tmp_path)
    assert result.status is Status.BUILD_FAILED
    assert "frobnicate" in result.log
    assert len(result.log) <= backend.LOG_LIMIT + 100


MATMUL = """

@triton.jit
def product(a, b, out, k, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, 64):
        inner = start + tl.arange(0, 64)
        left = tl.load(a + place[:, None] * k + inner[None, :])
        right = tl.load(b + place[:, None] * k + inner[None, :])
        sums = tl.dot(left, right.T, sums)
    tl.store(out + place[:, None] * BLOCK + place[None, :], sums.to(tl.float16))
"""


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"num_warps": 8, "num_stages": 8}, "bytes of shared memory; sm_86 has 101376"),
        ({"num_warps": 64, "num_stages": 2}, "2048 threads in a block; sm_86 has 1024"),
    ],
)
def test_more_than_the_target_has_is_too_big(meta: dict[str, int], words: str, tmp_path: Path) -> None:
    unit = KernelUnit(
        kernel="product",
        parameters=(POINTER, POINTER, POINTER, Parameter(type="i32", divisible_by_16=True)),
        constants={"BLOCK": 128},
        meta=meta,
    )
    result = backend.compile_unit(HEAD + MATMUL + PLAN, unit, "sm_86", tmp_path)
    assert result.status is Status.TOO_BIG
    assert words in result.log
    assert result.artefact is None
    assert not list(tmp_path.glob("*.cubin"))


def test_serialized_tensor_core_products_are_counted() -> None:
    log = (
        "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x\n"
        "ptxas info    : 40 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers\n"
    )
    found = nvidia_resources(
        ".version 8.7\n@%p1 ld.global.L1::evict_last.v4.b32 { %r1 }, [ %rd1 + 0 ];\n", log
    )
    assert found == {
        "registers": 255,
        "stack_bytes": 40,
        "spill_store_bytes": 8,
        "spill_load_bytes": 16,
        "ptx_version": 87,
        "wgmma_serialized": 1,
        "ld_global_16B": 1,
    }


def test_availability_names_the_remedy_when_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert backend.available().usable
    assert metadata.version("triton") in backend.available().detail
    monkeypatch.setattr(backend.metadata, "version", missing)
    answer = backend.available()
    assert not answer.usable
    assert answer.detail == "the triton package is not installed"
    assert "pip install triton" in answer.remedy


def on_cpu(op: str, dtype: DType = DType.FP32) -> Problem:
    case = plugins.load("ops", op).case({"rows": 16, "cols": 64}, dtype)
    return Problem(op=op, cases=(case,), device=cpu_device())


def starting(op: str, language: str = "triton", old: str = "", new: str = "") -> Candidate:
    """Return a seed with one change; the text must be there."""
    found = seed(op, language, Origin.AUTHOR)
    assert found is not None
    assert old in found.source
    return found.model_copy(update={"source": found.source.replace(old, new)}) if old else found


@pytest.mark.parametrize("op", ["rmsnorm", "softmax"])
def test_without_a_gpu_the_judge_checks_a_seed_in_the_interpreter(op: str, judge: JudgeClient) -> None:
    found = judge.evaluate(on_cpu(op), starting(op), Profile.QUICK)
    assert found.status is Status.ACCEPTED, found.failure
    assert found.timing is None
    # fp32 and fp16 are asked for; bf16 is left out because the interpreter gets it wrong.
    assert found.stages[-1].checked >= 2


WRONG = {
    "rmsnorm": ("+ eps", "+ 2 * eps + 0.01"),
    "softmax": ("tl.div_rn(weight, total)", "tl.div_rn(weight, total + 0.001)"),
}


@pytest.mark.parametrize("op", WRONG)
def test_without_a_gpu_a_wrong_kernel_is_wrong(op: str, judge: JudgeClient) -> None:
    found = judge.evaluate(on_cpu(op), starting(op, "triton", *WRONG[op]), Profile.QUICK)
    assert found.status is Status.WRONG, found.failure


def test_without_a_gpu_nothing_is_certified(judge: JudgeClient) -> None:
    candidate = starting("rmsnorm")
    found = judge.evaluate(on_cpu("rmsnorm"), candidate, Profile.KEEP)
    assert (found.status, found.timing) == (Status.UNSUPPORTED, None)
    assert found.failure is not None
    assert found.failure.stage is Stage.TIMING
    assert "correctness only: no GPU here" in found.failure.reason
    compared = judge.compare(on_cpu("rmsnorm"), candidate, candidate)
    assert compared.status is Status.UNSUPPORTED


def test_without_a_gpu_bf16_is_refused_by_name(judge: JudgeClient) -> None:
    found = judge.evaluate(on_cpu("rmsnorm", DType.BF16), starting("rmsnorm"), Profile.KEEP)
    assert found.status is Status.UNSUPPORTED
    assert found.failure is not None
    assert "computes bf16 wrongly" in found.failure.reason


def test_without_a_gpu_cuda_cannot_be_judged_and_says_so(judge: JudgeClient) -> None:
    found = judge.evaluate(on_cpu("rmsnorm"), starting("rmsnorm", "cuda"), Profile.QUICK)
    assert found.status is Status.UNSUPPORTED
    assert found.failure is not None
    assert "no GPU here" in found.failure.reason


def test_a_plan_that_fails_in_the_interpreter_is_refused_with_its_line(judge: JudgeClient) -> None:
    broken = starting(
        "rmsnorm",
        "triton",
        "def plan(case, params, device):",
        "def plan(case, params, device):\n    absent = case.absent",
    )
    found = judge.evaluate(on_cpu("rmsnorm"), broken, Profile.QUICK)
    assert found.status is Status.REFUSED, found.failure
