"""The CUDA backend and its nine seeds, compiled without a GPU: what is refused and how, what the compiler reports."""

import ast
import json
import shutil
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import kernelwright
from kernelwright.backends import cuda
from kernelwright.backends._cuda_compile import nvrtc_version
from kernelwright.core import plugins
from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case, DType
from kernelwright.core.device import Device
from kernelwright.core.errors import BackendUnavailable
from kernelwright.core.plan import KernelUnit, Launch, LaunchPlan, Parameter, kernel_unit
from kernelwright.core.plan_language import first_values, parse_params, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.ports import BuildResult
from kernelwright.core.verdict import Status
from tests.devices import H200

SEEDS = Path(kernelwright.__file__).parent / "seeds"
MEMORY_BOUND = ("cross_entropy", "layernorm", "reduce", "rmsnorm", "rope", "softmax")
MATRIX = ("attention", "matmul", "swiglu_mlp")
OPS = (*MEMORY_BOUND, *MATRIX)
A100 = H200.model_copy(
    update={"name": "NVIDIA A100", "arch": "sm_80", "units": 108, "shared_bytes": 163 << 10}
)
DEVICES = {"sm_90": H200, "sm_80": A100}
COLD_BUILD_S = 3.0
STATIC_SHARED = 'extern "C" __global__ void k(float* x) { __shared__ float s[%d]; s[threadIdx.x] = x[0]; '
STATIC_SHARED += "__syncthreads(); x[threadIdx.x] = s[31 - threadIdx.x]; }\n"
PLAN = """/*kernelwright
PARAMS = {"N": [1, 2]}

def plan(case, params, device):
    return {"launches": [{"kernel": "k", "grid": (1,), "block": (32,), "args": ["x", 3, 2.5]}]}
*/
"""
KERNEL = 'extern "C" __global__ void k(float* x, int n, float f) { x[threadIdx.x] = n * f; }\n'
TYPES = ("*fp32", "i32", "fp32")
needs_nvrtc = pytest.mark.skipif(
    nvrtc_version() is None,
    reason="cuda-core is not installed: pip install 'kernelwright[cuda]' nvidia-cuda-nvrtc nvidia-cuda-runtime",
)


def unit(types: tuple[str, ...] = TYPES, kernel: str = "k", **parts: object) -> KernelUnit:
    fields = {
        "kernel": kernel,
        "parameters": [Parameter(type=name) for name in types],
        "constants": {},
        "meta": {},
    }
    return KernelUnit.model_validate(fields | parts)


def seed(op: str) -> str:
    return (SEEDS / op / "cuda.cu").read_text()


@cache
def parsed(op: str) -> tuple[ast.FunctionDef, dict[str, ParamValue]]:
    return parse_plan(seed(op)), first_values(seed(op))


def planned(op: str, case: Case, device: Device, **changed: ParamValue) -> LaunchPlan:
    function, values = parsed(op)
    return run_plan(function, case, values | changed, device)


def some_cases(op: str) -> list[Case]:
    """Return the board, a small size of every dtype, and vocabularies."""
    module = plugins.load("ops", op)
    public = module.public_cases()
    wide = [case for case in module.edge_cases() if 50257 in case.axes.values()]
    return [
        *(case for case in public if case.dtype is DType.FP16),
        *(next(case for case in public if case.dtype is dtype) for dtype in module.DTYPES),
        *wide,
    ]


@dataclass(frozen=True)
class Built:
    """One compiled launch of a seed."""

    case: Case
    launch: Launch
    result: BuildResult
    seconds: float


def build(op: str, case: Case, launch: Launch, target: str) -> Built:
    # CPU time, not wall time: a neighbour on the machine must not fail a build.
    start = time.process_time()
    with TemporaryDirectory() as folder:
        result = cuda.compile_unit(seed(op), kernel_unit(launch, case), target, Path(folder))
    return Built(case, launch, result, time.process_time() - start)


@cache
def built(op: str, target: str, whole: bool = False) -> tuple[Built, ...]:
    """Compile every distinct kernel the seed's plans ask for on Hopper, on Ampere one of each dtype unless `whole`."""
    found: dict[str, Built] = {}
    for case in some_cases(op):
        for launch in planned(op, case, DEVICES[target]).launches:
            is_every = whole or target == "sm_90"
            key = json.dumps([launch.kernel, launch.constants if is_every else case.dtype.value])
            if key not in found:
                found[key] = build(op, case, launch, target)
    return tuple(found.values())


@pytest.mark.parametrize("op", OPS)
def test_every_seed_passes_the_guards(op):
    assert cuda.check(seed(op)) is None


