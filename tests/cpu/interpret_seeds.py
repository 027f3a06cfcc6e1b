"""Run as a script with TRITON_INTERPRET=1: lists of jobs come in as lines of JSON, findings go out the same way.

A process of its own, because the variable must be set before triton is imported and because a kernel that runs out of
bounds may end the process.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from kernelwright.backends import triton as backend
from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution, TensorSpec
from kernelwright.core.device import Device
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import PlanDeclined, run_plan
from kernelwright.ops._draw import torch_dtype

GUARD = 64


def placed(spec: TensorSpec, fill: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a storage with guard zones behind it and the view of it that the spec describes."""
    storage = torch.full((spec.storage_elements + GUARD,), fill, dtype=torch_dtype(spec.dtype))
    return storage, torch.as_strided(storage, spec.shape, spec.element_strides, spec.offset)


def spoil(inputs: dict[str, torch.Tensor], value: float) -> None:
    """Put a NaN into the middle of the first input, or -inf into most of each row, the label's place left alone."""
    first = next(iter(inputs.values()))
    if value != value:
        first.view(-1)[first.numel() // 2] = value
        return
    before = first.clone()
    first[:, first.shape[1] // 4 :] = value
    if "labels" in inputs:
        labels = inputs["labels"].clamp_min(0)[:, None]
        first.scatter_(1, labels, before.gather(1, labels))


def find(job: dict[str, Any]) -> dict[str, Any]:
    """Run one seed on one case and return its largest error in units of roundoff times the op's own scale."""
    case, device = Case.model_validate(job["case"]), Device.model_validate(job["device"])
    source = Path(job["seed"]).read_text()
    op = plugins.load("ops", case.op)
    plan = run_plan(parse_plan(source), case, {**first_values(source), **job["values"]}, device)
    inputs = op.make_inputs(case, Distribution(job["distribution"]), 7)
    if job.get("spoiler"):
        spoil(inputs, float(job["spoiler"]))
    tensors = {}
    for spec in case.inputs:
        _, tensors[spec.name] = placed(spec, 0)
        tensors[spec.name].copy_(inputs[spec.name])
    (spec,) = case.outputs
    storage, tensors["out"] = placed(spec, float("nan"))
    try:
        backend.interpret(source, plan, case, tensors)
    except PlanDeclined as refusal:
        return {"declined": str(refusal)}
    wide = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    (exact,), (scale,) = op.reference(wide, case.scalars), op.error_scale(wide, case.scalars)
    out = tensors["out"].clone()
    tensors["out"].fill_(float("nan"))
    finite = torch.isfinite(exact)
    kind = torch.finfo(out.dtype)
    # Below the normal range numbers are evenly spaced: half a step there is a rounding, not an error.
    room = kind.eps / 2 * scale + kind.smallest_normal * kind.eps / 2
    (framework,) = op.reference(inputs, case.scalars)
    own, theirs = (((found.double() - exact).abs() / room)[finite] for found in (out, framework))
    return {
        "kernels": [launch.kernel for launch in plan.launches],
        "units": float(own.max()) if own.numel() else 0.0,
        "framework_units": float(theirs.max()) if theirs.numel() else 0.0,
        "same_nans": bool((torch.isnan(out) == torch.isnan(exact)).all()),
        "intact": bool(torch.isnan(storage).all())
        and all(torch.allclose(tensors[name], inputs[name], 0, 0, equal_nan=True) for name in inputs),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        sys.stdout.write(json.dumps([find(job) for job in json.loads(line)]) + "\n")
        sys.stdout.flush()
