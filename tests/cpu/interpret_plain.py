"""Run as a script with TRITON_INTERPRET=1: every function of test_plain_kernels as Triton, one line of JSON each."""

import importlib.util
import json
import tempfile
from pathlib import Path

import torch

from kernelwright.backends import python
from kernelwright.backends import triton as backend
from kernelwright.codegen import plain_triton, python_file
from kernelwright.codegen.values import NotPlain
from tests.cpu.test_plain_kernels import FUNCTIONS, Sketch, planned, sketched


def finding(one: Sketch) -> dict[str, object]:
    """Return how far a kernel is from the function, by its plan and called from Python, or why there is none."""
    try:
        source = plain_triton.written(one.graph, one.inputs, one.outputs, one.order)
    except NotPlain as reason:
        return {"not_plain": str(reason)}
    case, plan = planned(one, source)
    got = [torch.full_like(tensor, float("nan")) for tensor in one.wanted]
    tensors = {f"input:{place}": tensor.clone() for place, tensor in enumerate(one.given)}
    backend.interpret(source, plan, case, tensors | {f"out{place}": out for place, out in enumerate(got)})
    file = python_file.around_triton(source, case, backend.INTERPRETED_AS, one.inputs, one.outputs)
    returned = called(file, one)
    return {
        "units": units(got, one.wanted),
        "refused": backend.check(source),
        "python_units": units(returned, one.wanted),
        "python_refused": python.check(file) or python.delegates(file),
    }


def called(file: str, one: Sketch) -> list[torch.Tensor]:
    """Return what the `kernel_fn` of a Python file returns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "candidate.py")
        path.write_text(file)
        spec = importlib.util.spec_from_file_location("candidate", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        answer = module.kernel_fn(*(tensor.clone() for tensor in one.given))
    return list(answer) if isinstance(answer, tuple) else [answer]


def units(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Return the largest error in units of roundoff of the largest value."""
    found = 0.0
    for out, expected in zip(got, wanted, strict=True):
        scale = torch.finfo(expected.dtype).eps * max(1.0, float(expected.double().abs().max()))
        found = max(found, float((out.double() - expected.double()).abs().max()) / scale)
    return found


def main() -> None:
    """Print a finding per function; the interpreter computes no bf16."""
    for name in FUNCTIONS:
        if name != "bf16":
            print(json.dumps({"name": name, **finding(sketched(*FUNCTIONS[name]))}), flush=True)


if __name__ == "__main__":
    main()
