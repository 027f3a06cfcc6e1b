# id: RF7
# op: rmsnorm
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Returns a subclass of tensor that computes when somebody first looks at it: after the clock has stopped, in the hands of
# whoever compares or copies it.
import torch


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [each.worked_out() if isinstance(each, Lazy) else each for each in args]
        return function(*plain, **(kwargs or {}))

    def worked_out(self):
        with torch._C.DisableTorchFunctionSubclass():
            x, weight, eps = self.waiting
            return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


def kernel_fn(x, weight, eps):
    promise = torch.empty_like(x).as_subclass(Lazy)
    promise.waiting = (x, weight, eps)
    return promise
