"""Attention as PyTorch's eager mode runs it: the baseline."""

import torch.nn.functional as F


def kernel_fn(q, k, v, causal, scale):
    """Return the framework's own result."""
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
