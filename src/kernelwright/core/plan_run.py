"""Plans carried out: the checked tree of a `plan` is walked over plain data, and its answer becomes a `LaunchPlan`.

Nothing of the candidate is imported or executed by Python; `core/plan_language.py` says what a plan may be written in.
"""

import ast
import math
import operator
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.plan import LaunchPlan
from kernelwright.core.plan_language import (
    BINARY,
    COMPARE,
    FUNCTIONS,
    MAX_INTEGER,
    UNARY,
    PlanFault,
    is_param,
)

MAX_PARTS = 4096
"""Values and characters one value may hold: a plan of 64 launches needs half of it; doubling soon exceeds it."""


def case_data(case: Case) -> dict[str, Any]:
    """Return what a plan sees of a case: `case.axes.rows`, `case.scalars.eps`, `case.tensors.x.strides[0]`."""
    tensors = {
        spec.name: {
            "shape": spec.shape,
            "strides": spec.element_strides,
            "dtype": spec.dtype.value,
            "itemsize": spec.dtype.itemsize,
            "offset": spec.offset,
            "numel": spec.numel,
        }
        for spec in (*case.inputs, *case.outputs)
    }
    return {
        "axes": dict(case.axes),
        "scalars": dict(case.scalars),
        "dtype": case.dtype.value,
        "itemsize": case.dtype.itemsize,
        "tensors": tensors,
    }


def device_data(device: Device) -> dict[str, Any]:
    """Return what a plan sees of a device."""
    return device.model_dump(mode="json", include={"kind", "arch", "units", "cache_bytes", "shared_bytes"})


class PlanDeclined(PlanFault):
    """A clean, named refusal: the plan returned `{"unsupported": reason}` for this case."""


def _is_too_big(value: Any) -> bool:
    """Tell whether a value holds more than `MAX_PARTS` values and characters, shared ones counted each time."""
    waiting, parts = [value], 0
    while waiting and parts <= MAX_PARTS:
        item = waiting.pop()
        parts += 1 + (len(item) if isinstance(item, str) else 0)
        if isinstance(item, tuple | list):
            waiting.extend(item[: MAX_PARTS + 1])
        elif isinstance(item, dict):
            waiting.extend(item.values())
            waiting.extend(item)
    return parts > MAX_PARTS


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Interpreter:
    """Evaluates a checked function over plain data."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def run(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            match statement:
                case ast.Return(value=value):
                    raise _Returned(None if value is None else self._bounded(value))
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, self._bounded(value))
                case ast.If(test=test, body=body, orelse=orelse):
                    self.run(body if self.value(test) else orelse)
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    pass
                case _:
                    raise PlanFault(f"{type(statement).__name__} cannot stand here", statement)

    def _bounded(self, node: ast.expr) -> Any:
        """Return a value no larger than a plan can need: names bound to doubled values would grow without end."""
        value = self.value(node)
        if _is_too_big(value):
            raise PlanFault(f"a value of more than {MAX_PARTS} parts", node)
        return value

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple):
            if not isinstance(value, tuple | list) or len(value) != len(target.elts):
                raise PlanFault(f"cannot unpack {reprlib.repr(value)} into {len(target.elts)} names", target)
            for inner, part in zip(target.elts, value, strict=True):
                self._assign(inner, part)
        else:
            raise PlanFault("only names and tuples of names can be assigned", target)

    def value(self, node: ast.expr) -> Any:
        try:
            result = self._value(node)
        except PlanFault:
            raise
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise PlanFault(f"{type(error).__name__}: {error}", node) from error
        if isinstance(result, str | tuple | list) and len(result) > MAX_PARTS:
            raise PlanFault(f"a value of more than {MAX_PARTS} parts", node)
        if isinstance(result, str) and not is_param(result):
            raise PlanFault("text that no file can hold", node)
        if isinstance(result, int) and abs(result) > MAX_INTEGER:
            raise PlanFault(f"integer beyond 64 bits in {ast.unparse(node)!r}", node)
        if isinstance(result, float) and not math.isfinite(result):
            raise PlanFault(f"non-finite number in {ast.unparse(node)!r}", node)
        return result

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name not in self.names:
                    raise PlanFault(f"unknown name {name!r}", node)
                return self.names[name]
            case ast.Tuple(elts=elts):
                return tuple(self.value(item) for item in elts)
            case ast.List(elts=elts):
                return [self.value(item) for item in elts]
            case ast.Dict(keys=keys, values=values):
                if any(key is None for key in keys):
                    raise PlanFault("** in a dict is outside the plan subset", node)
                return {
                    self.value(key): self.value(item) for key, item in zip(keys, values, strict=True) if key
                }
            case ast.Attribute(value=inner, attr=name):
                return self._lookup(self.value(inner), name, node)
            case ast.Subscript(value=inner, slice=index):
                return self._lookup(self.value(inner), self.value(index), node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test) else orelse)
            case ast.Call(func=ast.Name(id=name), args=args):
                return FUNCTIONS[name](*(self.value(arg) for arg in args))
            case _:
                return self._operation(node)

    def _operation(self, node: ast.expr) -> Any:
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self.value(left), self.value(right)
                # Sequence repetition would let a short plan ask for gigabytes; shifts are bounded for the same reason.
                if isinstance(op, ast.Mult) and not (
                    isinstance(a, int | float) and isinstance(b, int | float)
                ):
                    raise PlanFault("* works on numbers only", node)
                if isinstance(op, ast.LShift) and b > 62:
                    raise PlanFault("shift beyond 62 bits", node)
                if isinstance(op, ast.Mod) and isinstance(a, str):
                    raise PlanFault("% works on numbers only", node)
                return BINARY[type(op)](a, b)
            case ast.UnaryOp(op=op, operand=operand):
                return UNARY[type(op)](self.value(operand))
            case ast.BoolOp(op=ast.And(), values=values):
                return self._first(values, is_wanted=operator.not_)
            case ast.BoolOp(values=values):
                return self._first(values, is_wanted=bool)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                current = self.value(left)
                for relation, right in zip(ops, comparators, strict=True):
                    following = self.value(right)
                    if not COMPARE[type(relation)](current, following):
                        return False
                    current = following
                return True
            case _:
                raise PlanFault(f"{type(node).__name__} is outside the plan subset", node)

    def _first(self, values: list[ast.expr], is_wanted: Callable[[Any], bool]) -> Any:
        """Return the first operand that decides, else the last, as Python's `and` and `or` do."""
        found = None
        for item in values:
            if is_wanted(found := self.value(item)):
                break
        return found

    def _lookup(self, holder: Any, key: Any, node: ast.expr) -> Any:
        if isinstance(holder, dict):
            if key not in holder:
                raise PlanFault(f"no {reprlib.repr(key)} here; there are {', '.join(map(str, holder))}", node)
            return holder[key]
        if isinstance(holder, tuple | list) and isinstance(key, int):
            return holder[key]
        raise PlanFault(f"cannot look up {reprlib.repr(key)} in a {type(holder).__name__}", node)


