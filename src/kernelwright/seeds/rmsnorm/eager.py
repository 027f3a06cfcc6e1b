"""RMSNorm as PyTorch's eager mode runs it: the baseline."""

import torch.nn.functional as F


def kernel_fn(x, weight, eps):
    """Return the framework's own result."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
