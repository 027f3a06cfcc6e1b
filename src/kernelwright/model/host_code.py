"""The host code of one spliced kernel, written for its site: every guard, address and output spelled out.

With loops over inputs, one to four of them cost 3.1 to 6.0 us over the kernel itself; written out, 0.3 to 2.9 us
(benchmarks/splice_overhead.py, a CPU, torch 2.13).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelwright.backends._bare_table import ALIGNMENT
from kernelwright.core.ports import View
from kernelwright.model.guards import Bound
from kernelwright.model.launching import Kernel
from kernelwright.model.tally import Count

Output = tuple[View | None, tuple[int, ...], torch.dtype]
"""What is left to do to an output, and how it is allocated."""
Answer = Callable[[Sequence[torch.Tensor]], list[torch.Tensor] | str]
"""Takes the region's inputs; answers its outputs, or the name of what does not hold."""


def host_code(
    kernel: Kernel, bounds: Sequence[Bound], outputs: Sequence[Output], arity: int, count: Count
) -> Answer:
    """Return the function that checks what a region is given and calls the kernel on it."""
    device = bounds[0].expected.device
    names: dict[str, Any] = {
        "kernel": kernel,
        "count": count,
        "device": device,
        "empty": torch.empty,
        "is_grad_enabled": torch.is_grad_enabled,
        "is_autocast_enabled": torch.is_autocast_enabled,
    }
    given = [f"a{place}" for place in range(arity)]
    lines = [f"{', '.join(given)}, = given"]
    for number, bound in enumerate(bounds):
        lines += _guard(number, bound, names)
    wants_gradient = " or ".join(f"{name}.requires_grad" for name in given)
    lines += [
        f"if is_grad_enabled() and ({wants_gradient}): return 'gradient'",
        f"if is_autocast_enabled({device.type!r}): return 'autocast'",
    ]
    answers = []
    for number, (view, shape, kind) in enumerate(outputs):
        names |= {f"out_kind{number}": kind, f"placed{number}": view.applied if view else None}
        lines.append(f"o{number} = empty({tuple(shape)!r}, dtype=out_kind{number}, device=device)")
        answers.append(f"placed{number}(o{number})" if view else f"o{number}")
    addresses = [f"p{number} + {bound.offset}" for number, bound in enumerate(bounds)]
    addresses += [f"o{number}.data_ptr()" for number in range(len(outputs))]
    lines += [
        f"if kernel({', '.join(addresses)}): return 'declined by the kernel'",
        "count.calls += 1",
        f"return [{', '.join(answers)}]",
    ]
    body = "\n".join(f"    {line}" for line in lines)
    exec(compile(f"def answer(given):\n{body}\n", "<spliced kernel>", "exec"), names)
    answer: Answer = names["answer"]
    return answer


def _guard(number: int, bound: Bound, names: dict[str, Any]) -> list[str]:
    """Return the lines that check one input and take its address."""
    expected, name = bound.expected, f"a{bound.place}"
    names |= {
        f"expected{number}": expected,
        f"shape{number}": expected.shape,
        f"kind{number}": expected.dtype,
    }
    tests = [f"{name}.shape == shape{number}", f"{name}.dtype is kind{number}", f"{name}.device == device"]
    tests.append(f"{name}.is_contiguous()" if expected.is_dense else f"expected{number}.steps_alike({name})")
    # Asked for last: what is no plain tensor of this device may have no address.
    address = f"(p{number} := {name}.data_ptr())"
    tests.append(
        f"{address} >= 0" if expected.is_anywhere else f"{address} % {ALIGNMENT} == {expected.behind}"
    )
    lines = [f"if not ({' and '.join(tests)}): return expected{number}.refusal({name})"]
    if not bound.is_served:
        lines.append("return 'stride'")
    elif not bound.is_view:  # the copy must live until the kernel has read it
        names[f"made{number}"] = bound.view.applied
        lines += [f"t{number} = made{number}({name})", f"p{number} = t{number}.data_ptr()"]
    return lines
