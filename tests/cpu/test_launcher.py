"""The trusted launcher's dealings with the driver, with a stand-in for the driver: there may be no GPU here."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.core.messages.runner import Time, TimedArm
from kernelwright.core.plan import BufferArg, Launch, kernel_unit
from kernelwright.worker import device
from kernelwright.worker.launcher import Modules

SHARED, CLUSTER = "shared", "cluster"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return what is asked of the driver, as it is asked."""
    calls: list[tuple[str, int]] = []

    def set_attribute(function: object, attribute: str, value: int) -> tuple[int]:
        calls.append((attribute, value))
        return (0,)

    driver = SimpleNamespace(
        cuModuleLoadData=lambda binary: (0, "module"),
        cuModuleGetFunction=lambda module, entry: (0, "function"),
        cuFuncSetAttribute=set_attribute,
        CUfunction_attribute=SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=SHARED,
            CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED=CLUSTER,
        ),
    )
    bindings = ModuleType("cuda.bindings")
    bindings.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    return calls


def test_a_kernel_may_have_the_shared_memory_every_launch_asks_for(
    tmp_path: Path, asked: list[tuple[str, int]]
) -> None:
    case = plugins.load("ops", "softmax").case({"rows": 1, "cols": 8}, DType.FP32)

    def launch(shared: int) -> Launch:
        return Launch(
            kernel="softmax_long",
            grid=(1, 1, 1),
            block=(512, 1, 1),
            shared_bytes=shared,
            args=(BufferArg(name="x"),),
        )

    key = kernel_unit(launch(0), case).hash[:16]
    (tmp_path / f"{key}.json").write_text(json.dumps({"entry": "softmax_long", "shared_static": 1 << 10}))
    (tmp_path / f"{key}.cubin").write_bytes(b"")
    modules = Modules(tmp_path)
    for kilobytes in (16, 47, 48, 56, 52, 56, 112):
        modules.kernel(launch(kilobytes << 10), case)
    # A smaller size after a larger one must not take from it, and what any kernel may have needs no word.
    assert asked == [(SHARED, 48 << 10), (SHARED, 56 << 10), (SHARED, 112 << 10)]


def test_the_kernels_of_an_arm_go_when_another_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what every module keeps in memory of its own piles up, heat after heat."""
    said: list[str] = []
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(device.torch.cuda, name, lambda name=name: said.append(name))
    kernels = SimpleNamespace(unload=lambda: said.append("unload"))
    launcher: Any = object.__new__(device.Launcher)
    launcher.graph, launcher.arms, launcher.kernels = "graph", {0: ["call"], 1: ["call"]}, {0: kernels}
    launcher.job, launcher.inputs = SimpleNamespace(calls=[1, 2]), SimpleNamespace(sizes=[1])
    launcher._loaded = lambda arm, place: said.append(f"load {arm.name} at {place}") or ["new"]
    for place in (0, 1):
        launcher.time(Time(load=TimedArm(name="b", kind="plan"), arm=place))
    assert said == ["synchronize", "unload", "empty_cache", "load b at 0", "empty_cache", "load b at 1"]
    assert (launcher.graph, launcher.arms) == (None, {0: ["new"], 1: ["new"]})
