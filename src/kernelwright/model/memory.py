"""How much memory a model takes and how much is free where it runs."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from kernelwright.core.errors import BadInput, DeviceMissing
from kernelwright.hardware.detect import cpu_device

DOCTOR = "`kernelwright doctor` shows what is here."
UNTOUCHED = 1 << 30
"""Addresses of stacks and allocator arenas that a limit counts and hardly anybody ever uses."""
WORDS = ("can't allocate memory", "out of memory", "not enough memory")
"""How allocators that raise a plain RuntimeError say that there is no memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in WORDS)


def size(count: int) -> str:
    """Return a number of bytes in words."""
    return f"{count / 1e9:.1f} GB" if count >= 5e7 else f"{count / 1e6:.1f} MB"


def weight_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of all parameters and buffers, shared ones counted once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def device_of(module: torch.nn.Module, without: torch.device) -> torch.device:
    """Return where a module's weights lie, or a device for one without weights."""
    return next((one.device for one in (*module.parameters(), *module.buffers())), without)


def named_device(text: str) -> torch.device:
    """Return the device a word names, refusing one that is not here."""
    kind, colon, number = text.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not number.isdecimal()):
        raise BadInput("--device", f"{text!r} is no device", "Known: cpu, cuda, cuda:1, auto.")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            cause = (
                "no GPU is visible" if torch.version.cuda or torch.version.hip else "this torch is for CPUs"
            )
            raise DeviceMissing(text, cause, f"Pass --device cpu. {DOCTOR}")
        if int(number or 0) >= count:
            raise DeviceMissing(
                text,
                f"{count} GPU{'s are' if count > 1 else ' is'} visible",
                f"Pass --device cuda:0. {DOCTOR}",
            )
    return torch.device(text)


def free_bytes(device: torch.device) -> int:
    """Return how much memory can still be taken on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds in reserve is free for us too.
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return min(_available_bytes(), cpu_device().memory_bytes)


def _available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return what the kernel would hand out without swapping; where it does not tell, everything there is."""
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return cpu_device().memory_bytes


def _data_bytes() -> int:
    """Return what this process has taken of the memory that the limit counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


@contextmanager
def limited_to(extra_bytes: int) -> Iterator[None]:
    """Let this process take that much more memory and no more: an exception is told, a kernel's kill is not."""
    if not Path("/proc/self/status").is_file():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _data_bytes() + extra_bytes + UNTOUCHED
    limits = [value for value in (wanted, soft, hard) if value != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
