"""Sum or maximum as PyTorch's eager mode runs it: the baseline."""


def kernel_fn(x, is_max):
    """Return the framework's own result."""
    return x.amax(-1) if is_max else x.sum(-1)
