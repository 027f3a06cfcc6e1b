"""A captured graph as C++: one pass over the rows for all stages that share them, loops the compiler vectorises.

Intermediates are floats and live no longer than their row. Sums are made of many partial ones, long ones of doubles.
Sizes and strides are written into the source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelwright.codegen.cpp_functions import FUNCTIONS, SPELLED
from kernelwright.codegen.indices import variable
from kernelwright.codegen.lowering import TYPES, Port, port_of, stages_of
from kernelwright.codegen.rows import ROW, STEP, TURN, Group, Loop, Step, Store, grouped, pieces, within
from kernelwright.codegen.sums import MOST_PRODUCTS
from kernelwright.codegen.text import called, expression_text, index_text
from kernelwright.codegen.values import Kind, Read, dense

GRAINS = (16384, 65536, 4096)
"""Elements from which threads are worth starting; the first is the default."""
SUMS = (32, 64, 16)
"""Partial sums side by side; the first is the default."""
SPAN = 4096
"""Elements whose sum may stay a float."""
ON_STACK = 8192
"""Elements of a row that are kept on the stack."""


def written(
    graph: Any,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    order: Sequence[int],
    most_products: int = MOST_PRODUCTS,
) -> str:
    """Return a graph as a C++ candidate; see `stages_of` for what it takes and raises."""
    groups = grouped(stages_of(graph, inputs, outputs, order, most_products), [port.name for port in outputs])
    body = "\n".join(RowWriter(group, outputs).text() for group in groups)
    for name, own in SPELLED.items():
        body = body.replace(name, own)
    return template(inputs, outputs, body, called(body, FUNCTIONS))


class RowWriter:
    """One group of stages as loops."""

    def __init__(self, group: Group, outputs: Sequence[Port]) -> None:
        self.group, self.outputs = group, outputs
        self.makers = {step.stage.name: step for step in group.steps}
        self.loop: Loop = group.loops[0]
        """The one that is being written."""

    def text(self) -> str:
        """Return the loops, and the buffers that others read."""
        group = self.group
        lines = [self._whole(step) for step in group.steps if self._is_own_buffer(step)]
        shares = f"if ({group.work} >= GRAIN)"
        head = f"for (int64_t {ROW} = 0; {ROW} < {group.rows}; ++{ROW}) {{"
        if group.is_flat and group.rows > 1:
            lines += [f"#pragma omp parallel for simd schedule(static) {shares}", head]
        elif group.rows > 1:
            lines += [f"#pragma omp parallel for schedule(static) {shares}", head]
        else:
            lines.append("{")
        lines += [f"    {line}" if not line.startswith("#") else line for line in self.row()]
        return "\n".join([*lines, "}"])

    def row(self) -> list[str]:
        """Return what is done in a row."""
        lines = []
        for loop in self.group.loops:
            self.loop = loop
            lines += self._loop()
        return lines

    def _is_own_buffer(self, step: Step) -> bool:
        name = step.stage.name
        return self.group.stores[name] is Store.WHOLE and port_of(name, self.outputs) is None

    def _whole(self, step: Step) -> str:
        sizes = "x".join(map(str, step.stage.shape)) or "one number"
        return f"std::vector<{_held(step)}> {step.stage.name}({max(1, step.stage.numel)});  // {sizes}"

    def _loop(self) -> list[str]:
        steps = self.loop.steps
        if steps[0].is_column:
            return self._column(steps[0])
        lines = [self._row_buffer(step) for step in steps if self._store(step) is Store.ROW]
        if any(step.stage.how for step in steps):
            return [*lines, *self._sums()]
        if self.loop.count == 1:
            return [*lines, *(line for step in steps for line in self._made(step))]
        for low, high in pieces(self.loop.steps):
            lines.append("#pragma omp simd")
            lines.append(f"for (int64_t {STEP} = {low}; {STEP} < {high}; ++{STEP}) {{")
            lines += [f"    {line}" for step in steps for line in self._made(_from_start(step, low, high))]
            lines.append("}")
        return lines

    def _store(self, step: Step) -> Store:
        return self.group.stores[step.stage.name]

    def _row_buffer(self, step: Step, kind: str = "") -> str:
        kind, name = kind or _held(step), f"{step.stage.name}_row"
        if step.inner > ON_STACK:
            return f"std::vector<{kind}> {name}({step.inner});"
        return f"alignas(64) {kind} {name}[{step.inner}];"

    def _sums(self) -> list[str]:
        """Return a loop that sums up, and whatever else is computed in it."""
        sums = [step for step in self.loop.steps if step.stage.how]
        lines = []
        for step in sums:
            fill = "{}" if step.stage.how == "sum" else ""
            lines.append(
                f"{_summed(step)} {step.stage.name}_parts[{self._lanes()}]{' = {}' if fill else ''};"
            )
            if not fill:
                lines.append(f"for (float& part : {step.stage.name}_parts) part = {_start(step)};")
        is_long = self.loop.count > SPAN and any(step.stage.how == "sum" for step in sums)
        if is_long:
            lines += [f"double {s.stage.name}_total = 0;" for s in sums if s.stage.how == "sum"]
        for low, high in pieces(self.loop.steps):
            lines += self._swept(low, high, sums if is_long else [])
        return [*lines, *(line for step in sums for line in self._ended(step, is_long))]

    def _lanes(self) -> str:
        """Return how many partial sums a loop has: with more than a few elements to each, it is the tuner's choice."""
        if self.loop.count >= 4 * max(SUMS[:2]):
            return "SUMS"
        return str(max(1, min(SUMS[0], 1 << max(0, self.loop.count.bit_length() - 2))))

    def _swept(self, low: int, high: int, long_sums: Sequence[Step]) -> list[str]:
        body = []
        for step in self.loop.steps:
            own = _from_start(step, low, high)
            if not step.stage.how:
                body += self._made(own)
                continue
            part, value = f"{step.stage.name}_parts[lane]", self._value(own)
            keeper = {"max": "larger", "min": "smaller"}.get(step.stage.how)
            body.append(f"{part} = {keeper}({part}, {value});" if keeper else f"{part} += {value};")
        ends = (f"{low}", f"{high}")
        lines = []
        if long_sums:
            lines.append(f"for (int64_t from = {low}; from < {high}; from += {SPAN}) {{")
            ends = ("from", f"from + {SPAN} < {high} ? from + {SPAN} : {high}")
        lines.append(f"swept<{self._lanes()}>({ends[0]}, {ends[1]}, [&](int64_t {STEP}, int lane) {{")
        lines += [f"    {one}" for one in body]
        lines.append("});")
        if long_sums:
            for step in long_sums:
                if step.stage.how == "sum":
                    name = step.stage.name
                    lines.append(f"{name}_total += folded({name}_parts);")
                    lines.append(f"for (auto& part : {name}_parts) part = 0;")
            lines.append("}")
        return lines

    def _ended(self, step: Step, is_long: bool) -> list[str]:
        name, how = step.stage.name, step.stage.how
        fold = {"sum": "folded", "max": "highest", "min": "lowest"}[how]
        total = f"{name}_total" if is_long and how == "sum" else f"{fold}({name}_parts)"
        if step.stage.divisor != 1:
            total = f"{total} / {step.stage.divisor}.0f"
        return self._kept(step, f"static_cast<{step.stage.kind}>({total})")

    def _column(self, step: Step) -> list[str]:
        """Return the loops of sums over others than the last axis: a row of sums at once."""
        name = f"{step.stage.name}_row"
        kind = "double" if step.turns > SPAN // 16 and _summed(step) == "float" else _summed(step)
        kind = "float" if step.stage.how != "sum" else kind
        keeper = {"max": "larger", "min": "smaller"}.get(step.stage.how)
        value = self._value(step)
        line = (
            f"{name}[{STEP}] = {keeper}({name}[{STEP}], {value});"
            if keeper
            else f"{name}[{STEP}] += {value};"
        )
        head = f"for (int64_t {STEP} = 0; {STEP} < {step.inner}; ++{STEP})"
        lines = [
            self._row_buffer(step, kind),
            f"{head} {name}[{STEP}] = {_start(step)};",
            f"for (int64_t {TURN} = 0; {TURN} < {step.turns}; ++{TURN})",
            "#pragma omp simd",
            f"    {head} {line}",
        ]
        total = f"{name}[{STEP}]" if step.stage.divisor == 1 else f"{name}[{STEP}] / {step.stage.divisor}"
        if self._store(step) is Store.WHOLE:
            return [*lines, f"{head} {self._place(step)} = {self._cast(step, total)};"]
        return [*lines, f"{head} {name}[{STEP}] = {total};"] if step.stage.divisor != 1 else lines

    def _made(self, step: Step) -> list[str]:
        return self._kept(step, self._value(step))

    def _kept(self, step: Step, value: str) -> list[str]:
        """Return the lines that keep a result where its readers find it."""
        name, store = step.stage.name, self._store(step)
        if store is Store.WHOLE and self._is_read_here(name):
            here = f"const {step.stage.kind} {name}_here = {value};"
            return [here, f"{self._place(step)} = {self._cast(step, f'{name}_here')};"]
        if store is Store.WHOLE:
            return [f"{self._place(step)} = {self._cast(step, value)};"]
        lines = [f"const {step.stage.kind} {name} = {value};"]
        return [*lines, f"{name}_row[{STEP}] = {name};"] if store is Store.ROW else lines

    def _is_read_here(self, name: str) -> bool:
        return any(read.name == name for step in self.loop.steps for read in step.reads)

    def _place(self, step: Step) -> str:
        return f"{step.stage.name}[{index_text(step.place, self._read)}]"

    def _cast(self, step: Step, value: str) -> str:
        port = port_of(step.stage.name, self.outputs)
        is_same = port is None or (port.dtype == "fp32" and not step.is_column)
        return value if is_same else f"static_cast<{TYPES[port.dtype][0]}>({value})"  # type: ignore[union-attr]

    def _value(self, step: Step) -> str:
        return expression_text(step.expression, self._read)

    def _read(self, read: Read) -> str:
        maker, store = self.makers.get(read.name), self.group.stores.get(read.name)
        if maker is not None and store is Store.WHOLE and maker in self.loop.steps:
            return f"{read.name}_here"
        if maker is None or store is Store.WHOLE:
            return f"{read.name}[{index_text(read.index, self._read)}]"
        if store is not Store.ROW or maker in self.loop.steps:
            return read.name
        own = read.index - variable(ROW, self.group.rows) * maker.inner
        return f"{read.name}_row[{index_text(own, self._read)}]"


