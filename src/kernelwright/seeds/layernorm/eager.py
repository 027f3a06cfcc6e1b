"""LayerNorm as PyTorch's eager mode runs it: the baseline."""

import torch.nn.functional as F


def kernel_fn(x, weight, bias, eps):
    """Return the framework's own result."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)
