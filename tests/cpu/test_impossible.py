"""Times beyond a device's data sheet or a CPU's instructions are refused; those beyond a measured floor are audited."""

import platform
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.core.device import Ceiling, Ceilings, Device, DeviceKind
from kernelwright.core.problem import Problem
from kernelwright.core.stats import KeepRule
from kernelwright.core.verdict import (
    REQUIRED_STAGES,
    SHIP_ONLY,
    Comparison,
    Outcome,
    Profile,
    Stage,
    Status,
)
from kernelwright.hardware import cpu_peak
from kernelwright.hardware.cpu_peak import most_flops
from kernelwright.hardware.detect import affinity, cpu_device
from kernelwright.hardware.peaks import least_seconds
from kernelwright.judge import clock
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.impossible import impossible
from kernelwright.judge.stages import Failure
from kernelwright.ops import rmsnorm
from tests.cheats.specimen import author_candidate
from tests.cpu.conftest import cpp
from tests.cpu.test_stages import HONEST

H200 = Device(kind=DeviceKind.CUDA, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=140 << 30)
BANDWIDTH, FP16 = 4.8e12, 989e12
"""What NVIDIA promises of it: bytes and dense products a second."""


has_flags = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="needs an x86-64 CPU and its /proc/cpuinfo",
)


def asked(op: str, sizes: dict[str, int], device: Device, call_us: float) -> Failure | None:
    """Have a time of one call looked at."""
    loaded = plugins.load("ops", op)
    bench: Any = SimpleNamespace(op=loaded, problem=SimpleNamespace(device=device))
    return impossible(bench, loaded.case(sizes, DType.FP16), call_us)


@pytest.mark.parametrize(
    ("op", "sizes", "least_us"),
    [
        ("softmax", {"rows": 4096, "cols": 50257}, 4 * 4096 * 50257 / BANDWIDTH * 1e6),
        ("matmul", {"m": 8192, "n": 8192, "k": 8192}, 2 * 8192**3 / FP16 * 1e6),
    ],
)
def test_a_call_faster_than_the_data_sheet_allows_is_impossible(
    op: str, sizes: dict[str, int], least_us: float
) -> None:
    assert asked(op, sizes, H200, 1.02 * least_us) is None
    failure = asked(op, sizes, H200, 0.98 * least_us)
    assert failure is not None
    assert (failure.status, "data sheet of H200 SXM" in failure.reason) == (Status.IMPOSSIBLE, True)


