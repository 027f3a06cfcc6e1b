"""Cross-entropy as PyTorch's eager mode runs it: the baseline."""

import torch.nn.functional as F


def kernel_fn(logits, labels, ignore_index):
    """Return the framework's own result."""
    return F.cross_entropy(logits, labels, ignore_index=ignore_index)
