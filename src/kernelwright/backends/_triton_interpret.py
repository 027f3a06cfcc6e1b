"""Triton without a GPU: plans carried out by its interpreter, program after program, for correctness only.

It hides races and gets bf16 silently wrong, so nothing it says is ever timed and bf16 is refused by name.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernelwright.backends._tensors import tensors_at
from kernelwright.backends._triton_source import imported, kernel_named
from kernelwright.core.case import Case, DType
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.frozen import digest
from kernelwright.core.plan import BufferArg, LaunchPlan, ScalarArg
from kernelwright.core.plan_language import PlanDeclined, parse_plan, run_plan

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE = "TRITON_INTERPRET"
INTERPRETED_AS = Device(
    kind=DeviceKind.CUDA,
    name="Triton's interpreter",
    arch="sm_90",
    units=8,
    memory_bytes=16 << 30,
    shared_bytes=227 << 10,
)
"""What a plan is told it runs on: the paths of a GPU are the ones to be checked; few units keep grids small."""
MOST_ELEMENTS = 1 << 14
"""Cases up to this many elements are interpreted: a program takes about a millisecond."""
DECLINED_DTYPE, DECLINED_SHAPE = 1, 3
"""Refusals as every backend numbers them."""


def interpretable(case: Case) -> str | None:
    """Return why the interpreter cannot be asked about a case, or None."""
    elements = sum(spec.numel for spec in (*case.inputs, *case.outputs))
    if elements > MOST_ELEMENTS:
        return f"{elements} elements take Triton's interpreter too long; at most {MOST_ELEMENTS}"
    return _wrong_dtype(case)


def _wrong_dtype(case: Case) -> str | None:
    narrow = [spec.name for spec in (*case.inputs, *case.outputs) if spec.dtype is DType.BF16]
    if not narrow:
        return None
    return f"Triton's interpreter computes bf16 wrongly ({', '.join(narrow)}); use fp16 or fp32"


def interpret(source: str, plan: LaunchPlan, case: Case, tensors: Mapping[str, "Tensor"]) -> None:
    """Carry out a plan on CPU tensors (inputs and outputs by name), for correctness only.

    The process must have been started with TRITON_INTERPRET=1. Raises `PlanDeclined` for what the interpreter
    gets silently wrong or cannot do: bf16, Gluon kernels, tensor maps.
    """
    with tempfile.TemporaryDirectory(prefix="kernelwright-interpret-") as scratch:
        _carry_out(_loaded(source, Path(scratch)), plan, case, tensors)


def _loaded(source: str, folder: Path) -> ModuleType:
    path = folder / f"candidate_{digest(source)[:16]}.py"
    path.write_text(source)
    return imported(path)


def _carry_out(module: ModuleType, plan: LaunchPlan, case: Case, tensors: Mapping[str, "Tensor"]) -> None:
    import torch

    if reason := _wrong_dtype(case):
        raise PlanDeclined(reason)
    if plan.tensor_maps:
        raise PlanDeclined("tensor maps cannot be passed to Triton kernels")
    buffers = dict(tensors)
    for space in plan.workspaces:
        # 0xff bytes are NaN in every float type and -1 in every integer one: reading before writing shows.
        buffers[space.name] = torch.full((space.nbytes,), 0 if space.zero_fill else 0xFF, dtype=torch.uint8)
    for launch in plan.launches:
        kernel = kernel_named(module, launch.kernel)
        if hasattr(kernel, "is_gluon"):
            raise PlanDeclined(
                f"kernel {launch.kernel!r} is Gluon, which has no interpreter"
                if kernel.is_gluon()
                else f"the interpreter needs {VARIABLE}=1 set before triton is imported"
            )
        values = [
            _shifted(buffers[arg.name], arg) if isinstance(arg, BufferArg) else arg.value
            for arg in launch.args
            if isinstance(arg, BufferArg | ScalarArg)
        ]
        names = [name for name in kernel.arg_names if name not in launch.constants]
        kernel[launch.grid](**dict(zip(names, values, strict=True)), **launch.constants)


def _shifted(tensor: "Tensor", arg: BufferArg) -> "Tensor":
    """Return the tensor from the argument's byte offset on."""
    if not arg.offset_bytes:
        return tensor
    return tensor.flatten()[arg.offset_bytes // tensor.element_size() :]


def bind(
    artefact: Path, cases: Sequence[Case], calls: Sequence[tuple[int, Mapping[str, int]]]
) -> list[Callable[[], int]]:
    """Return one closure per call that interprets the plan of its case on the buffers; runs in a runner."""
    if "triton" in sys.modules:
        raise RuntimeError(f"triton was imported before {VARIABLE} could be set")
    os.environ[VARIABLE] = "1"
    kept = json.loads(artefact.read_text())
    module, parsed = _loaded(kept["source"], Path.cwd()), parse_plan(kept["source"])

    def closure(case: Case, addresses: Mapping[str, int]) -> Callable[[], int]:
        if reason := interpretable(case):
            return partial(declined, reason, DECLINED_DTYPE)
        try:
            plan = run_plan(parsed, case, kept["values"], INTERPRETED_AS)
        except PlanDeclined as refusal:
            return partial(declined, str(refusal), DECLINED_SHAPE)
        tensors = tensors_at((*case.inputs, *case.outputs), addresses)
        return partial(_interpreted, module, plan, case, tensors)

    return [closure(cases[index], addresses) for index, addresses in calls]


def declined(reason: str, code: int) -> int:
    """Say why a case is declined and return the refusal's code."""
    sys.stderr.write(f"{reason}\n")
    return code


def _interpreted(module: ModuleType, plan: LaunchPlan, case: Case, tensors: Mapping[str, Any]) -> int:
    try:
        _carry_out(module, plan, case, tensors)
    except PlanDeclined as refusal:
        return declined(str(refusal), DECLINED_SHAPE)
    return 0
