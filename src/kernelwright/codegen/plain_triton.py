"""A captured graph as Triton: a kernel per group of stages, a tile of whole rows or a block of elements per program.

It serves what reads a row in order: pointwise work and sums over the last axis. Whatever else has no plain form here.
"""

import re
from collections.abc import Sequence
from typing import Any

from kernelwright.codegen.indices import variable
from kernelwright.codegen.lowering import Port, port_of, stages_of
from kernelwright.codegen.rows import ROW, STEP, Group, Loop, Step, Store, grouped
from kernelwright.codegen.sums import MOST_PRODUCTS
from kernelwright.codegen.text import called, index_text
from kernelwright.codegen.triton_functions import FUNCTIONS, HEAD, SPELLED
from kernelwright.codegen.values import Counted, Expression, Kind, Made, NotPlain, Read

LONGEST = 1 << 16
"""Elements of a row that one program holds."""
TILE = 1024
"""Elements of a program unless a row is longer."""
BLOCKS, WARPS = (1024, 2048, 512, 4096), (4, 8, 2)
"""Elements and warps of a program; the first are the defaults."""
POINTED = {Kind.FLOAT: ("float32", 4), Kind.INT: ("int64", 8), Kind.BOOL: ("int8", 1)}
NUMBER = re.compile(r"(\d)f\b")


def written(
    graph: Any,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    order: Sequence[int],
    most_products: int = MOST_PRODUCTS,
) -> str:
    """Return a graph as a Triton candidate; see `stages_of` for what it takes and raises."""
    stages = stages_of(graph, inputs, outputs, order, most_products)
    groups = grouped(stages, [port.name for port in outputs])
    buffers = {port.name: port.tensor or f"input:{place}" for place, port in enumerate(inputs)}
    spaces: dict[str, Kind] = {}
    kernels, launches, scratch = [], [], []
    for number, group in enumerate(groups):
        writer = _Writer(group, spaces)
        read = [name for name in buffers if writer.is_read(name)]
        made = [step.stage.name for step in group.steps if group.stores[step.stage.name] is Store.WHOLE]
        for step in group.steps:
            if step.stage.name in made and port_of(step.stage.name, outputs) is None:
                spaces[step.stage.name] = step.stage.kind
                size = step.stage.numel * POINTED[step.stage.kind][1]
                scratch.append(f'            {{"name": "{step.stage.name}", "nbytes": {size}}},\n')
        kernels.append(writer.text(f"group{number}", [*read, *made]))
        args = ", ".join(f'"{buffers.get(name, name)}"' for name in (*read, *made))
        launches.append(_launch(number, group, args))
        buffers |= {name: name for name in made}
    body = "\n\n".join(kernels)
    names = re.sub(r", (larger|smaller)\)", r" \1()", body)  # handed on to a reduction, not called
    functions = "".join(f"{text}\n\n\n" for text in called(names, FUNCTIONS))
    return _file(launches, "".join(scratch), functions + body)


def _launch(number: int, group: Group, args: str) -> str:
    size, grid = ("BLOCK", f"cdiv({group.rows}, params.BLOCK)")
    if not group.is_flat:
        size, grid = "ROWS", f"cdiv({group.rows}, params.ROWS * {_rows(group)})"
    scale = "" if group.is_flat else f" * {_rows(group)}"
    return (
        f'            {{"kernel": "group{number}", "grid": ({grid},), "args": [{args}],\n'
        f'             "constants": {{"{size}": params.{size}{scale}}}, "num_warps": params.num_warps}},'
    )


