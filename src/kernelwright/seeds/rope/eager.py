"""Rotary embedding as PyTorch's eager mode runs it: the baseline."""

import torch


def kernel_fn(x, cos, sin, interleaved):
    """Return the rotation written with the framework's own ops, as models do."""
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
