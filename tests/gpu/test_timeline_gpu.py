"""The timeline inside Triton kernels on a GPU. Needs one NVIDIA GPU and Triton with Proton.

`python -m tests.gpu.test_timeline_gpu` runs it without pytest and prints what the kernels recorded.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kernelwright.backends import triton
from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.timeline import KernelTimeline, Timeline
from kernelwright.core.verdict import Status
from kernelwright.hardware.counters import Workload, kernel_times
from kernelwright.hardware.detect import devices
from kernelwright.hardware.timeline import timeline_of

pytestmark = pytest.mark.gpu
SEEDS = Path(plugins.__file__).parents[1] / "seeds"
SIZES = {
    "rmsnorm": {"rows": 8192, "cols": 4096},
    "matmul": {"m": 4096, "n": 4096, "k": 4096},
    "softmax": {"rows": 4096, "cols": 50257},
}


def the_gpu() -> Device:
    found = next((device for device in devices() if device.kind is DeviceKind.CUDA), None)
    if found is None:
        pytest.skip("no NVIDIA GPU here")
    return found


def workload(op: str, folder: Path, **meta: int) -> tuple[Workload, list[dict[str, Any]]]:
    """Return a seed as a workload of this machine's GPU, and the facts of its kernels."""
    gpu, source = the_gpu(), (SEEDS / op / "triton.py").read_text()
    case = plugins.load("ops", op).case(SIZES[op], DType.FP16)
    plan = run_plan(parse_plan(source), case, first_values(source), gpu)
    launches = [one.model_copy(update={"meta": one.meta | meta}) for one in plan.launches]
    units, facts = {}, []
    for launch in launches:
        unit = kernel_unit(launch, case)
        result = triton.compile_unit(source, unit, gpu.arch, folder)
        assert result.status is Status.ACCEPTED, result.log
        key = unit.hash[:16]
        units[key] = (folder / f"{key}.cubin", folder / f"{key}.json")
        facts.append(json.loads(units[key][1].read_text()))
    return Workload(case, plan.model_copy(update={"launches": tuple(launches)}), units, gpu), facts


def recorded(op: str, folder: Path) -> tuple[KernelTimeline, dict[str, Any], float]:
    """Return what the first kernel of a seed recorded, the trace, and what a call takes without records in us."""
    work, facts = workload(op, folder, **{triton.TIMELINE: 2048})
    told, trace = timeline_of(work, facts, lambda _: None)
    assert told.reason == "", told.reason
    plain, _ = workload(op, folder)
    return told.kernels[0], trace, kernel_times(plain).time_us


def told_of(op: str, kernel: KernelTimeline, plain_us: float) -> str:
    """Return what a kernel recorded, for people."""
    head = (
        f"{op}: {kernel.kernel}, {kernel.blocks} blocks of {kernel.warps} warps, {kernel.cycles:.0f} cycles, "
        f"{kernel.time_us:.2f} us a block, {kernel.lost} lost; {plain_us:.1f} us a call without records"
    )
    steps = [
        f"  {step.share:6.1%} {step.own_cycles:10.0f} {step.times:8.1f}  {step.kind} {step.line}"
        for step in kernel.steps
    ]
    return "\n".join([head, *steps])


def check(op: str, folder: Path) -> None:
    kernel, trace, plain_us = recorded(op, folder)
    print(told_of(op, kernel, plain_us), flush=True)
    own: dict[str, float] = {}
    for step in kernel.steps:
        own[step.kind] = own.get(step.kind, 0.0) + step.own_cycles
    assert sum(step.share for step in kernel.steps) == pytest.approx(1.0, abs=0.1)
    assert kernel.blocks > 1
    assert 100 < kernel.cycles < 1e8
    # A block's life by the clock in nanoseconds and by its cycles agree with a GPU's clock rate, if all of it is told.
    assert kernel.cycles / (1e3 * kernel.time_us) < 4.0
    assert kernel.lost or kernel.cycles / (1e3 * kernel.time_us) > 0.3
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
    if op == "matmul":
        # Products are asynchronous: their time shows in themselves and in the waits for them.
        assert own["wait"] + own["dot"] > own["tma load"] + own["shared"] + own["store"]
    else:
        # A load is over when it is issued; who needs its value first waits for it.
        assert own["load"] < sum(own.values()) / 2
        assert {"kernel", "load", "reduce", "store"} <= set(own)


@pytest.mark.parametrize("op", SIZES)
def test_a_kernel_records_where_its_time_goes(op: str, tmp_path: Path) -> None:
    check(op, tmp_path)


def test_the_verb_writes_a_trace_of_the_judged_workload(tmp_path: Path) -> None:
    the_gpu()
    out = tmp_path / "trace.json"
    words = [str(SEEDS / "rmsnorm" / "triton.py"), "--op", "rmsnorm", "--case", "8192x4096 fp16", "--json"]
    words += ["--home", str(tmp_path / "home"), "--timeline", str(out)]
    said = subprocess.run(
        [sys.executable, "-m", "kernelwright", "counters", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-2000:]
    told = Timeline.model_validate(json.loads(said.stdout)["timeline"])
    assert (told.reason, [one.kernel for one in told.kernels]) == ("", ["rmsnorm_rows"])
    assert any(event["ph"] == "X" for event in json.loads(out.read_text())["traceEvents"])


def main() -> None:
    """Print what the seeds record on this machine's GPU, and check it."""
    for op in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            check(op, Path(folder))
        print(f"passed: {op}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        test_the_verb_writes_a_trace_of_the_judged_workload(Path(folder))
    print("passed: the verb", flush=True)


if __name__ == "__main__":
    main()
