"""Run as a script with TRITON_INTERPRET=1: every function of test_plain_kernels as Triton, one line of JSON each."""

import json

import torch

from kernelwright.backends import triton as backend
from kernelwright.codegen import plain_triton
from kernelwright.codegen.values import NotPlain
from tests.cpu.test_plain_kernels import FUNCTIONS, Sketch, planned, sketched


def finding(one: Sketch) -> dict[str, object]:
    """Return how far a kernel is from the function, in units of roundoff of the largest value, or why there is none."""
    try:
        source = plain_triton.written(one.graph, one.inputs, one.outputs, one.order)
    except NotPlain as reason:
        return {"not_plain": str(reason)}
    case, plan = planned(one, source)
    got = [torch.full_like(tensor, float("nan")) for tensor in one.wanted]
    tensors = {f"input:{place}": tensor.clone() for place, tensor in enumerate(one.given)}
    backend.interpret(source, plan, case, tensors | {f"out{place}": out for place, out in enumerate(got)})
    units = 0.0
    for out, wanted in zip(got, one.wanted, strict=True):
        scale = torch.finfo(wanted.dtype).eps * max(1.0, float(wanted.double().abs().max()))
        units = max(units, float((out.double() - wanted.double()).abs().max()) / scale)
    return {"units": units, "refused": backend.check(source)}


def main() -> None:
    """Print a finding per function; the interpreter computes no bf16."""
    for name in FUNCTIONS:
        if name != "bf16":
            print(json.dumps({"name": name, **finding(sketched(*FUNCTIONS[name]))}), flush=True)


if __name__ == "__main__":
    main()