@needs_nvrtc
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("op", OPS)
def test_every_seed_compiles_without_complaint(op, target):
    said = [(item.launch.kernel, item.result.status, item.result.log) for item in built(op, target)]
    assert said == [(kernel, Status.ACCEPTED, "") for kernel, _, _ in said]


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_every_size_of_a_seed_compiles_for_ampere_and_fits_it(op):
    for item in built(op, "sm_80", whole=True):
        assert (item.result.status, item.result.log) == (Status.ACCEPTED, ""), item.launch
        assert op in MATRIX or item.result.resources["spill_bytes"] == 0, item.launch
        shared = item.result.resources["shared_static"] + item.launch.shared_bytes
        assert shared <= A100.shared_bytes, item.launch


@needs_nvrtc
@pytest.mark.parametrize("op", OPS)
def test_a_cold_build_of_a_seed_takes_less_than_three_seconds(op):
    slowest = max(built(op, "sm_90"), key=lambda item: item.seconds)
    assert slowest.seconds < COLD_BUILD_S, slowest.launch.kernel


@needs_nvrtc
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("op", MEMORY_BOUND)
def test_memory_bound_seeds_keep_everything_in_registers(op, target):
    spilled = {item.launch.kernel: item.result.resources["spill_bytes"] for item in built(op, target)}
    assert spilled == dict.fromkeys(spilled, 0)


@needs_nvrtc
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("op", OPS)
def test_what_a_seed_launches_fits_the_device(op, target):
    for item in built(op, target):
        resources, launch = item.result.resources, item.launch
        assert launch.block is not None and launch.block[0] <= resources["max_threads"], launch.kernel
        assert resources["shared_static"] + launch.shared_bytes <= DEVICES[target].shared_bytes, launch.kernel


@needs_nvrtc
@pytest.mark.parametrize("op", MATRIX)
def test_matrix_seeds_use_wgmma_and_the_copy_engine_on_hopper(op):
    board = [item for item in built(op, "sm_90") if item.launch.kernel.endswith("_wgmma")]
    assert {item.case.dtype for item in board} >= {DType.FP16}
    for item in board:
        assert item.result.resources["wgmma"] >= 4
        assert item.result.resources["tma_load"] >= 3
        assert item.result.resources["spill_bytes"] == 0


@needs_nvrtc
@pytest.mark.parametrize("op", MATRIX)
def test_matrix_seeds_use_tensor_cores_on_ampere(op):
    halves = [item for item in built(op, "sm_80") if item.case.dtype is not DType.FP32]
    assert halves and all(item.result.resources["mma"] >= 16 for item in halves)


@pytest.mark.parametrize("op", MEMORY_BOUND)
@needs_nvrtc
def test_memory_bound_seeds_move_sixteen_bytes_per_instruction(op):
    for item in built(op, "sm_90"):
        if (
            item.launch.constants.get("T", item.launch.constants.get("IN")) == "__half"
            and item.case.axes != {}
        ):
            wide = item.result.resources.get("ld_global_16B", 0) + item.result.resources.get("cp_async", 0)
            assert wide > 0 or item.launch.kernel == "cross_entropy_mean", item.launch.kernel


@pytest.mark.parametrize("op", OPS)
def test_every_parameter_value_gives_a_plan_the_device_can_launch(op):
    module = plugins.load("ops", op)
    for name, value in ((name, value) for name, values in parse_params(seed(op)).items() for value in values):
        for case in (*module.public_cases(), *module.edge_cases()):
            plan = planned(op, case, H200, **{name: value})
            for launch in plan.launches:
                assert launch.block is not None and launch.block[0] % 32 == 0 and launch.block[0] <= 1024
                assert launch.shared_bytes <= H200.shared_bytes - 1024, (case.label, name, value)
                assert launch.grid[1] <= 65535 and launch.grid[2] <= 65535
            for tensor_map in plan.tensor_maps:
                assert all(1 <= edge <= 256 for edge in tensor_map.box)
                assert all(stride % 16 == 0 and stride > 0 for stride in tensor_map.strides_bytes)
                assert all(extent > 0 for extent in tensor_map.shape)
                assert tensor_map.box[0] * 2 == 128


@pytest.mark.parametrize(
    ("change", "kernel"),
    [
        ({"offset": 3}, "matmul_mma"),
        ({"strides": (65, 1)}, "matmul_mma"),
        ({"strides": (1, 64)}, "matmul_mma"),
        ({"strides": (72, 1)}, "matmul_wgmma"),
    ],
)
def test_what_the_copy_engine_cannot_address_goes_to_the_general_kernel(change, kernel):
    case = plugins.load("ops", "matmul").case({"m": 64, "n": 64, "k": 64}, DType.FP16)
    a, b = case.inputs
    changed = case.model_copy(update={"inputs": (a.model_copy(update=change), b)})
    assert [launch.kernel for launch in planned("matmul", changed, H200).launches] == [kernel]


