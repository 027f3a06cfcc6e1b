"""Triton seeds: right in the interpreter on awkward sizes and layouts, and compiled for three targets as meant."""

from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest

import kernelwright
from kernelwright.backends import triton as backend
from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution, DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.ports import BuildResult
from kernelwright.core.verdict import Status
from tests.cpu.interpreter import Interpreter
from tests.devices import H200

SEEDS = Path(kernelwright.__file__).parent / "seeds"
OPS = (
    "attention",
    "cross_entropy",
    "layernorm",
    "matmul",
    "reduce",
    "rmsnorm",
    "rope",
    "softmax",
    "swiglu_mlp",
)
A100 = H200.model_copy(
    update={"name": "NVIDIA A100", "arch": "sm_80", "units": 108, "shared_bytes": 163 << 10}
)
MI300X = H200.model_copy(
    update={
        "kind": DeviceKind.ROCM,
        "name": "MI300X",
        "arch": "gfx942",
        "units": 304,
        "shared_bytes": 64 << 10,
    }
)
LAPTOP = Device(kind=DeviceKind.CPU, name="a laptop", arch="x86_64", units=8, memory_bytes=16 << 30)
MEMORY_BOUND = {
    "cross_entropy": (8192, 50257),
    "layernorm": (8192, 4096),
    "reduce": (8192, 8192),
    "rmsnorm": (8192, 8192),
    "rope": (2, 32, 1024, 128),
    "softmax": (4096, 50257),
}
PRODUCTS = {
    "attention": (2, 32, 32, 2048, 2048, 64),
    "matmul": (4096, 4096, 4096),
    "swiglu_mlp": (2048, 2048, 5504),
}
UNITS = {DType.FP32: 12.0, DType.FP16: 3.0}
"""Largest error allowed, in units of roundoff times the op's own error scale: a few roundings on the way."""
FRAMEWORK_FACTOR = 4
"""Where the framework itself is further off (sums that cancel), this many times its own error is allowed."""


def check(entry: dict[str, object], answer: dict[str, object]) -> None:
    """Fail unless a seed's answer is right everywhere, inputs and guard zones are as they were."""
    case = Case.model_validate(entry["case"])
    where = (case.label, case.scalars, case.inputs, entry["distribution"], answer)
    assert "declined" not in answer, where
    assert answer["same_nans"], where
    assert answer["intact"], where
    assert answer["units"] <= max(UNITS[case.dtype], FRAMEWORK_FACTOR * answer["framework_units"]), where


def load_op(name: str) -> ModuleType:
    return plugins.load("ops", name)


def laid_out(case: Case, **layouts: Mapping[str, object]) -> Case:
    """Return the case with other strides or offsets of some tensors."""

    def fresh(specs):
        return tuple(spec.model_copy(update=dict(layouts.get(spec.name, {}))) for spec in specs)

    return case.model_copy(update={"inputs": fresh(case.inputs), "outputs": fresh(case.outputs)})


def small_cases(name: str) -> list[Case]:
    """Return the op's own awkward sizes that the interpreter can run in a second."""
    op = load_op(name)
    cases = [case for case in (*op.edge_cases(), *op.public_cases()) if case.dtype is not DType.BF16]
    return [case for case in cases if op.work(case).bytes_moved < 500_000 and op.work(case).flops < 3e7]


def strided_cases(name: str) -> list[Case]:
    """Return layouts beyond the contiguous one: padded rows, a misaligned start, turned operands."""
    op = load_op(name)
    axes = {
        "attention": {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 33, "kv_seq": 33, "head_dim": 24},
        "cross_entropy": {"rows": 5, "vocab": 2500},
        "matmul": {"m": 65, "n": 72, "k": 40},
        "rope": {"batch": 2, "heads": 3, "seq": 17, "head_dim": 16},
        "swiglu_mlp": {"m": 17, "k": 40, "n": 72},
    }.get(name, {"rows": 5, "cols": 2500})
    case = op.case(axes, DType.FP16)
    x = case.inputs[0]
    roomy = x.model_copy(update={"shape": (*x.shape[:-1], x.shape[-1] + 8)})
    padded = {"strides": roomy.element_strides, "offset": 8}
    found = [laid_out(case, **{x.name: {"offset": 3}}), laid_out(case, **{x.name: padded})]
    if name == "matmul":
        for fit in (
            op.case({"m": 64, "n": 96, "k": 80}, DType.FP16),
            op.case({"m": 5, "n": 7, "k": 9}, DType.FP32),
        ):
            m, n, k = (fit.axes[axis] for axis in "mnk")
            found += [
                laid_out(fit, b={"strides": (1, k)}),
                laid_out(fit, a={"strides": (1, m)}),
                laid_out(fit, a={"strides": (1, m)}, b={"strides": (1, k)}, out={"strides": (n + 1, 1)}),
                laid_out(fit, a={"strides": (2 * k, 2)}, b={"strides": (3 * n, 3)}, out={"strides": (1, m)}),
            ]
    if name in ("softmax", "layernorm", "rmsnorm"):
        found += [laid_out(case, x={"strides": (2501, 1)}), laid_out(case, out={"strides": (2504, 1)})]
        found += [laid_out(op.case({"rows": 3, "cols": 17000}, DType.FP16))]
        # Rows that a power of two covers badly: 2048 and a rest of 512, full and in part.
        found += [
            op.case({"rows": 3, "cols": cols}, dtype)
            for cols in (2560, 2504)
            for dtype in (DType.FP32, DType.FP16)
        ]
    return found


