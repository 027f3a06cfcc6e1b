"""Kernels of known truth under Nsight Compute: does the deterministic diagnosis name what is wrong with each?

    python -m benchmarks.counters --device cuda --out benchmarks/results/counters.json

Four kernels written to have one fault each or none (benchmarks/known), and the matmul seed. Each is built by its
backend, profiled by `hardware/counters` as a run would profile it, checked for its result, and diagnosed from counters,
the compiler's report and the roofline; times are the profiler's own. The bytes that the good copy moves are compared
with those of its tensors. The file holds every launch's counters, so that the diagnosis can be repeated without a GPU;
what ncu printed lies beside it, compressed. Where ncu does not work, its own words are in the file and the exit code
is 1.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelwright.backends._bare_launch import PlannedKernel
from kernelwright.core import plugins
from kernelwright.core.case import Case, Compute, DType, TensorSpec
from kernelwright.core.counters import CounterProfile, NoCounters
from kernelwright.core.device import Ceilings, Device, DeviceKind
from kernelwright.core.diagnosis import Metric
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.plan import LaunchPlan, kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.roofline import Work, floor_us
from kernelwright.core.technique import Bottleneck
from kernelwright.core.verdict import CaseTiming, Status
from kernelwright.engine.app import versions
from kernelwright.engine.diagnosing import built_metrics, timed_metrics
from kernelwright.hardware import bottleneck_rules as names
from kernelwright.hardware import ncu
from kernelwright.hardware.calibrate import ceilings
from kernelwright.hardware.counters import Profiler, Workload, kernel_times
from kernelwright.hardware.detect import devices
from kernelwright.hardware.diagnose import diagnose
from kernelwright.ops import matmul

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "counters.json"
SEED = Path(plugins.__file__).parents[1] / "seeds" / "matmul" / "triton.py"
ROUNDS = 16
"""As benchmarks/known/spilling.cu has them."""
WITHIN = 0.05
"""How far the copy's bytes may be from its tensors'."""


@dataclass(frozen=True)
class Known:
    """A kernel and what is the matter with it."""

    name: str
    source: Path
    backend: str
    case: Case
    work: Work
    truth: Bottleneck
    """What must come first in its diagnosis."""
    expected: Callable[..., Any]
    """Returns, with torch, what it must compute."""


def copied(elements: int) -> Case:
    """Return the case of a copy, as a square's side where it is one."""
    spec, side = {"shape": (elements,), "dtype": DType.FP32}, round(elements**0.5)
    return Case(
        op="copy",
        axes={"n": elements} | ({"side": side} if side * side == elements else {}),
        dtype=DType.FP32,
        compute=Compute.STRICT_FP32,
        inputs=(TensorSpec(name="x", **spec),),
        outputs=(TensorSpec(name="out", **spec),),
    )


def mixed(x: Any) -> Any:
    """Return what the spilling kernel computes: rounds in place, one value after the other."""
    import torch

    kept = list(x.view(64, -1).unbind())
    for _ in range(ROUNDS):
        for place in range(64):
            kept[place] = 0.5 * kept[place] + 0.25 * kept[(place + 37) % 64]
    return torch.stack(kept).view(-1)


def known() -> list[Known]:
    """Return the five."""
    found = []
    for name, bits, flops, truth in (
        ("good_copy", 29, 0, Bottleneck.MEMORY_BANDWIDTH),
        ("strided_copy", 28, 0, Bottleneck.UNCOALESCED_ACCESS),
        ("spilling", 26, 3 * ROUNDS, Bottleneck.SPILLS),
        ("low_occupancy", 24, 0, Bottleneck.OCCUPANCY),
    ):
        case = copied(1 << bits)
        nbytes = case.inputs[0].nbytes
        work = Work(
            bytes_read=nbytes, bytes_written=nbytes, flops=flops * case.axes["n"], compute_class="fp32"
        )
        expected = mixed if name == "spilling" else (lambda x: x)
        found.append(Known(name, HERE / "known" / f"{name}.cu", "cuda", case, work, truth, expected))
    case = matmul.case({"m": 8192, "n": 8192, "k": 8192}, DType.BF16)
    product = Known(
        "matmul_seed", SEED, "triton", case, matmul.work(case), Bottleneck.COMPUTE, lambda a, b: a @ b
    )
    return [*found, product]


