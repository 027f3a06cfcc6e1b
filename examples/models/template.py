"""A model of your own: copy this file, put your module in, and run

kernelwright optimize my_model.py:build

Only two functions are needed: a factory, here `build`, and `sample_inputs`. Nothing of kernelwright is imported.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MyModel(nn.Module):
    """Your module. Write it as you always do; plain PyTorch calls are what is recognised and replaced."""

    def __init__(self, width: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of every row."""
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(x)


# The factory. Its name is yours: `my_model.py:build`. Arguments need defaults, or are given in the name itself:
# `my_model.py:build(width=256)`. If it has parameters called `device` and `dtype`, they receive --device and --dtype;
# a large model is then made where it will run. Without them it is moved afterwards.
def build(width: int = 128) -> MyModel:
    """Return the model, with its weights: load a checkpoint here if you have one."""
    torch.manual_seed(0)  # random weights must be the same in every process
    return MyModel(width)


# The inputs. Called with different seeds: the same seed must give the same values, other seeds other values of the
# same shapes. Make them on the CPU; they are moved. The simplest form is a tuple of positional arguments,
#     return (torch.randn(8, 128, generator=generator),)
# or a dict of keyword arguments. If the model is called in several ways, return a list as below: `weight` says how
# often each is called relative to the others, `dynamic` names the axes that change from call to call.
def sample_inputs(seed: int) -> list[dict[str, Any]]:
    """Return what the model is really called with: real shapes are what the kernels are tuned for."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "name": "single",
            "weight": 9,
            "args": (torch.randn(1, 128, generator=generator),),
            "dynamic": {"x": ("batch",)},
        },
        {
            "name": "batch64",
            "weight": 1,
            "kwargs": {"x": torch.randn(64, 128, generator=generator)},
            "dynamic": {"x": ("batch",)},
        },
    ]


# A second factory may have inputs of its own: `build_wide` is called with `sample_inputs_wide`, if there is one.


def main() -> None:
    """Run it by itself first: what fails here fails everywhere."""
    model = build().eval()
    with torch.inference_mode():
        for item in sample_inputs(0):
            scores = model(*item.get("args", ()), **item.get("kwargs", {}))
            print(f"{item['name']}: scores {tuple(scores.shape)}")


if __name__ == "__main__":
    main()
