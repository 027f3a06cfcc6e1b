"""`ModelNew` as a callable: built once, its parameters replaced by the reference's own for every call."""

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kernelwright.backends._tensors import tensors_at
from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case
from kernelwright.core.modules import INIT_INPUTS, arguments


def model_calls(
    model_class: Callable[..., Any],
    values: Mapping[str, ParamValue],
    cases: Sequence[Case],
    calls: Sequence[tuple[int, Mapping[str, int]]],
    device: str,
) -> list[Callable[[], Any]]:
    """Return one closure per call of a model built with the reference's init inputs."""
    given = ast.literal_eval(str(values.get(INIT_INPUTS, "[]")))
    model = model_class(*given).to(device)
    made: list[Callable[[], Any]] = []
    for index, addresses in calls:
        case = cases[index]
        placed, state = arguments(case, tensors_at(case.inputs, addresses, device))
        made.append(partial(_forward, model, _matched(model, state), placed))
    return made


def _matched(model: Any, state: Mapping[str, Any]) -> list[tuple[Any, Any, bool]]:
    """Return each entry of the model's own state with the tensor that replaces it: by name, else by position."""
    own = model.state_dict(keep_vars=True)
    keys = list(own)
    if set(keys) != set(state):
        shapes = [tuple(tensor.shape) for tensor in own.values()]
        if shapes != [tuple(tensor.shape) for tensor in state.values()]:
            raise ValueError(
                f"the state of ModelNew ({', '.join(keys) or 'none'}) matches that of Model "
                f"({', '.join(state) or 'none'}) neither by name nor by position"
            )
        state = dict(zip(keys, state.values(), strict=True))
    parameters = {id(parameter) for parameter in model.parameters()}
    return [(own[key], state[key], id(own[key]) in parameters) for key in keys]


def _forward(model: Any, matched: Sequence[tuple[Any, Any, bool]], placed: Sequence[Any]) -> Any:
    for own, given, is_parameter in matched:
        # A buffer such as a running mean may be written in place; what the judge lent may not.
        own.data = given if is_parameter else given.clone()
    return model(*placed)