def _from_start(step: Step, low: int, high: int) -> Step:
    """Return a step in a stretch of its loop, counted from the beginning of the row again."""
    own = within(step, low, high)
    if (low, high) == (0, step.count) or high - low == 1:
        return own
    back = {STEP: variable(STEP, step.count) - low}
    return replace(own, expression=own.expression.put(back), place=own.place.put(back))


def _held(step: Step) -> str:
    # vector<bool> has no elements of its own.
    return "uint8_t" if step.stage.kind is Kind.BOOL else step.stage.kind.value


def _summed(step: Step) -> str:
    return "float" if step.stage.kind is Kind.FLOAT or step.stage.how != "sum" else "int64_t"


def _start(step: Step) -> str:
    return {"sum": "0", "max": "-INFINITY", "min": "INFINITY"}[step.stage.how]


def _pointer(port: Port, const: str, body: str) -> str:
    """Return the line that takes a tensor's data."""
    kind = f"{const}{TYPES[port.dtype][0]}*"
    mark = "" if f"{port.name}[" in body else "[[maybe_unused]] "
    return f"    {mark}{kind} {port.name} = static_cast<{kind}>({port.name}_->data);\n"


def _listed(values: Sequence[int]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _params(body: str, more: Mapping[str, Sequence[int]]) -> str:
    known = {"SUMS": SUMS, "GRAIN": GRAINS, **more}
    used = {name: list(values) for name, values in known.items() if name in body}
    if not used:
        return ""
    written = ", ".join(f'"{name}": {values}' for name, values in used.items())
    macros = "".join(f"#ifndef {name}\n#define {name} {values[0]}\n#endif\n" for name, values in used.items())
    return f"/*kernelwright\nPARAMS = {{{written}}}\n*/\n\n{macros}\n"


def template(
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    body: str,
    functions: Sequence[str] = (),
    params: Mapping[str, Sequence[int]] | None = None,
    header: str = "kernelwright.h",
) -> str:
    """Return a candidate around a body: signature, checks and pointers are given; `params` beside the usual ones."""
    ports = [*inputs, *outputs]
    arguments = ",\n                         ".join(f"const kw_tensor* {port.name}_" for port in ports)
    shapes = "".join(
        f"    if (!is({port.name}_, {TYPES[port.dtype][1]}, {_listed(port.shape)}, "
        f"{_listed(dense(port.shape) if port.strides is None else port.strides)})) return KW_UNSUPPORTED_SHAPE;\n"
        for port in ports
    )
    pointers = "".join(_pointer(port, "const ", body) for port in inputs)
    pointers += "".join(_pointer(port, "", body) for port in outputs)
    inside = "".join(
        f"    {line}\n" if not line.startswith("#") else f"{line}\n" for line in body.splitlines()
    )
    made = "".join(f"{text}\n" for text in functions)
    return f"""#include "{header}"

#include <bit>
#include <cmath>
#include <initializer_list>
#include <vector>

{_params(body + made, params or {})}namespace {{

// Of this type, and of exactly these sizes and strides: no others are asked for.
bool is(const kw_tensor* tensor, int32_t dtype, std::initializer_list<int64_t> shape,
        std::initializer_list<int64_t> strides) {{
    if (tensor->dtype != dtype || tensor->ndim != static_cast<int32_t>(shape.size())) return false;
    for (int axis = 0; axis < tensor->ndim; ++axis) {{
        if (tensor->shape[axis] != shape.begin()[axis]) return false;
        if (tensor->shape[axis] > 1 && tensor->stride[axis] != strides.begin()[axis]) return false;
    }}
    return true;
}}

{made}}}  // namespace

extern "C" int kernel_fn({arguments}) {{
{shapes}{pointers}
{inside}    return KW_OK;
}}
"""