@needs_nvrtc
def test_the_artefact_and_its_facts_are_left_in_the_folder(tmp_path):
    result = cuda.compile_unit(PLAN + KERNEL, unit(), "sm_90", tmp_path)
    assert result.status is Status.ACCEPTED, result.log
    stem = unit().hash[:16]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{stem}.cubin", f"{stem}.json"]
    assert (tmp_path / f"{stem}.cubin").read_bytes()[:4] == b"\x7fELF"
    facts = json.loads((tmp_path / f"{stem}.json").read_text())
    assert facts["entry"] == "k"
    assert facts["target"] == "sm_90"
    assert facts["parameters"] == 3
    assert facts["trailing_pointers"] == 0
    assert facts["shared_static"] == 0
    assert facts["spill_bytes"] == 0
    assert 0 < facts["registers"] <= 32
    assert facts["max_threads"] == 1024
    assert facts["instructions"]["st_global"] == 1


@needs_nvrtc
def test_a_syntax_error_names_the_line_of_the_candidate(tmp_path):
    source = PLAN + '#include "kernelwright.cuh"\n' + KERNEL.replace("n * f", "n * missing")
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "missing" in text)
    result = cuda.compile_unit(source, unit(constants={"A": 1, "B": 2}), "sm_90", tmp_path)
    assert result.status is Status.BUILD_FAILED
    assert f'kernel.cu({line}): error: identifier "missing" is undefined' in result.log
    assert list(tmp_path.iterdir()) == []


@needs_nvrtc
def test_a_long_log_is_bounded(tmp_path):
    errors = "\n".join(f"int a{i} = missing{i};" for i in range(2000))
    result = cuda.compile_unit(PLAN + KERNEL + errors, unit(), "sm_90", tmp_path)
    assert result.status is Status.BUILD_FAILED
    assert len(result.log) < cuda.LOG_LIMIT + 100


@needs_nvrtc
def test_constants_are_macros_of_the_candidate_but_not_of_the_headers(tmp_path):
    kernel = (
        'extern "C" __global__ void k(T* x) { x[threadIdx.x] = kw::from_float<T>(HALF * COUNT + IS_ON); }\n'
    )
    source = PLAN + '#include "kernelwright.cuh"\n' + kernel
    constants = {"T": "__half", "HALF": 0.5, "COUNT": 3, "IS_ON": True}
    result = cuda.compile_unit(source, unit(("*fp16",), constants=constants), "sm_90", tmp_path)
    assert result.status is Status.ACCEPTED, result.log


@needs_nvrtc
@pytest.mark.parametrize("target", ["sm_33", "sm_999", "gfx942", "H200", ""])
def test_an_unknown_target_is_a_build_failure_that_names_the_known_ones(tmp_path, target):
    result = cuda.compile_unit(PLAN + KERNEL, unit(), target, tmp_path)
    assert result.status is Status.BUILD_FAILED
    assert f"unknown target {target!r}" in result.log
    assert "sm_90" in result.log


@needs_nvrtc
@pytest.mark.parametrize("count", [20_000, 100_000])
def test_too_much_static_shared_memory_is_too_big(tmp_path, count):
    result = cuda.compile_unit(PLAN + STATIC_SHARED % count, unit(("*fp32",)), "sm_90", tmp_path)
    assert result.status is Status.TOO_BIG, result.log
    assert "shared" in result.log


@needs_nvrtc
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (unit(("*fp32", "i32")), "takes 3 parameters; the plan passes 2"),
        (unit(("*fp32", "i64", "fp32")), "argument 1 of kernel 'k': the plan passes i64"),
        (unit(("*fp32", "i32", "i32")), "argument 2 of kernel 'k': the plan passes i32"),
        (unit(("tensor_map", "i32", "fp32")), "argument 0 of kernel 'k': the plan passes tensor_map"),
        (unit(kernel="other"), "no kernel named 'other'; there are: k"),
        (unit(kernel="a b"), "'a b' is no name of a kernel"),
        (unit(meta={"num_warps": 4}), "unknown option 'num_warps'"),
        (unit(constants={"A\nB": 1}), "cannot be a macro"),
    ],
)
def test_what_the_plan_and_the_kernel_disagree_on_is_a_build_failure(tmp_path, changed, words):
    result = cuda.compile_unit(PLAN + KERNEL, changed, "sm_90", tmp_path)
    assert result.status is Status.BUILD_FAILED
    assert words in result.log


