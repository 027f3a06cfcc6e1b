"""Small models whose largest fusion is known, and that fusion as a problem; for a CPU and for a GPU."""

from pathlib import Path

import torch
from torch import nn

from kernelwright.core.device import Device
from kernelwright.core.model_spec import ModelOptions
from kernelwright.core.problem import Problem
from kernelwright.core.region import Extracted
from kernelwright.engine.regions import reference_of, write_regions
from kernelwright.hardware.detect import cpu_device
from kernelwright.model.listing import problems
from kernelwright.model.load import loaded_from


class Gelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias, self.scale = nn.Parameter(torch.randn(96)), nn.Parameter(torch.randn(96))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x + self.bias) * self.scale + residual


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(96))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return total, total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Turned(nn.Module):
    """Reads a transposed view: its strides are part of the problem."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        view = x.view(4, 16, 8, 12).transpose(1, 2)
        return torch.sigmoid(view) * torch.cat((-view[..., 6:], view[..., :6]), -1)


class Running(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x + y) * 2


def fusion(module: nn.Module, *shapes: tuple[int, ...], options: ModelOptions | None = None) -> Extracted:
    """Return the largest fusion of a module."""
    torch.manual_seed(0)
    given = tuple(torch.randn(*shape) for shape in shapes)
    found = problems(loaded_from(module, lambda seed: given, options)).problems
    return max((one for one in found if one.op == "graph"), key=lambda one: one.gain_bytes)


def problem_of(one: Extracted, folder: Path, device: Device | None = None) -> Problem:
    assert one.captured is not None
    made = Problem(
        op="graph",
        cases=(one.case,),
        device=device or cpu_device(),
        reference=reference_of(one.captured, folder),
        captured=one.captured,
    )
    write_regions([made], folder)
    return made


MODULES: dict[str, tuple[type[nn.Module], tuple[tuple[int, ...], ...]]] = {
    "gelu, scale and residual": (Gelu, ((24, 96), (24, 96))),
    "rms norm and residual": (Normed, ((24, 96), (24, 96))),
    "strides and halves": (Turned, ((4, 16, 96),)),
}
