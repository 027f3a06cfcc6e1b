"""Where the time of a LLaMA goes on this GPU: a prompt of 2048 tokens, and one token behind a cache of 2048.

    python benchmarks/profile_llama.py                      8 layers of the 8B class in bf16, about 3 minutes on an H200
    python benchmarks/profile_llama.py --device cpu --small --out FILE     the same way, small enough for any machine

The layers are the 8B class's own (width 4096, 32 heads, 8 of keys and values, 14336 hidden); there are 8 of 32, and the
vocabulary is 32000, so that capture and compilation fit the time. Every row of the results says the size. Regions are
named under eager and under torch.compile; what is neither in a region nor a launch gap must stay below 5 % of the time,
otherwise the exit code is 1.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelwright.core.account import LARGEST_REST, Account, Against, Row, Spread, ranking
from kernelwright.core.case import DType
from kernelwright.core.device import Ceilings, Device
from kernelwright.core.messages.model import ModelProfiled, ProfileModel
from kernelwright.core.model_spec import ModelOptions
from kernelwright.engine.app import versions
from kernelwright.hardware.calibrate import ceilings
from kernelwright.hardware.detect import torch_device
from kernelwright.hardware.telemetry import reading
from kernelwright.model.load import loaded_from
from kernelwright.model.profile import profile

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "profile_llama.json"
SIZES = {"layers": 8, "width": 4096, "heads": 32, "kv_heads": 8, "hidden": 14336, "vocab": 32000}
SMALL = {"layers": 2, "width": 128, "heads": 4, "kv_heads": 2, "hidden": 352, "vocab": 512}
POSITIONS, FEW_POSITIONS = 2048, 64
LISTED = 12
"""Regions in the results, the most time first; the smaller ones are one sum."""


@dataclass(frozen=True)
class Machine:
    """Where it runs, and how large."""

    name: str
    """As torch has it."""
    device: Device
    ceilings: Ceilings
    sizes: dict[str, int]
    positions: int
    dtype: DType
    seconds: float


def llama() -> ModuleType:
    """Return examples/models/llama.py, which is no package."""
    spec = importlib.util.spec_from_file_location("llama", ROOT / "examples" / "models" / "llama.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dynamo looks the model's globals up there
    spec.loader.exec_module(module)
    return module


def measured(way: str, machine: Machine) -> dict[str, Any]:
    """Return the row of `prefill` or `decode`."""
    started, models = time.perf_counter(), llama()
    with torch.device(machine.name):  # 2 billion random weights take a CPU half a minute
        if way == "prefill":
            model = models.build(**machine.sizes)
        else:
            model = models.build_decode(max_seq=machine.positions, **machine.sizes)

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        rng = torch.Generator().manual_seed(seed)
        count = machine.positions if way == "prefill" else 1
        tokens = torch.randint(machine.sizes["vocab"], (1, count), generator=rng)
        return (tokens,) if way == "prefill" else (tokens, torch.tensor(machine.positions - 1))

    options = ModelOptions(device=machine.name, dtype=machine.dtype)
    loaded = loaded_from(model, inputs, options)
    request = ProfileModel(
        spec=way, options=options, threads=torch.get_num_threads(), seconds=machine.seconds
    )
    found = profile(loaded, request, lambda line: print(f"  {line}", flush=True))
    (times,) = found.sets
    spreads = {"eager": times.eager, "captured": times.captured, "compiled": times.compiled}
    return {
        "way": way,
        "tokens": machine.positions if way == "prefill" else 1,
        "cache": 0 if way == "prefill" else machine.positions,
        "dtype": machine.dtype.value,
        "sizes": machine.sizes,
        "times_us": {name: spread(one) for name, one in spreads.items() if one is not None},
        "operations": found.operations,
        "graphs": found.graphs,
        "breaks": [one.where for one in found.breaks],
        "compile_s": found.compile_s,
        "compile_error": found.compile_error,
        "kernels": found.kernels,
        "kernels_linked": found.linked,
        **{against.value: accounted(found, against, machine.ceilings) for against in Against},
        "captured": sums(found.captured),
        "measured_s": time.perf_counter() - started,
        "telemetry": reading(machine.device),
    }


def spread(one: Spread) -> dict[str, float]:
    """Return median, quartiles and count of a way of running."""
    return {"median": one.median_us, "low": one.low_us, "high": one.high_us, "calls": one.calls}


def accounted(found: ModelProfiled, against: Against, limits: Ceilings) -> dict[str, Any] | None:
    """Return one way of running as regions, launch gaps and a rest; None if torch.compile failed."""
    account = found.compiled if against is Against.COMPILED else found.eager
    if account is None:
        return None
    order = ranking(found.regions, account, limits, against)
    rows = sorted(order.rows, key=lambda row: -row.time_us)
    return {
        **sums(account),
        "regions": [region(row, against) for row in rows[:LISTED]],
        "smaller_regions": summed(rows[LISTED:], account),
        "together": order.together[:LISTED],
        "limit": order.limit,
    }


def sums(account: Account) -> dict[str, Any]:
    """Return what is not in regions, and how much of the time has a name."""
    return {
        "total_us": account.total_us,
        "accounted": 1 - account.rest_share,
        "launch_gaps": {"time_us": account.gaps_us, "share": account.gaps_us / account.total_us},
        "rest": {"time_us": account.rest_us, "share": account.rest_us / account.total_us},
    }


def region(row: Row, against: Against) -> dict[str, Any]:
    """Return a region with its share, floor and headroom."""
    one = row.region
    return {
        "region": one.name,
        "op": one.op,
        "kind": one.kind.value,
        "count": one.sites,
        "where": one.where.removeprefix(f"{ROOT}/"),
        "time_us": row.time_us,
        "share": row.share,
        "floor_us": row.floor_us,
        "headroom": row.headroom,
        "is_estimated": one.is_estimated and against is Against.COMPILED,
    }


def summed(rows: Sequence[Row], account: Account) -> dict[str, Any]:
    """Return rows as one."""
    time_us = sum(row.time_us for row in rows)
    return {"count": len(rows), "time_us": time_us, "share": time_us / account.total_us}


def told(row: dict[str, Any]) -> None:
    """Print one row."""
    sizes = ", ".join(f"{name} {value}" for name, value in row["sizes"].items())
    print(f"{row['way']}: {row['tokens']} tokens, {row['dtype']}, {sizes}; {row['measured_s']:.0f} s")
    for against in Against:
        account = row[against.value]
        if account is None:
            print(f"  {against.value}: {row['compile_error']}")
            continue
        gaps = account["launch_gaps"]
        print(
            f"  {against.value} {account['total_us'] / 1e3:.3f} ms, accounted {100 * account['accounted']:.1f} %"
        )
        for one in account["regions"]:
            share = f"{100 * one['share']:5.1f} %{'~' if one['is_estimated'] else ' '}"
            floor = f"floor {one['floor_us']:9.1f} us" + (
                f"  x{one['headroom']:.2f}" if one["headroom"] else ""
            )
            print(f"   {share}{one['time_us']:10.1f} us  {floor}  {one['region']} x{one['count']}")
        print(f"   {100 * gaps['share']:5.1f} % {gaps['time_us']:10.1f} us  launch gaps")


def save(rows: Sequence[dict[str, Any]], machine: Machine, path: Path) -> None:
    """Write the rows with what they rest on, rounded."""
    head = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.device.model_dump(mode="json"),
        "ceilings": machine.ceilings.model_dump(mode="json"),
        "versions": versions(),
        "threads": torch.get_num_threads(),
    }
    text = json.dumps(head | {"rows": list(rows)})
    path.write_text(
        json.dumps(json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}")), indent=1)
        + "\n"
    )


def main() -> int:
    """Measure both ways, write every row at once, and say whether the time is accounted for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, help="how many, if not 8")
    parser.add_argument(
        "--small", action="store_true", help="a small model in fp32: shows that the script works"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="longest measurement of one way")
    parser.add_argument(
        "--home", type=Path, help="where the device's calibration is kept; measured anew without"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # two that wait for each other are all one would measure on a busy machine
    sizes = (SMALL if options.small else SIZES) | ({"layers": options.layers} if options.layers else {})
    device = torch_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        print(f"measuring what {device.name} can do", flush=True)
        limits = ceilings(device, options.home or Path(folder)).ceilings
    machine = Machine(
        name=options.device,
        device=device,
        ceilings=limits,
        sizes=sizes,
        positions=FEW_POSITIONS if options.small else POSITIONS,
        dtype=DType.FP32 if options.small else DType.BF16,
        seconds=options.seconds,
    )
    rows: list[dict[str, Any]] = []
    for way in ("prefill", "decode"):
        print(way, flush=True)
        rows.append(measured(way, machine))
        save(rows, machine, options.out)
        told(rows[-1])
    accounts = [row[against.value] for row in rows for against in Against if row[against.value]]
    is_accounted = all(account["accounted"] >= 1 - LARGEST_REST for account in accounts)
    print(
        "accounted for" if is_accounted else f"more than {100 * LARGEST_REST:.0f} % of the time has no name"
    )
    return 0 if is_accounted and len(accounts) == len(rows) * len(Against) else 1


if __name__ == "__main__":
    sys.exit(main())