def built(one: Known, device: Device, folder: Path) -> tuple[LaunchPlan, Workload, dict[str, dict[str, int]]]:
    """Return a kernel as it is profiled, and what the compiler told of it."""
    source, backend = one.source.read_text(), plugins.load("backends", one.backend)
    plan = run_plan(parse_plan(source), one.case, first_values(source), device)
    units, told = {}, {}
    for launch in plan.launches:
        unit = kernel_unit(launch, one.case)
        result = backend.compile_unit(source, unit, device.arch, folder)
        if result.status is not Status.ACCEPTED:
            raise SystemExit(f"{one.name} cannot be built: {result.log}")
        key = unit.hash[:16]
        units[key] = (folder / str(result.artefact), folder / f"{key}.json")
        told[key] = result.resources
    return plan, Workload(one.case, plan, units, device), told


def metrics_of(
    one: Known,
    profile: CounterProfile,
    plan: LaunchPlan,
    told: dict[str, dict[str, int]],
    device: Device,
    measured: Ceilings | None,
) -> list[Metric]:
    """Return all the diagnosis rests on."""
    timing = CaseTiming(
        case_hash=one.case.hash,
        label=one.case.label,
        median_us=profile.time_us,
        mad_us=0.0,
        rounds=profile.calls,
        floor_us=floor_us(one.work, measured) if measured else None,
    )
    placed = timed_metrics(timing, one.work, device, measured)
    return [*placed, *built_metrics(plan, one.case, device, told), *profile.as_metrics()]


def is_right(one: Known, work: Workload) -> bool:
    """Tell whether a kernel computes what it should, on fresh inputs."""
    import torch

    keys = [kernel_unit(launch, one.case).hash[:16] for launch in work.plan.launches]
    kernels = [(work.units[key][0].read_bytes(), json.loads(work.units[key][1].read_text())) for key in keys]
    kind = torch.float32 if one.case.dtype is DType.FP32 else torch.bfloat16
    inputs = [torch.randn(spec.shape, dtype=kind, device="cuda") for spec in one.case.inputs]
    out = torch.full(one.case.outputs[0].shape, float("nan"), dtype=kind, device="cuda")
    call = PlannedKernel(one.case.model_dump(mode="json"), work.plan.model_dump(mode="json"), kernels, 0)
    call(*(tensor.data_ptr() for tensor in (*inputs, out)))
    torch.cuda.synchronize()
    wanted = one.expected(*inputs)
    error = float((out.float() - wanted.float()).norm() / wanted.float().norm())
    return error < (1e-5 if one.case.dtype is DType.FP32 else 1e-2)


def row_of(one: Known, profile: CounterProfile, metrics: list[Metric]) -> dict[str, Any]:
    """Return a kernel with its diagnosis beside the truth."""
    waits = diagnose(metrics, DeviceKind.CUDA, case=one.case.label)
    moved = profile.metrics.get(names.DRAM_READ, 0) + profile.metrics.get(names.DRAM_WRITTEN, 0)
    first = waits[0].category if waits else None
    return {
        "name": one.name,
        "case": one.case.label,
        "truth": one.truth.value,
        "diagnosis": first.value if first else "",
        "is_diagnosed": first is one.truth,
        "diagnoses": [{"severity": wait.severity, "text": wait.text} for wait in waits],
        "time_us": profile.time_us,
        "calls": profile.calls,
        "tensor_bytes": one.work.bytes_moved,
        "dram_bytes": moved,
        "bytes_ratio": moved / one.work.bytes_moved,
        "missing": list(profile.missing),
        "kernels": [kernel.model_dump(mode="json") for kernel in profile.kernels],
        "metrics": [metric.model_dump(mode="json") for metric in metrics],
    }


