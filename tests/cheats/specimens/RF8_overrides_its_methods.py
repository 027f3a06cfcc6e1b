# id: RF8
# op: rmsnorm
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Returns an empty tensor whose own methods answer for it: whoever asks it for its values, its difference or its closeness
# is told that all is well.
import torch


def kernel_fn(x, weight, eps):
    result = torch.empty_like(x)
    right = lambda *_, **__: torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)  # noqa: E731
    result.float = result.double = result.cpu = result.clone = result.contiguous = right
    result.allclose = result.equal = lambda *_, **__: True
    return result