@pytest.mark.parametrize("share", [0.5, 1.5])
@pytest.mark.parametrize(
    "device", [pytest.param(H200, id="gpu"), pytest.param(cpu_device(), id="cpu", marks=has_flags)]
)
def test_a_race_is_won_by_nobody_who_is_faster_than_the_device_can_be(
    device: Device, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax = plugins.load("ops", "softmax")
    case = softmax.case({"rows": 4096, "cols": 50257}, DType.FP16)
    work = softmax.work(case)
    least = least_seconds(work, device) if device is H200 else cpu_peak.least_seconds(work)
    assert least is not None
    times = [2 * least * 1e6, share * least * 1e6]

    class Clock:
        size = staticmethod(lambda *_: 4)
        measure = staticmethod(lambda *_: times)

    seed = author_candidate("softmax", "triton", "def plan(): pass")
    bench: Any = SimpleNamespace(
        op=softmax,
        candidate=seed,
        problem=Problem(op="softmax", cases=(case,), device=device),
        progress=print,
        lock=nullcontext(),
    )
    monkeypatch.setattr(clock, "heats_of", lambda *_, **__: nullcontext(Clock()))
    rule = KeepRule(alpha=0.001, max_pairs=40)
    (found,) = clock.race(bench, [clock.Lane(bench, rule)], rule)
    if share < 1:
        assert isinstance(found, Failure)
        assert found.status is Status.IMPOSSIBLE
    else:
        assert isinstance(found, Comparison)
        assert (found.outcome, found.pairs) == (Outcome.FASTER, 13)


def test_a_device_without_a_data_sheet_rules_nothing_out() -> None:
    unknown, softmax = H200.model_copy(update={"name": "Unheard Of"}), plugins.load("ops", "softmax")
    sizes = {"rows": 4096, "cols": 50257}
    work = softmax.work(softmax.case(sizes, DType.FP16))
    assert least_seconds(work, H200) == pytest.approx(4 * 4096 * 50257 / BANDWIDTH, rel=0.01)
    assert least_seconds(work, unknown) is None
    assert asked("softmax", sizes, unknown, 0.001) is None


def claiming(flags: str, folder: Path) -> Path:
    """Return the root of a system whose cores claim these flags."""
    (folder / "proc").mkdir()
    (folder / cpu_peak.CPUINFO).write_text(
        f"processor\t: 0\nflags\t\t: {flags}\nvmx flags\t: amx_bf16 avx512f\n"
    )
    return folder


@pytest.mark.parametrize(
    ("flags", "compute_class", "products"),
    [
        ("fpu sse2", "fp32", 16),
        ("fpu sse2 avx avx2 fma", "fp32", 32),
        ("sse2 avx avx2 fma", "bf16", 64),
        ("sse2 avx avx2 avx512f", "fp32", 64),
        ("sse2 avx avx2 avx512f avx512_bf16", "tf32", 128),
        ("sse2 avx avx2 avx512f amx_tile amx_bf16", "fp32", 1024),
    ],
)
def test_the_widest_instructions_that_are_claimed_bound_the_arithmetic(
    flags: str, compute_class: str, products: int, tmp_path: Path
) -> None:
    assert most_flops(compute_class, claiming(flags, tmp_path)) == 2 * products * 7e9 * len(affinity())


@has_flags
def test_flags_that_are_not_there_or_not_known_bound_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert most_flops("fp32", tmp_path) is None
    assert most_flops("fp32", claiming("fp asimd sve", tmp_path)) is None
    assert asked("matmul", PRODUCT, cpu_device(), 1e-6) is not None
    monkeypatch.setattr(cpu_peak, "CPUINFO", "proc/not/there")
    assert asked("matmul", PRODUCT, cpu_device(), 1e-6) is None


@has_flags
def test_a_class_without_known_lanes_is_bound_by_nothing() -> None:
    assert most_flops("fp32") is not None
    assert most_flops("int64") is None


PRODUCT = {"m": 512, "n": 512, "k": 512}


@has_flags
def test_a_call_faster_than_a_cpus_instructions_allow_is_impossible() -> None:
    rate = most_flops("fp16")
    assert rate is not None
    least_us = 2 * 512**3 / rate * 1e6
    assert asked("matmul", PRODUCT, cpu_device(), 1.02 * least_us) is None
    failure = asked("matmul", PRODUCT, cpu_device(), 0.98 * least_us)
    assert failure is not None
    assert failure.status is Status.IMPOSSIBLE
    assert f"the instructions of {cpu_device().name} allow" in failure.reason


@has_flags
def test_a_row_that_stands_for_all_is_not_counted_for_each() -> None:
    softmax = plugins.load("ops", "softmax")
    case = softmax.case({"rows": 64, "cols": 64}, DType.FP32)
    repeated = case.model_copy(update={"inputs": (case.inputs[0].model_copy(update={"strides": (0, 1)}),)})
    bench: Any = SimpleNamespace(op=softmax, problem=SimpleNamespace(device=cpu_device()))
    assert impossible(bench, case, 1e-6) is not None
    assert impossible(bench, repeated, 1e-6) is None


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Have every certified time be what the list says."""
    times: list[float] = []
    monkeypatch.setattr(clock, "time_alone", lambda *_: times)
    yield times


@has_flags
def test_a_certified_time_on_a_cpu_is_refused_if_it_is_impossible(
    room: Judge, uncached: Problem, fixed_clock: list[float]
) -> None:
    work = rmsnorm.work(uncached.cases[0])
    least = cpu_peak.least_seconds(work)
    assert least is not None
    fixed_clock[:] = [0.9 * least * 1e6] * 3
    found = room.evaluate(uncached, cpp(HONEST), Profile.KEEP)
    assert (found.status, found.timing) == (Status.IMPOSSIBLE, None)
    fixed_clock[:] = [1.1 * least * 1e6] * 3
    assert room.evaluate(uncached, cpp(HONEST), Profile.KEEP).status is Status.ACCEPTED


OVERFLOWS = HONEST.replace("/*before*/", "volatile int large = 2147483647; large = large + 1;")
"""Right and fast, and undefined: found by nothing but the sanitizer of `ship`."""


@pytest.fixture
def floored(room: Judge) -> Iterator[Judge]:
    """Return a judge that believes that a call takes a second here."""
    slow, before = Ceiling(fixed_us=1e6, rate=1e12), room.settings
    room.settings = before.model_copy(update={"ceilings": Ceilings(copying=slow, reading=slow)})
    yield room
    room.settings = before


@pytest.fixture(scope="module")
def uncached() -> Problem:
    """Return a problem of one small case whose floor binds: on a device without a cache, too small for big tensors."""
    device = cpu_device().model_copy(update={"cache_bytes": 0, "memory_bytes": 1 << 30})
    return Problem(op="rmsnorm", cases=(rmsnorm.case({"rows": 32, "cols": 64}, DType.FP32),), device=device)


def test_a_time_beyond_the_measured_floor_is_accepted_behind_every_stage_of_ship(
    floored: Judge, uncached: Problem
) -> None:
    found = floored.evaluate(uncached, cpp(HONEST), Profile.KEEP)
    assert found.status is Status.ACCEPTED, found.failure
    assert found.timing is not None
    assert found.timing.is_beyond_floor
    assert [one.stage for one in found.stages] == [*REQUIRED_STAGES[Profile.KEEP], *SHIP_ONLY]


def test_a_time_beyond_the_measured_floor_is_none_if_the_audit_fails(
    floored: Judge, uncached: Problem
) -> None:
    assert OVERFLOWS != HONEST
    found = floored.evaluate(uncached, cpp(OVERFLOWS), Profile.KEEP)
    assert (found.status, found.timing, found.artefact_hashes) == (Status.SANITIZER, None, {})
    assert [one.stage for one in found.stages][-3:] == [Stage.TIMING, Stage.REBUILD, Stage.SANITIZER]


def test_a_time_above_the_floor_needs_no_stage_beyond_its_profile(room: Judge, uncached: Problem) -> None:
    found = room.evaluate(uncached, cpp(OVERFLOWS), Profile.KEEP)
    assert (found.status, found.failure) == (Status.ACCEPTED, None)
    assert tuple(one.stage for one in found.stages) == REQUIRED_STAGES[Profile.KEEP]