def job(
    name: str, case: Case, device: Device = H200, file: str = "triton.py", **values: object
) -> dict[str, object]:
    return {
        "seed": str(SEEDS / name / file),
        "case": case.model_dump(mode="json"),
        "device": device.model_dump(mode="json"),
        "distribution": Distribution.SIGNED.value,
        "values": values,
    }


@pytest.mark.parametrize("name", OPS)
def test_seed_agrees_with_float64_in_the_interpreter(name: str, interpreter: Interpreter) -> None:
    cases = small_cases(name)
    jobs = [job(name, case) for case in cases]
    jobs += [{**job(name, case), "distribution": "offset"} for case in cases if case.dtype is DType.FP32]
    found = interpreter.find(jobs)
    assert len(found) == len(jobs) > 12
    for entry, answer in zip(jobs, found, strict=True):
        check(entry, answer)


@pytest.mark.parametrize("name", OPS)
def test_seed_serves_other_layouts_and_devices(name: str, interpreter: Interpreter) -> None:
    cases = strided_cases(name)
    older = [
        case for case in small_cases(name) if case.dtype is DType.FP16 and load_op(name).work(case).flops
    ]
    jobs = [job(name, case) for case in cases]
    jobs += [job(name, case, device) for case in older[-3:] for device in (A100, LAPTOP)]
    for entry, answer in zip(jobs, interpreter.find(jobs), strict=True):
        check(entry, answer)


