"""What other tools read: a Chrome trace of the model with its regions marked, and torch's record of GPU memory."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from kernelwright.model.arguments import Arguments
from kernelwright.model.marks import Watch


def write_trace(
    ways: Mapping[str, Callable[..., Any] | None], watch: Watch, given: Arguments, path: Path
) -> str:
    """Write one call of every way of running the model; the captured one is annotated. Return a line on it."""
    on_gpu = any(tensor.is_cuda for tensor in given.tensors())
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=kinds, record_shapes=True) as found:
        for name, call in ways.items():
            if call is None:
                continue
            watch.form = "annotated" if name == "captured" else "plain"
            with record_function(name):
                given.call(call)
                if on_gpu:
                    torch.cuda.synchronize()
    watch.form = "plain"
    found.export_chrome_trace(str(path))
    return f"trace of one call each way: {path}"


def write_memory(module: torch.nn.Module, given: Arguments, device: torch.device, path: Path) -> str:
    """Write what one eager call does with GPU memory. Return a line on it, also where there is none."""
    if device.type != "cuda":
        return f"no memory snapshot: the model runs on {device}, torch records GPU memory only"
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    given.call(module)
    torch.cuda.synchronize(device)
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
    return f"memory snapshot of one eager call: {path}"
