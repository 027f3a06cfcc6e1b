"""A written kernel as a Python file: `kernel_fn` allocates what it returns and has the kernel fill it.

C++ comes in through the door of the language. Kernels of Triton are launched as their plan says for these sizes.
"""

import ast
import re
from collections.abc import Sequence

from kernelwright.codegen.lowering import Port
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.plan import BufferArg
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def around_cpp(source: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    """Return a file that hands its tensors to a C++ candidate."""
    given = ", ".join(port.name for port in (*inputs, *outputs))
    head = f"import torch\n\nSOURCE = r'''{source}'''\nNATIVE = cpp_kernel(SOURCE)\n"
    return f"{head}\n\n{_function(inputs, outputs, [f'NATIVE({given})'])}"


def around_triton(
    source: str, case: Case, device: Device, inputs: Sequence[Port], outputs: Sequence[Port]
) -> str:
    """Return a file that launches the kernels of a Triton candidate; `case` names its inputs as the plan does."""
    plan = run_plan(parse_plan(source), case, first_values(source), device)
    names = {spec.name: port.name for spec, port in zip(case.inputs, inputs, strict=True)}
    like = inputs[0].name
    lines = [
        f"{space.name} = torch.empty(({space.nbytes},), dtype=torch.uint8, device={like}.device)"
        for space in plan.workspaces
    ]
    for launch in plan.launches:
        if 0 in launch.grid:
            continue
        args = []
        for arg in launch.args:
            assert isinstance(arg, BufferArg), "a plain kernel is given buffers alone"
            args.append(names.get(arg.name, arg.name))
        named = [f"{name}={value}" for name, value in (launch.constants | launch.meta).items()]
        lines.append(f"{launch.kernel}[{launch.grid}]({', '.join([*args, *named])})")
    return f"import torch\n{_kernels(source)}\n\n{_function(inputs, outputs, lines)}"


def _kernels(source: str) -> str:
    """Return a Triton candidate without its parameters and its plan."""
    lines = source.splitlines()
    for node in reversed(ast.parse(source).body):
        is_plan = isinstance(node, ast.FunctionDef) and node.name == "plan"
        if is_plan or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARAMS"):
            del lines[node.lineno - 1 : node.end_lineno]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).rstrip() + "\n"


def _function(inputs: Sequence[Port], outputs: Sequence[Port], lines: Sequence[str]) -> str:
    made = [
        f"{port.name} = torch.empty({port.shape}, dtype=torch.{DTYPES[port.dtype]}, device={inputs[0].name}.device)"
        for port in outputs
    ]
    body = "".join(f"    {line}\n" for line in (*made, *lines))
    given = ", ".join(port.name for port in inputs)
    return f"def kernel_fn({given}):\n{body}    return {', '.join(port.name for port in outputs)}\n"