SMALL_FP32 = {
    "attention": {"batch": 1, "heads": 4, "kv_heads": 2, "seq": 512, "kv_seq": 512, "head_dim": 64},
    "matmul": {"m": 512, "n": 256, "k": 256},
    "swiglu_mlp": {"m": 512, "k": 256, "n": 688},
}
"""Sizes of the LLaMA that `make run` optimises."""
TILES_OF_ALL = {
    "attention": {"block_m": (16, 32, 64), "block_n": (16, 64), "num_warps": (2, 8)},
    "matmul": {"block_m": (32, 128), "block_n": (32, 64), "block_k": (16, 64), "num_warps": (2, 8)},
    "swiglu_mlp": {"block_m": (32, 64), "block_n": (32, 64), "block_k": (64,), "out_block_n": (32, 256)},
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_fp32_are_right_in_tiles_of_every_size(name: str, interpreter: Interpreter) -> None:
    ragged = {
        "attention": {"batch": 1, "heads": 2, "kv_heads": 1, "seq": 70, "kv_seq": 70, "head_dim": 24},
        "matmul": {"m": 135, "n": 70, "k": 70},
        "swiglu_mlp": {"m": 70, "k": 70, "n": 135},
    }[name]
    case = load_op(name).case(ragged, DType.FP32)
    tiles = TILES_OF_ALL[name]
    jobs = [job(name, case, **dict(zip(tiles, values, strict=True))) for values in product(*tiles.values())]
    for entry, answer in zip(jobs, interpreter.find(jobs), strict=True):
        check(entry, answer)


@pytest.mark.parametrize("name", PRODUCTS)
def test_small_products_in_fp32_leave_no_half_of_the_device_idle(name: str) -> None:
    case = load_op(name).case(SMALL_FP32[name], DType.FP32)
    source = (SEEDS / name / "triton.py").read_text()
    for launch in run_plan(parse_plan(source), case, first_values(source), H200).launches:
        assert 2 * launch.grid[0] > H200.units, launch.kernel


@pytest.mark.parametrize("name", PRODUCTS)
def test_tiles_of_large_products_in_fp32_are_the_tuners_to_choose(name: str) -> None:
    case = load_op(name).case(
        dict(zip(load_op(name).public_cases()[0].axes, PRODUCTS[name], strict=True)), DType.FP32
    )
    source = (SEEDS / name / "triton.py").read_text()
    plan = parse_plan(source)
    tiles = {key: sizes for key, sizes in TILES_OF_ALL[name].items() if key != "num_warps"}
    chosen = [dict(zip(tiles, values, strict=True)) for values in product(*tiles.values())]
    plans = {str(run_plan(plan, case, {**first_values(source), **values}, H200)) for values in chosen}
    assert len(plans) > len(chosen) // 2


def test_both_addressings_of_a_product_are_tried(interpreter: Interpreter) -> None:
    fits = load_op("matmul").case({"m": 64, "n": 64, "k": 64}, DType.FP16)
    odd = load_op("matmul").case({"m": 64, "n": 63, "k": 64}, DType.FP16)
    kernels = [answer["kernels"] for answer in interpreter.find([job("matmul", fits), job("matmul", odd)])]
    assert kernels == [["matmul_described"], ["matmul_pointed"]]


def test_the_interpreter_declines_what_it_gets_wrong(interpreter: Interpreter) -> None:
    halves = load_op("rmsnorm").case({"rows": 4, "cols": 64}, DType.FP16)
    brains = load_op("rmsnorm").case({"rows": 4, "cols": 64}, DType.BF16)
    gluon, bf16 = interpreter.find([job("rmsnorm", halves, file="gluon.py"), job("rmsnorm", brains)])
    assert gluon == {"declined": "kernel 'rmsnorm_rows' is Gluon, which has no interpreter"}
    assert bf16["declined"].startswith("Triton's interpreter computes bf16 wrongly (x, weight, out)")


def test_nan_and_minus_infinity_come_out_as_in_the_framework(interpreter: Interpreter) -> None:
    longest = load_op("reduce").case({"rows": 3, "cols": 2100}, DType.FP32, {"is_max": True})
    shorter = load_op("reduce").case({"rows": 3, "cols": 96}, DType.FP16, {"is_max": True})
    jobs = [{**job("reduce", case), "spoiler": "nan"} for case in (longest, shorter)]
    for name, axis in (("softmax", "cols"), ("cross_entropy", "vocab")):
        for size, dtype in ((2101, DType.FP16), (2101, DType.FP32), (96, DType.FP16)):
            case = load_op(name).case({"rows": 3, axis: size}, dtype)
            jobs += [{**job(name, case), "spoiler": spoiler} for spoiler in ("nan", "-inf")]
    for entry, answer in zip(jobs, interpreter.find(jobs), strict=True):
        check(entry, answer)


@pytest.mark.parametrize("name", OPS)
def test_seed_declines_a_scattered_last_axis_by_name(name: str) -> None:
    if name == "matmul":
        pytest.skip("serves any strides")
    case = strided_cases(name)[0]
    x = case.inputs[0]
    scattered = laid_out(case, **{x.name: {"strides": tuple(2 * stride for stride in x.element_strides)}})
    source = (SEEDS / name / "triton.py").read_text()
    with pytest.raises(ValueError, match="must be contiguous"):
        run_plan(parse_plan(source), scattered, first_values(source), H200)


COMPILED = [(name, "triton.py") for name in OPS] + [("rmsnorm", "gluon.py")]


@cache
def built(name: str, file: str, device: Device) -> tuple[BuildResult, ...]:
    """Compile every launch of a board case."""
    op = load_op(name)
    axes = op.public_cases()[0].axes
    sizes = {**MEMORY_BOUND, **PRODUCTS}[name]
    case = op.case(
        dict(zip(axes, sizes, strict=True)), DType.FP16, {"causal": True} if name == "attention" else None
    )
    source = (SEEDS / name / file).read_text()
    plan = run_plan(parse_plan(source), case, first_values(source), device)
    with TemporaryDirectory() as folder:
        return tuple(
            backend.compile_unit(source, kernel_unit(launch, case), device.arch, Path(folder))
            for launch in plan.launches
        )


@pytest.mark.parametrize("device", [A100, H200, MI300X], ids=lambda device: device.arch)
@pytest.mark.parametrize(("name", "file"), COMPILED)
def test_seed_compiles_without_spills(name: str, file: str, device: Device) -> None:
    assert backend.check((SEEDS / name / file).read_text()) is None
    for result in built(name, file, device):
        assert result.status is Status.ACCEPTED, result.log
        assert result.resources["spill_store_bytes"] == 0
        assert result.resources["shared_bytes"] <= device.shared_bytes
    if name in PRODUCTS:
        engine = {"sm_80": "mma", "sm_90": "wgmma", "gfx942": "mfma"}[device.arch]
        assert all(result.resources[engine] > 0 for result in built(name, file, device))


@pytest.mark.parametrize("name", MEMORY_BOUND)
def test_memory_bound_seed_reads_sixteen_bytes_at_a_time(name: str) -> None:
    resources = built(name, "triton.py", H200)[0].resources
    assert resources["ld_global_16B"] >= 2
    # Labels and the edges of rows that start anywhere are the only narrow loads.
    assert sum(resources.get(f"ld_global_{width}B", 0) for width in (1, 2, 4, 8)) <= 3


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_keep_the_tensor_cores_of_hopper_busy(name: str) -> None:
    for result in built(name, "triton.py", H200):
        assert result.resources["tma_load"] > 0
        assert result.resources["wgmma_serialized"] == 0
