"""`python -m kernelwright.judge.drawn FOLDER`: the inputs a timing would get, as files for a launcher under a profiler.

The folder holds a case as JSON. Inputs are drawn by the case's op as for every timing and written with the case's own
strides, so that a profile is of the very workload that was judged. The seed is fixed: nothing is checked with them.
"""

import sys
from pathlib import Path

import torch

from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution, TensorSpec
from kernelwright.core.messages.profiler import CASE, input_file
from kernelwright.ops._draw import torch_dtype

SEED = 20


def main(folder: Path) -> None:
    """Draw the inputs of a folder's case."""
    case = Case.model_validate_json((folder / CASE).read_text())
    tensors = plugins.load("ops", case.op).make_inputs(case, Distribution.SIGNED, SEED)
    for place, spec in enumerate(case.inputs):
        stored(spec, tensors[spec.name]).view(torch.uint8).numpy().tofile(folder / input_file(place))


def stored(spec: TensorSpec, values: torch.Tensor) -> torch.Tensor:
    """Return the storage of a tensor in its own layout; the first row stands for a broadcast axis."""
    storage = torch.zeros(max(1, spec.storage_elements), dtype=torch_dtype(spec.dtype))
    if spec.numel == 0:
        return storage
    view, source = storage.as_strided(spec.shape, spec.element_strides, spec.offset), values
    for axis, stride in enumerate(spec.element_strides):
        if stride == 0 and spec.shape[axis] > 1:
            view, source = view.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    view.copy_(source)
    return storage


if __name__ == "__main__":
    main(Path(sys.argv[1]))