def _rows(group: Group) -> int:
    """Return how many rows of a group fill a program."""
    return max(1, TILE // _power(max(loop.count for loop in group.loops)))


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _file(launches: Sequence[str], scratch: str, body: str) -> str:
    calls = "\n".join(launches)
    sizes = {"BLOCK": list(BLOCKS), "ROWS": [1, 2, 4]}
    params = {name: values for name, values in sizes.items() if f"params.{name}" in calls}
    listed = ", ".join(f'"{name}": {values}' for name, values in {**params, "num_warps": list(WARPS)}.items())
    return f"""{HEAD}
PARAMS = {{{listed}}}


{body}

def plan(case, params, device):
    return {{
        "workspaces": [
{scratch}        ],
        "launches": [
{calls}
        ],
    }}
"""


class _Writer:
    """One group of stages as a kernel."""

    def __init__(self, group: Group, spaces: dict[str, Kind]) -> None:
        self.group, self.spaces = group, spaces
        self.makers = {step.stage.name: step for step in group.steps}
        self.loop: Loop = group.loops[0]
        """The one that is being written."""
        self.conditions: tuple[tuple[str, frozenset[str]], ...] = ()
        """What must hold where an element is read, with the variables it depends on."""
        if any(step.is_column for step in group.steps):
            raise NotPlain("sums over other axes than the last, in Triton")
        if max(loop.count for loop in group.loops) > LONGEST:
            raise NotPlain(f"rows of more than {LONGEST} elements, in Triton")

    def is_read(self, name: str) -> bool:
        """Tell whether the group reads a buffer that it does not make."""
        reads = [read for step in self.group.steps for read in step.reads]
        return name not in self.makers and any(read.name == name for read in reads)

    def text(self, name: str, given: Sequence[str]) -> str:
        """Return the kernel."""
        size = "BLOCK" if self.group.is_flat else "ROWS"
        lines = ["@triton.jit", f"def {name}({', '.join(given)}, {size}: tl.constexpr):"]
        body = [
            f"{one} = {one}.to(tl.pointer_type(tl.{POINTED[self._kind(one)][0]}))"
            for one in given
            if one in self.spaces or (one in self.makers and not one.startswith("out"))
        ]
        wide = ".to(tl.int64)" if max(step.stage.work for step in self.group.steps) >= 1 << 31 else ""
        place = f"tl.program_id(0){wide} * {size} + tl.arange(0, {size})"
        body.append(f"{ROW} = {place}" if self.group.is_flat else f"{ROW} = ({place})[:, None]")
        counts = dict.fromkeys(loop.count for loop in self.group.loops if loop.count > 1)
        body += [f"{STEP}{count} = tl.arange(0, {_power(count)})[None, :]" for count in counts]
        for loop in self.group.loops:
            self.loop = loop
            for step in loop.steps:
                body += self._step(step)
        return "\n".join([*lines, *(f"    {line}" for line in body), ""])

    def _kind(self, name: str) -> Kind:
        return self.spaces.get(name) or self.makers[name].stage.kind

    def _step(self, step: Step) -> list[str]:
        name, value = step.stage.name, self._say(step.expression)
        if step.stage.how:
            mask = self._mask(frozenset((ROW, STEP)))
            fill = {"sum": "0", "max": 'float("-inf")', "min": 'float("inf")'}[step.stage.how]
            value = f"tl.where({mask}, {value}, {fill})"
            if step.stage.how == "sum":
                value = f"tl.sum({value}, axis=1)[:, None]"
            else:
                value = (
                    f"tl.reduce({value}, 1, {'larger' if step.stage.how == 'max' else 'smaller'})[:, None]"
                )
            value = value if step.stage.divisor == 1 else f"{value} / {step.stage.divisor}.0"
        lines = [f"{name}_value = {value}"]
        if self.group.stores[name] is Store.WHOLE:
            place = index_text(step.place, self._read, "//")
            mask = self._mask(step.place.names | {ROW})
            lines.append(f"tl.store({name} + {self._spelled(place)}, {name}_value, mask={mask})")
        return lines

    def _spelled(self, place: str) -> str:
        """Return an index with the place in a row as this loop calls it."""
        return re.sub(rf"\b{STEP}\b", f"{STEP}{self.loop.count}", place)

    def _mask(self, names: frozenset[str]) -> str:
        """Return what must hold for an element that depends on these variables."""
        parts = [f"({ROW} < {self.group.rows})"] if ROW in names else []
        if STEP in names and self.loop.count > 1 and self.loop.count != _power(self.loop.count):
            parts.append(f"({STEP}{self.loop.count} < {self.loop.count})")
        elif STEP in names and self.loop.count > 1:
            parts.append(f"({STEP}{self.loop.count} >= 0)")
        return " & ".join([*parts, *(text for text, _ in self.conditions)])

    def _read(self, read: Read) -> str:
        if (maker := self.makers.get(read.name)) is not None:
            own = read.index - variable(ROW, self.group.rows) * maker.inner
            if own != variable(STEP, maker.inner) or (maker.inner > 1 and maker.inner != self.loop.count):
                raise NotPlain("a row that is read out of order, in Triton")
            return f"{read.name}_value"
        place = self._spelled(index_text(read.index, self._read, "//"))
        needed = frozenset(name for _, names in self.conditions for name in names) - read.index.names
        place += "".join(f" + 0 * {self._spelled(name)}" for name in sorted(needed))
        mask = self._mask(read.index.names | needed)
        return f"tl.load({read.name} + ({place}){f', mask={mask}' if mask else ''})"

    def _say(self, expression: Expression) -> str:
        """Return an expression as Triton writes it."""
        if isinstance(expression, Read):
            return self._read(expression)
        if isinstance(expression, Counted):
            return f"({self._spelled(index_text(expression.index, self._read, '//'))})"
        if isinstance(expression, Made):
            return _dialect(expression.text).format(*(self._say(one) for one in expression.given))
        test = f"(({self._spelled(index_text(expression.index, self._read, '//'))}) < {expression.below})"
        before, names = self.conditions, expression.index.names
        self.conditions = (*before, (test, names))
        first = self._say(expression.first)
        self.conditions = (*before, (test.replace(") < ", ") >= "), names))
        then = self._say(expression.then)
        self.conditions = before
        return f"tl.where({test}, {first}, {then})"


def _dialect(text: str) -> str:
    """Return a piece of C++ as Triton writes it."""
    for old, new in SPELLED.items():
        text = text.replace(old, new)
    text = NUMBER.sub(r"\1", text)
    if "std::" in text or "?" in text:
        raise NotPlain(f"{text.split('(')[0]}, in Triton")
    return text
