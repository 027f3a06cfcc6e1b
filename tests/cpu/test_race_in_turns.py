"""A race holds the device for a pair, not until something is proven: others get their turn between two."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.core.errors import DeviceBusy
from kernelwright.core.problem import Problem
from kernelwright.core.stats import KeepRule
from kernelwright.core.verdict import Comparison
from kernelwright.hardware.detect import cpu_device
from kernelwright.hardware.lock import DeviceLock
from kernelwright.judge import clock
from tests.cheats.specimen import author_candidate


def test_others_get_the_device_between_two_pairs_and_not_during_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, device = plugins.load("ops", "softmax"), cpu_device()
    case = op.case({"rows": 512, "cols": 512}, DType.FP32)
    lock, seen = DeviceLock(device, folder=tmp_path), {"during": 0, "between": 0}

    class Heats:
        size = staticmethod(lambda *_: 4)

        @staticmethod
        def measure(*_: object) -> list[float]:
            with pytest.raises(DeviceBusy), DeviceLock(device, folder=tmp_path, wait_s=0):
                pass
            seen["during"] += 1
            return [2000.0, 1000.0]

    def progress(_: str) -> None:
        with DeviceLock(device, folder=tmp_path, wait_s=0):
            seen["between"] += 1

    bench: Any = SimpleNamespace(
        op=op,
        candidate=author_candidate("softmax", "triton", "def plan(): pass"),
        problem=Problem(op="softmax", cases=(case,), device=device),
        progress=progress,
        lock=lock,
    )
    monkeypatch.setattr(clock, "heats_of", lambda *_, **__: nullcontext(Heats()))
    rule = KeepRule(alpha=0.001, max_pairs=40)
    (found,) = clock.race(bench, [clock.Lane(bench, rule)], rule)
    assert isinstance(found, Comparison)
    assert seen == {"during": found.pairs, "between": found.pairs}
    assert lock.held_s > 0
