"""Triton without a GPU: plans carried out by its interpreter, program after program, for correctness only.

It hides races and gets bf16 silently wrong, so nothing it says is ever timed and bf16 is refused by name. It counts
loops and passes floats as plain Python numbers, which know no type and divide like Python: here they are tensors, as
they are to the compiler.
"""

import ast
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from kernelwright.core.plan_language import parse_plan
from kernelwright.core.plan_run import PlanDeclined, run_plan

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
COUNTED = "kernelwright_counted"
"""What loops over `range` go over in the file that is interpreted."""


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
    path.write_bytes(_counting_in_tensors(source))
    module = imported(path)
    vars(module)[COUNTED] = _counted
    return module


def _counting_in_tensors(source: str) -> bytes:
    """Return the source with `range` and `tl.range` of every loop replaced by ours; no line moves."""
    text = source.encode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    loops = [node.iter for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For)]
    names = [loop.func for loop in loops if isinstance(loop, ast.Call)]
    # From the back, so that what lies before keeps its place. `static_range` counts at compile time: plain integers.
    for name in sorted(names, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        if ast.unparse(name).rpartition(".")[2] == "range":
            first = starts[name.lineno - 1] + name.col_offset
            last = starts[(name.end_lineno or 0) - 1] + (name.end_col_offset or 0)
            text = text[:first] + COUNTED.encode() + text[last:]
    return text


def _counted(first: Any, last: Any = None, step: Any = 1, **_hints: object) -> "Iterator[Any]":
    """Count in the common integer type of the bounds, as a compiled loop does. `Any`: Triton is imported lazily."""
    from triton.runtime.interpreter import interpreter_semantic as semantic

    low, high = (0, first) if last is None else (first, last)
    kinds = [semantic.to_tensor(bound).dtype for bound in (low, high, step)]
    kind = semantic.integer_promote_impl(semantic.integer_promote_impl(kinds[0], kinds[1]), kinds[2])
    for value in range(low, high, step):
        yield semantic.scalar_constant(value, kind)


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
            _shifted(buffers[arg.name], arg) if isinstance(arg, BufferArg) else _typed(arg)
            for arg in launch.args
            if isinstance(arg, BufferArg | ScalarArg)
        ]
        names = [name for name in kernel.arg_names if name not in launch.constants]
        kernel[launch.grid](**dict(zip(names, values, strict=True)), **launch.constants)


def _typed(arg: ScalarArg) -> Any:
    """Return a float as a tensor of its declared type; integers become tensors in the interpreter itself."""
    if not isinstance(arg.value, float):
        return arg.value
    import numpy
    from triton.language import float32, float64, tensor
    from triton.runtime.interpreter import TensorHandle

    kind, width = (float64, numpy.float64) if arg.type == "fp64" else (float32, numpy.float32)
    return tensor(TensorHandle(numpy.array([arg.value], width), kind), kind)


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
