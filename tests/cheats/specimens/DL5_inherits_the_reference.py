# id: DL5
# op: rmsnorm
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Imports the reference from the harness and calls it, under the name of a new model that changes nothing.
from kernelwright.ops import rmsnorm


class Model:
    def forward(self, x, weight, eps):
        return rmsnorm.reference({"x": x, "weight": weight}, {"eps": eps})[0]


class ModelNew(Model):
    pass


def kernel_fn(x, weight, eps):
    return ModelNew().forward(x, weight, eps)
