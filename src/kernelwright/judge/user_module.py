"""A user's module, loaded in the reference process and nowhere else: what it is as a case, and its answers.

The file is KernelBench's form: `class Model(torch.nn.Module)`, `get_inputs()`, `get_init_inputs()`. Its generator is
asked once, for sizes; what is put to reference and candidate is drawn by the judge.
"""

import ast
import copy
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kernelwright.core.case import Case, Compute, Distribution, DType, TensorSpec
from kernelwright.core.frozen import digest
from kernelwright.core.messages.judge import Described
from kernelwright.core.modules import OP, Named, Role, arguments, index_axis, spelled
from kernelwright.ops import module as op
from kernelwright.ops._draw import torch_dtype

PREFIX = "file:"
NEEDED = ("Model", "get_inputs", "get_init_inputs")
FLOATS = (DType.FP32, DType.FP16, DType.BF16)
NAMES = {torch_dtype(kind): kind for kind in (*FLOATS, DType.INT64, DType.INT32, DType.BOOL)}
DRAWS = 3


class NotJudgeable(ValueError):
    """What keeps a user's file from being a reference, in one sentence with the remedy."""


class UserModule:
    """One file, loaded once."""

    def __init__(self, reference: str) -> None:
        path, _, expected = reference.removeprefix(PREFIX).rpartition("#")
        text = Path(path).read_text()
        if digest(text) != expected:
            raise NotJudgeable(f"{path} has changed since the problem was made; make the problem again")
        loaded = types.ModuleType("reference_file")
        loaded.__file__ = path
        sys.modules[loaded.__name__] = loaded
        exec(compile(text, path, "exec"), loaded.__dict__)
        if missing := [name for name in NEEDED if not hasattr(loaded, name)]:
            raise NotJudgeable(
                f"{path} has no {' and no '.join(missing)}; a reference needs {', '.join(NEEDED)}"
            )
        self.path = path
        self.file: Any = loaded
        torch.manual_seed(0)
        self.init_inputs = list(loaded.get_init_inputs())
        self.models: dict[tuple[bool, str], torch.nn.Module] = {}
        self.models[False, "cpu"] = loaded.Model(*self.init_inputs)

    def _model(self, *, is_wide: bool, device: str) -> torch.nn.Module:
        """Return the module in its own precision or in float64: constants that are no state must be widened too."""
        key = (is_wide, device)
        if key not in self.models:
            made = copy.deepcopy(self.models[False, "cpu"]).to(device)
            self.models[key] = made.double() if is_wide else made
        return self.models[key]

    def answer(self, case: Case, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the outputs for inputs and state drawn by the judge, in their precision and on their device."""
        first = next(iter(inputs.values()))
        is_wide = any(tensor.dtype is torch.float64 for tensor in inputs.values())
        placed, state = arguments(case, inputs)
        # Clones: a module in training mode updates its running statistics in place.
        state = {key: tensor.clone() for key, tensor in state.items()}
        model = self._model(is_wide=is_wide, device=str(first.device))
        with torch.no_grad():
            return _outputs(torch.func.functional_call(model, state, tuple(placed)))

    def describe(self) -> Described:
        """Return the module as a case, at the sizes its own generator makes."""
        try:
            written = repr(self.init_inputs)
            ast.literal_eval(written)
        except (ValueError, SyntaxError) as error:
            raise NotJudgeable(
                f"get_init_inputs of {self.path} returns more than numbers, strings and lists"
            ) from error
        given = list(self.file.get_inputs())
        with torch.no_grad():
            outputs = _outputs(copy.deepcopy(self.models[False, "cpu"])(*given))
        for role in (Role.SIGNED, Role.POSITIVE, Role.UNIT):
            case = self._case(given, outputs, role)
            if self._is_finite(case):
                return Described(case=case, init_inputs=written)
        raise NotJudgeable(f"Model of {self.path} gives NaN or infinity on inputs drawn by the judge")

    def _case(self, given: list[Any], outputs: tuple[torch.Tensor, ...], role: Role) -> Case:
        axes: dict[str, int] = {}
        inputs, scalars = [], {}
        for place, value in enumerate(given):
            if isinstance(value, torch.Tensor):
                spec = self._spec(Named(False, str(place), role), value, axes)
                axes |= {f"{spec.name}:{axis}": extent for axis, extent in enumerate(value.shape)}
                inputs.append(spec)
            elif isinstance(value, bool | int | float):
                scalars[spelled(Named(False, str(place), Role.SIGNED))] = value
            else:
                raise NotJudgeable(f"get_inputs of {self.path} returns a {type(value).__name__}")
        buffers = {key for key, _ in self.models[False, "cpu"].named_buffers()}
        for key, tensor in self.models[False, "cpu"].state_dict().items():
            is_positive = key in buffers and tensor.numel() and bool((tensor >= 0).all())
            kind = Role.POSITIVE if is_positive else Role.SIGNED
            inputs.append(self._spec(Named(True, key, kind), tensor, axes))
        made = tuple(
            TensorSpec(name=f"out{place}", shape=tuple(tensor.shape), dtype=self._dtype(tensor))
            for place, tensor in enumerate(outputs)
        )
        if strange := [spec.name for spec in made if spec.dtype not in FLOATS]:
            raise NotJudgeable(f"output {strange[0]!r} of {self.path} is no floating-point tensor")
        return Case(
            op=OP,
            axes=axes,
            dtype=made[0].dtype,
            compute=Compute.STRICT_FP32 if made[0].dtype is DType.FP32 else Compute.FP32_ACCUMULATE,
            inputs=tuple(inputs),
            outputs=made,
            scalars=scalars,
        )

    def _spec(self, name: Named, tensor: torch.Tensor, axes: dict[str, int]) -> TensorSpec:
        """Return the spec of an input or of an entry of the state; the extent of an index goes into the axes."""
        dtype = self._dtype(tensor)
        if dtype in (DType.INT64, DType.INT32):
            if tensor.numel() and int(tensor.min()) < 0:
                raise NotJudgeable(f"an integer input of {self.path} is negative: only indices can be drawn")
            name = name._replace(role=Role.INDEX)
            axes[index_axis(spelled(name))] = int(tensor.max()) + 1 if tensor.numel() else 1
        elif dtype is DType.BOOL:
            name = name._replace(role=Role.SIGNED)
        return TensorSpec(name=spelled(name), shape=tuple(tensor.shape), dtype=dtype)

    def _dtype(self, tensor: torch.Tensor) -> DType:
        if tensor.dtype not in NAMES:
            raise NotJudgeable(f"{self.path} uses {tensor.dtype}; known: {', '.join(map(str, NAMES))}")
        return NAMES[tensor.dtype]

    def _is_finite(self, case: Case) -> bool:
        """Tell whether the module is defined on inputs of its roles, and the same when asked twice."""
        for seed in range(DRAWS):
            inputs = op.make_inputs(case, Distribution.SIGNED, seed)
            first, second = self.answer(case, inputs), self.answer(case, inputs)
            if not all(
                torch.equal(a, b) for a, b in zip(first, second, strict=True) if torch.isfinite(a).all()
            ):
                raise NotJudgeable(f"Model of {self.path} is random: two calls on the same inputs differ")
            if not all(bool(torch.isfinite(out).all()) for out in first):
                return False
        return True


def _outputs(value: Any) -> tuple[torch.Tensor, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not values or not all(isinstance(item, torch.Tensor) for item in values):
        raise NotJudgeable("forward returns something else than tensors")
    return values