@needs_nvrtc
def test_every_scalar_type_of_a_plan_fits_its_cpp_type(tmp_path):
    signature = (
        "float* x, bool a, signed char b, short c, int d, long long e, unsigned f, unsigned long long g"
    )
    body = "x[0] = a + b + c + d + e + f + g + h + i;"
    kernel = f'extern "C" __global__ void k({signature}, float h, double i) {{ {body} }}\n'
    types = ("*fp32", "i1", "i8", "i16", "i32", "i64", "u32", "u64", "fp32", "fp64")
    result = cuda.compile_unit(PLAN + kernel, unit(types), "sm_80", tmp_path)
    assert result.status is Status.ACCEPTED, result.log


@pytest.mark.parametrize(
    "line",
    [
        "#include <cstdio>",
        "#include <cuda.h>",
        '#include "/etc/passwd"',
        '#include "../cuda_fp16.h"',
        "#include <cub/cub.cuh>",
        "# include\\\n <cstdio>",
        "#/**/include <cstdio>",
        "%:include <cstdio>",
        "#define WHAT <cstdio>\n#include WHAT",
        "#include_next <cuda_fp16.h>",
    ],
)
def test_headers_beyond_the_list_are_refused(tmp_path, line):
    result = cuda.compile_unit(f"{line}\n{PLAN}{KERNEL}", unit(), "sm_90", tmp_path)
    assert result.status is Status.REFUSED
    assert "is not allowed" in result.log


@pytest.mark.parametrize(
    "header",
    [
        "cuda_fp16.h",
        "cuda_fp8.h",
        "mma.h",
        "cooperative_groups.h",
        "cuda/std/cstdint",
        "cuda/barrier",
        "cuda/ptx",
    ],
)
def test_device_headers_are_allowed(header):
    assert cuda.check(f"#include <{header}>\n{PLAN}{KERNEL}") is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (KERNEL, "no block comment /*kernelwright"),
        ('/*kernelwright\nPARAMS = {"A": [1]}\n*/\n' + KERNEL, "0 top-level functions named 'plan'"),
        ("/*kernelwright\ndef plan(case, params, device):\n    import os\n*/\n" + KERNEL, "line 3"),
        ("/*kernelwright\ndef plan(case", "is never closed"),
        (PLAN + "__global__ void k(float* x) {}", "no kernel"),
        (PLAN + '// extern "C" __global__ void k(float* x) {}', "no kernel"),
        (PLAN + KERNEL + "void run() { k<<<1, 32>>>(nullptr, 1, 1.0f); }", "launches belong in plan"),
        (PLAN + KERNEL + "\0", "NUL"),
        (PLAN + KERNEL + "\ud800", "UTF-8"),
        (PLAN + KERNEL + "//" + "x" * cuda.SOURCE_LIMIT, "bytes of source"),
        (PLAN.replace("[1, 2]", "[]") + KERNEL, "non-empty list"),
    ],
)
def test_what_is_no_candidate_is_refused_before_any_compiler_runs(tmp_path, source, words):
    result = cuda.compile_unit(source, unit(), "sm_90", tmp_path)
    assert result.status is Status.REFUSED
    assert words in result.log


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_a_source_can_ask_for_nvcc(tmp_path):
    source = PLAN.replace("PARAMS", "NVCC = True\nPARAMS") + KERNEL
    result = cuda.compile_unit(source, unit(), "sm_90", tmp_path)
    assert result.status is Status.ACCEPTED, result.log
    facts = json.loads((tmp_path / f"{unit().hash[:16]}.json").read_text())
    assert facts["compiler"].startswith("nvcc")
    assert facts["registers"] > 0
    broken = cuda.compile_unit(source.replace("n * f", "n * missing"), unit(), "sm_90", tmp_path)
    assert broken.status is Status.BUILD_FAILED
    assert 'identifier "missing" is undefined' in broken.log
    unknown = cuda.compile_unit(source, unit(), "sm_33", tmp_path)
    assert unknown.status is Status.BUILD_FAILED and "unknown target 'sm_33'" in unknown.log


def test_a_missing_nvcc_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailable, match="nvcc on PATH; found none"):
        cuda.compile_unit(PLAN.replace("PARAMS", "NVCC = True\nPARAMS") + KERNEL, unit(), "sm_90", tmp_path)


def test_availability_names_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda, "nvrtc_version", lambda: None)
    told = cuda.available()
    assert not told.usable
    assert "cuda-bindings" in told.detail
    assert "pip install" in told.remedy


@needs_nvrtc
def test_availability_names_what_was_found():
    told = cuda.available()
    assert told.usable
    assert told.detail.startswith("NVRTC ")
