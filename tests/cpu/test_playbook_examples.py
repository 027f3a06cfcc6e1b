"""The playbook's examples are true: whole sources compile for the hardware they name and compute what they should."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernelwright
from kernelwright.backends import cuda
from kernelwright.backends import triton as triton_backend
from kernelwright.backends._cuda_compile import nvrtc_version
from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.case import Case, Distribution, DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.problem import Problem
from kernelwright.core.technique import Example
from kernelwright.core.verdict import Status
from kernelwright.hardware.detect import cpu_device, devices
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.execution import open_runner
from kernelwright.judge.stages import CALL_SECONDS, Failure, check_call
from kernelwright.store.playbook import read_playbook

CARDS = {card.name: card for card in read_playbook()}
UNITS = {
    "sm_80": (108, 163),
    "sm_89": (142, 99),
    "sm_90": (132, 227),
    "sm_100": (148, 227),
    "gfx942": (304, 64),
    "x86_64": (2, 0),
}
"""Multiprocessors and kilobytes of shared memory a block may have, by target."""
SMALL = {
    "attention": {"batch": 1, "heads": 2, "kv_heads": 2, "seq": 40, "kv_seq": 40, "head_dim": 32},
    "cross_entropy": {"rows": 5, "vocab": 2500},
    "layernorm": {"rows": 3, "cols": 1000},
    "matmul": {"m": 33, "n": 40, "k": 24},
    "reduce": {"rows": 5, "cols": 2500},
    "rmsnorm": {"rows": 3, "cols": 1000},
    "rope": {"batch": 2, "heads": 4, "seq": 17, "head_dim": 32},
    "softmax": {"rows": 33, "cols": 1000},
    "swiglu_mlp": {"m": 17, "k": 40, "n": 72},
}
"""Sizes an interpreter can run, no multiples of a tile."""
SPILLED = ("spill_store_bytes", "spill_bytes", "spilled_registers")
"""What each compiler calls values that did not fit its registers."""
ROUNDINGS = 4.0
"""Largest error allowed in units of roundoff times the op's own scale; or four times the framework's own."""
DIGITS = 64.0
"""The same for fp32, where short examples sum in one chain what a seed sums in many."""


def whole(language: str) -> dict[str, Example]:
    """Return the whole sources in a language by card and number."""
    return {
        f"{name}-{number}": example
        for name, card in CARDS.items()
        for number, example in enumerate(card.examples)
        if example.language == language and example.case
    }


def asked(example: Example, axes: dict[str, int] | None = None) -> tuple[Case, Device]:
    """Return the case and the device a whole source says it is for, the case with other extents if given."""
    name, size, dtype, target, *scalars = example.case.split()
    op = plugins.load("ops", name)
    names = list(op.public_cases()[0].axes)
    extents = axes or dict(zip(names, map(int, size.split("x")), strict=True))
    chosen = {key: value == "True" for key, value in (word.split("=") for word in scalars)}
    units, shared = UNITS[target]
    kinds = {"s": DeviceKind.CUDA, "g": DeviceKind.ROCM, "x": DeviceKind.CPU}
    device = Device(
        kind=kinds[target[0]],
        name=target,
        arch=target,
        units=units,
        memory_bytes=1 << 36,
        shared_bytes=shared << 10,
    )
    return op.case(extents, DType(dtype), chosen or None), device


TRITON, CUDA, CPP = whole("python"), whole("cuda"), whole("cpp")


def test_most_examples_are_whole_sources() -> None:
    assert len(TRITON) >= 20
    assert len(CUDA) >= 8
    assert len(CPP) >= 6


def build_all(example: Example, backend: object, folder: Path) -> None:
    """Fail unless every launch compiles for its target without a spill."""
    case, device = asked(example)
    assert backend.check(example.code) is None
    plan = run_plan(parse_plan(example.code), case, first_values(example.code), device)
    assert plan.launches
    for launch in plan.launches:
        result = backend.compile_unit(example.code, kernel_unit(launch, case), device.arch, folder)
        assert result.status is Status.ACCEPTED, result.log
        spilled = [value for key, value in result.resources.items() if key in SPILLED]
        assert spilled, result.resources
        assert not any(spilled), result.resources
        assert result.resources.get("shared_bytes", 0) <= device.shared_bytes


@pytest.mark.parametrize("name", TRITON)
def test_triton_and_gluon_examples_compile(name: str, tmp_path: Path) -> None:
    build_all(TRITON[name], triton_backend, tmp_path)


@pytest.mark.skipif(
    nvrtc_version() is None, reason="NVRTC is not installed: pip install 'kernelwright[cuda]'"
)
@pytest.mark.parametrize("name", CUDA)
def test_cuda_examples_compile(name: str, tmp_path: Path) -> None:
    build_all(CUDA[name], cuda, tmp_path)


def allowed(case: Case) -> float:
    return DIGITS if case.dtype is DType.FP32 else ROUNDINGS


def test_triton_examples_agree_with_float64_in_the_interpreter(tmp_path: Path) -> None:
    jobs = []
    for name, example in TRITON.items():
        if (
            "gluon" in example.code
            or "sm_" not in example.case
            or "bf16" in example.case
            or "asm" in example.code
        ):
            continue
        case, device = asked(example, SMALL[example.case.split()[0]])
        path = tmp_path / f"{name}.py"
        path.write_text(example.code)
        jobs.append(
            {
                "seed": str(path),
                "case": case.model_dump(mode="json"),
                "device": device.model_dump(mode="json"),
                "distribution": Distribution.SIGNED.value,
                "values": {},
            }
        )
    script = Path(__file__).with_name("interpret_seeds.py")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(Path(kernelwright.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", str(script)],
        input=json.dumps(jobs),
        env=environment,
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(jobs) >= 15
    for job, answer in zip(jobs, json.loads(done.stdout), strict=True):
        where = (Path(job["seed"]).stem, answer)
        limit = allowed(Case.model_validate(job["case"]))
        assert answer["same_nans"], where
        assert answer["intact"], where
        assert answer["units"] <= max(limit, 4 * answer["framework_units"]), where


def answer_failure(room: Judge, example: Example, backend: str, device: Device) -> Failure | None:
    """Let the judge run a whole source once on its own case, and return what is wrong with the answer."""
    case, _ = asked(example)
    candidate = Candidate(
        op=case.op,
        backend=backend,
        source=example.code,
        choices=(ParamChoice(values=first_values(example.code)),),
        origin=Origin.AUTHOR,
        author=Author(name="test"),
    )
    bench = room.bench(Problem(op=case.op, cases=(case,), device=device), candidate)
    with bench.arena([case], [0]) as arena:
        arena.write_inputs(0, plugins.load("ops", case.op).make_inputs(case, Distribution.SIGNED, 7))
        arena.poison_outputs()
        with open_runner(candidate, arena, device, bench.builds, bench.nursery, bench.home) as runner:
            runner.run(0, 1, CALL_SECONDS)
            return check_call(bench, arena, 0, Distribution.SIGNED)


@pytest.mark.parametrize("name", CPP)
def test_the_judge_finds_nothing_wrong_with_cpp_examples(name: str, room: Judge) -> None:
    assert answer_failure(room, CPP[name], "cpp", cpu_device()) is None


ON_GPUS = {name: ("cuda", example) for name, example in CUDA.items()} | {
    name: ("triton", example) for name, example in TRITON.items()
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPUS)
def test_the_judge_finds_nothing_wrong_with_gpu_examples(name: str, room: Judge) -> None:
    backend, example = ON_GPUS[name]
    target = example.case.split()[3]
    device = next((one for one in devices() if one.kind is not DeviceKind.CPU), None)
    if device is None or (device.arch != target and target not in ("sm_80", "sm_89")):
        pytest.skip(f"made for {target}; here is {device.arch if device else 'no GPU'}")
    assert answer_failure(room, example, backend, device) is None
