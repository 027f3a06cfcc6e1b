"""The model in higher precision, and its state: what every arm of a check starts from."""

import copy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from kernelwright.model.arguments import Arguments

NARROW = (torch.float32, torch.float16, torch.bfloat16)


class State:
    """A model's buffers as they are now: a cache is written by a call, and the next arm must find it as it was."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.kept = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def restore(self) -> None:
        """Put the buffers back."""
        for name, buffer in self.module.named_buffers():
            buffer.copy_(self.kept[name])

    def changed(self) -> dict[str, torch.Tensor]:
        """Return the buffers that are other than they were: outputs as much as what is returned."""
        return {
            name: buffer.clone()
            for name, buffer in self.module.named_buffers()
            if not torch.equal(buffer, self.kept[name])
        }


class Widened(TorchDispatchMode):
    """Computes in float64 where the model's own code asks for less: a cast inside it would end the precision."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value

        return func(*tree_map(wide, args), **tree_map(wide, kwargs or {}))


class Precise:
    """A copy of a model in float64."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = copy.deepcopy(module).double()
        self.state = State(self.module)

    def call(self, given: Arguments) -> tuple[Any, dict[str, torch.Tensor]]:
        """Return what the model answers in float64, and the buffers it changed."""

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.double() if tensor.is_floating_point() else tensor.clone()

        self.state.restore()
        with Widened():
            answer = given.mapped(wide).call(self.module)
        return answer, self.state.changed()
