"""Softmax as PyTorch's eager mode runs it: the baseline."""

import torch.nn.functional as F


def kernel_fn(x):
    """Return the framework's own result."""
    return F.softmax(x, dim=-1)