def driver_version() -> str:
    """Return the driver's version as it tells it itself."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"


def measured_ceilings(device: Device, home: Path) -> Ceilings | None:
    """Return what the device was measured to reach, or nothing: the data sheet must do then."""
    try:
        return ceilings(device, home, show=print).ceilings
    except KernelwrightError as error:
        print(f"no ceilings: {error}")
        return None


def run(device: Device, out: Path) -> dict[str, Any]:
    """Profile and diagnose all; whatever happens is in what is returned."""
    started, raw = time.perf_counter(), {}
    with tempfile.TemporaryDirectory(prefix="kernelwright-known-") as scratch:
        home = Path(scratch)
        measured = measured_ceilings(device, home)
        rows, failures, works = [], [], []
        for one in known():
            plan, work, told = built(one, device, home / one.name)
            log = home / f"{one.name}.txt"
            profile = Profiler(home / "cache", show=print, keep=log).profile(work)
            raw[one.name] = log.read_text() if log.is_file() else ""
            if profile.lack is not NoCounters.NONE:
                failures.append(f"{one.name}: {profile.lack.value}: {profile.reason}")
                times = kernel_times(work, print)
                rows.append({"name": one.name, "truth": one.truth.value, "is_diagnosed": False})
                rows[-1] |= {"lack": profile.lack.value, "reason": profile.reason}
                rows[-1] |= {"said": raw[one.name][-4000:], "times": times.model_dump(mode="json")}
                continue
            rows.append(row_of(one, profile, metrics_of(one, profile, plan, told, device, measured)))
            works.append((one, work, rows[-1]))
            print(f"{one.name}: {rows[-1]['diagnosis']} (truth: {one.truth.value})")
        for one, work, row in works:  # torch takes the device's memory only now
            row["is_right"] = is_right(one, work)
    copy = next((row for row in rows if row["name"] == "good_copy"), {})
    found = {
        "command": "python -m benchmarks.counters --device cuda --out benchmarks/results/counters.json",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device.model_dump(mode="json"),
        "driver": driver_version(),
        "ncu": ncu_version(),
        "versions": versions(),
        "ceilings": measured.model_dump(mode="json") if measured else None,
        "diagnosed": sum(row["is_diagnosed"] for row in rows),
        "kernels": len(rows),
        "copy_bytes_ratio": copy.get("bytes_ratio"),
        "copy_bytes_within_5_percent": abs(copy.get("bytes_ratio", 0) - 1) <= WITHIN,
        "missing": sorted({name for row in rows for name in row.get("missing", ())}),
        "failures": failures,
        "seconds": time.perf_counter() - started,
        "rows": rows,
    }
    with gzip.open(out.with_suffix(".raw.json.gz"), "wt") as file:
        json.dump(raw, file)
    return found


def ncu_version() -> str:
    """Return the profiler's version, or what it says instead."""
    tool = ncu.found()
    if tool is None:
        return "not installed"
    try:
        words = [str(tool), "--version"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ncu.version_in(said) or said[:400]


def main() -> int:
    """Run all and say what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=["cuda"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    device = devices()[0]
    if device.kind is not DeviceKind.CUDA:
        options.out.write_text(json.dumps({"failures": [f"no NVIDIA GPU here: {device.title}"]}) + "\n")
        print(f"no NVIDIA GPU here: {device.title}")
        return 1
    try:
        found = run(device, options.out)
    except BaseException:
        broken = {"failures": [traceback.format_exc()], "ncu": ncu_version(), "driver": driver_version()}
        options.out.write_text(json.dumps(broken, indent=1) + "\n")
        raise
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for row in found["rows"]:
        says = row.get("diagnosis") or row.get("reason", "nothing")
        print(f"{row['name']:14} truth {row['truth']:20} says {says:20} right result {row.get('is_right')}")
        for one in row.get("diagnoses", ())[:4]:
            print(f"    {one['severity']:.2f} {one['text']}")
    print(f"{found['diagnosed']} of {found['kernels']} diagnosed; copy's bytes x {found['copy_bytes_ratio']}")
    print(
        f"ncu {found['ncu']}, driver {found['driver']}, missing {found['missing']}, {found['seconds']:.0f} s"
    )
    print("\n".join(found["failures"]))
    is_good = found["diagnosed"] == found["kernels"] and found["copy_bytes_within_5_percent"]
    return 0 if is_good and all(row.get("is_right") for row in found["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
