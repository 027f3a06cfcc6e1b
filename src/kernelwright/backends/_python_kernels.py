"""Whose kernels a GPU runs: written down by CUPTI, through torch's profiler, while a file is called once.

What it proves: a call that reaches a vendor's library past torch's dispatcher is seen, because its kernels run under
names the file has not. What it cannot prove: the candidate shares the process, so hostile code could keep the profiler
from seeing. Like the census it is a second line behind the static guard, and can only condemn.
"""

import ast
from collections.abc import Callable, Iterable
from typing import Any

JITTED = ("triton.jit", "jit", "gluon.jit")
"""How a kernel of the file's own is decorated."""
OWN_OF_TORCH = ("FillFunctor", "copy_kernel", "Memset", "Memcpy")
"""What zeroed memory and a tensor made contiguous cost: the census says which operators a file may use."""


def jitted(source: str) -> frozenset[str]:
    """Return the names of the functions a file has compiled for the GPU."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                given = decorator.func if isinstance(decorator, ast.Call) else decorator
                if ast.unparse(given) in JITTED:
                    found.add(node.name)
    return frozenset(found)


def kernels_besides(own: frozenset[str], call: Callable[[], Any]) -> list[str]:
    """Return the kernels that ran in a call, without the file's own."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        call()
        torch.cuda.synchronize()
    ran = {event.name for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA}
    if own and not ran:
        raise RuntimeError("no kernel was seen: the profiler does not work here")
    return strangers(ran, own)


def strangers(ran: Iterable[str], own: frozenset[str]) -> list[str]:
    """Return the kernels that are neither the file's own nor what torch moves and fills memory with."""
    return sorted(name for name in ran if name not in own and not any(word in name for word in OWN_OF_TORCH))
