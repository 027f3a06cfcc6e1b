"""A user's function as a module: tensors in, its answer out, everything else fixed as the call has it."""

from pathlib import Path
from typing import Any

import torch

from kernelwright.core.errors import InputsDoNotFit, ModelNotLoadable
from kernelwright.core.model_spec import InputSpec, Source, parse_spec
from kernelwright.core.tuned import CallFile, FunctionCall
from kernelwright.model.call import bound, described, drawn, filled
from kernelwright.model.code_identity import plain
from kernelwright.model.dry_run import USER_MISTAKES, said
from kernelwright.model.inputs import from_specs
from kernelwright.model.load import namespace_of

HELP = "Give `path.py:function` or `package.module:function`."


def loaded_function(spec: str) -> Any:
    """Return the function a name stands for, without decorators that say what they wrap."""
    address = parse_spec(spec)
    if address.source is Source.HUB or address.args or address.kwargs:
        raise ModelNotLoadable(spec, "it names no function", HELP)
    space = namespace_of(spec, address)
    found: Any = space
    for word in address.factory.split("."):
        found = getattr(found, word, None)
    found = plain(found)
    if isinstance(found, torch.nn.Module | type) or not callable(found):
        known = [
            name
            for name, value in vars(space).items()
            if callable(value) and getattr(plain(value), "__module__", None) == space.__name__
        ]
        what = "is no function" if found is not None else "is not there"
        words = f"{address.factory!r} {what} in {address.place}"
        raise ModelNotLoadable(spec, words, f"It has: {', '.join(known[:8]) or 'none'}.")
    return found


def called(spec: str, function: Any, call: FunctionCall, device: str) -> list[torch.Tensor]:
    """Call a function once on drawn tensors and return what it returns, in order; raises in one line what is wrong."""
    args, kwargs = filled(call, drawn(call, 0, device))
    try:
        with torch.no_grad():
            answer = function(*args, **kwargs)
    except USER_MISTAKES as error:
        problem = f"{spec.rpartition(':')[2]}({call.label()}) raises {said(error)}"
        raise InputsDoNotFit(spec, problem, "Give other shapes with --input, once per tensor.") from error
    answers = list(answer) if isinstance(answer, tuple | list) else [answer]
    if not answers or not all(isinstance(one, torch.Tensor) for one in answers):
        strange = next(
            (type(one).__name__ for one in answers if not isinstance(one, torch.Tensor)), "nothing"
        )
        problem = f"the function returns {strange}, not a tensor or a tuple of tensors"
        raise ModelNotLoadable(spec, problem, "Give a function that returns tensors.")
    return answers


def call_of(spec: str, function: Any, inputs: tuple[InputSpec, ...], device: str) -> FunctionCall:
    """Return the call that shapes on the command line describe."""
    if not inputs:
        remedy = "For example --input 1024,1024:fp32, once per tensor."
        raise InputsDoNotFit(spec, "no shapes are given", remedy)
    module = torch.nn.Module()
    module.forward = function  # where the names of arguments are looked up
    (one,) = from_specs(inputs, module, torch.float32)
    given = one.make(0).mapped(lambda tensor: tensor.to(torch.device(device)))
    try:
        args, kwargs = bound(function, given.args, given.kwargs)
    except TypeError as error:
        remedy = "Give --input once per tensor; NAME=SHAPE:TYPE goes to an argument by name."
        raise InputsDoNotFit(spec, str(error), remedy) from error
    return described(args, kwargs, with_values=False)


class FunctionModule(torch.nn.Module):
    """A function under one call, as a module of its tensors."""

    def __init__(self, function: Any, file: CallFile) -> None:
        super().__init__()
        self.function, self.call = function, file.call
        # Holds no data: a module's device is where its tensors are.
        self.register_buffer("place", torch.empty(0, device=torch.device(file.device)), persistent=False)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the function."""
        args, kwargs = filled(self.call, list(tensors))
        return self.function(*args, **kwargs)

    def sample_inputs(self, seed: int) -> tuple[torch.Tensor, ...]:
        """Return the tensors of a call."""
        return tuple(drawn(self.call, seed, str(self.place.device)))


def read_call(path: str) -> CallFile:
    """Return what a `call.json` holds."""
    return CallFile.model_validate_json(Path(path).read_text())


def build(path: str) -> FunctionModule:
    """Return the module of a `call.json`: the factory a run on a function is started with."""
    file = read_call(path)
    return FunctionModule(loaded_function(file.spec), file)