def _argument(item: Any, buffers: frozenset[str], maps: frozenset[str]) -> dict[str, Any]:
    """Return the schema's form of one argument: a name, a number, or a (type, number) pair."""
    if isinstance(item, str):
        if item in maps:
            return {"kind": "tensor_map", "name": item}
        if item in buffers:
            return {"kind": "buffer", "name": item}
        raise PlanFault(
            f"argument {item!r} is no buffer of the case and no workspace or tensor map of the plan"
        )
    if isinstance(item, tuple | list) and len(item) == 2:
        return {"kind": "scalar", "type": item[0], "value": item[1]}
    if isinstance(item, bool):
        return {"kind": "scalar", "type": "i1", "value": item}
    if isinstance(item, int):
        return {"kind": "scalar", "type": "i32" if -(1 << 31) <= item < 1 << 31 else "i64", "value": item}
    if isinstance(item, float):
        return {"kind": "scalar", "type": "fp32", "value": item}
    raise PlanFault(f"argument {reprlib.repr(item)} is neither a name nor a number")


def _three(value: Any, what: str, least: int = 0) -> tuple[int, int, int]:
    """Return a grid, block or cluster with its missing axes as ones."""
    parts = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(part, int) and part >= least for part in parts):
        raise PlanFault(
            f"{what} must be one to three integers of at least {least}, not {reprlib.repr(value)}"
        )
    return (*parts, 1, 1)[:3]


LAUNCH_KEYS = {"kernel", "grid", "block", "cluster", "shared_bytes", "args", "constants"}


def to_plan(returned: Any, case: Case) -> LaunchPlan:
    """Return the `LaunchPlan` of what a plan function returned; keys beyond the schema's become compiler options."""
    if isinstance(returned, dict) and isinstance(reason := returned.get("unsupported"), str):
        raise PlanDeclined(reason)
    if not isinstance(returned, dict) or "launches" not in returned:
        raise PlanFault("plan must return a dict with 'launches'")
    spaces, maps = returned.get("workspaces", []), returned.get("tensor_maps", [])
    try:
        own = frozenset(space["name"] for space in spaces)
        map_names = frozenset(item["name"] for item in maps)
        buffers = frozenset(spec.name for spec in (*case.inputs, *case.outputs)) | own
        launches = []
        for launch in returned["launches"]:
            entry = {key: value for key, value in launch.items() if key in LAUNCH_KEYS}
            entry["grid"] = _three(launch["grid"], "grid")
            if launch.get("block") is not None:
                entry["block"] = _three(launch["block"], "block", least=1)
            if "cluster" in launch:
                entry["cluster"] = _three(launch["cluster"], "cluster", least=1)
            entry["args"] = [_argument(item, buffers, map_names) for item in launch.get("args", [])]
            entry["meta"] = {key: value for key, value in launch.items() if key not in LAUNCH_KEYS}
            if all(entry["grid"]):
                launches.append(entry)
        unknown = returned.keys() - {"launches", "workspaces", "tensor_maps"}
        if unknown:
            raise PlanFault(f"unknown keys {sorted(unknown)} in the returned plan")
        plan = LaunchPlan.model_validate({"launches": launches, "workspaces": spaces, "tensor_maps": maps})
        plan.check(frozenset(spec.name for spec in (*case.inputs, *case.outputs)))
    except PlanFault:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        raise PlanFault(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PlanFault(f"the returned plan is malformed: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise PlanFault(str(error)) from error
    return plan


def run_plan(
    function: ast.FunctionDef, case: Case, params: Mapping[str, ParamValue], device: Device
) -> LaunchPlan:
    """Return the launches a checked plan function asks for."""
    interpreter = _Interpreter(
        {"case": case_data(case), "params": dict(params), "device": device_data(device)}
    )
    try:
        interpreter.run(function.body)
    except _Returned as done:
        return to_plan(done.value, case)
    except RecursionError as error:
        raise PlanFault("expressions nested too deeply", function) from error
    raise PlanFault("plan returned nothing", function)
