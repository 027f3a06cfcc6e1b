"""Times beyond a device's data sheet are refused; those beyond its measured floor are audited in full."""

from collections.abc import Iterator
from contextlib import nullcontext
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
from kernelwright.hardware.detect import cpu_device
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
def test_a_race_is_won_by_nobody_who_is_faster_than_the_data_sheet(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax = plugins.load("ops", "softmax")
    case = softmax.case({"rows": 4096, "cols": 50257}, DType.FP16)
    least = least_seconds(softmax.work(case), H200)
    assert least is not None
    times = [2 * least * 1e6, share * least * 1e6]

    class Clock:
        size = staticmethod(lambda *_: 4)
        measure = staticmethod(lambda *_: times)

    seed = author_candidate("softmax", "triton", "def plan(): pass")
    bench: Any = SimpleNamespace(
        op=softmax, candidate=seed, problem=Problem(op="softmax", cases=(case,), device=H200), progress=print
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
