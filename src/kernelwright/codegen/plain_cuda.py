"""A captured graph as CUDA C++: a kernel per group of stages, and the plan that launches them.

A group without rows is a thread per few neighbouring elements, moved in one instruction. A group of rows is a team of
threads per row: what it computes stays in their registers, sums are shared over the team.
"""

import math
from collections.abc import Sequence
from typing import Any

from kernelwright.codegen.indices import Index, variable
from kernelwright.codegen.lowering import TYPES, Port, port_of, stages_of
from kernelwright.codegen.operations import HELPERS
from kernelwright.codegen.rows import ROW, STEP, TURN, Group, Loop, Step, Store, grouped
from kernelwright.codegen.sums import MOST_PRODUCTS
from kernelwright.codegen.text import called, expression_text, index_text
from kernelwright.codegen.values import Kind, NotPlain, Read

MOST_LAUNCHES = 64
"""As many as a plan may hold."""
SHARED = 40_000
"""Bytes of a row's buffers that a block keeps in shared memory."""
THREADS, VECTORS = (256, 128, 512, 1024), (4, 2, 8, 1)
"""Threads of a block, and elements a thread moves at once; the first are the defaults."""
NAMES = {"kw_fp16": "__half", "kw_bf16": "__nv_bfloat16", "std::abs(": "fabsf(", "std::": ""}
"""How CUDA spells what C++ spells otherwise."""
BYTES = {Kind.FLOAT: 4, Kind.INT: 8, Kind.BOOL: 1}
HEAD = """using int64_t = kw::i64;
using int32_t = int;
using uint8_t = unsigned char;
#define INFINITY kw::infinity()
#define NAN __int_as_float(0x7fffffff)

struct Least {
    __device__ float operator()(float a, float b) const { return a != a || a < b ? a : b; }
};
// Neighbours that are moved in one instruction.
template <typename T> struct alignas(sizeof(T) * VECTOR) Many {
    T at[VECTOR];
};
"""


def written(
    graph: Any,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    order: Sequence[int],
    most_products: int = MOST_PRODUCTS,
) -> str:
    """Return a graph as a CUDA candidate; see `stages_of` for what it takes and raises."""
    groups = grouped(stages_of(graph, inputs, outputs, order, most_products), [port.name for port in outputs])
    if len(groups) > MOST_LAUNCHES:
        raise NotPlain(f"a function of {len(groups)} stages")
    kernels, launches, spaces = [], [], []
    buffers = {port.name: port.tensor or f"input:{place}" for place, port in enumerate(inputs)}
    types = {port.name: TYPES[port.dtype][0] for port in (*inputs, *outputs)}
    vectors = _vectors(groups, [*inputs, *outputs])
    for number, group in enumerate(groups):
        writer = _Writer(group, outputs, types, _is_large((*inputs, *outputs), group))
        kernels.append(writer.text(f"group{number}", [name for name in buffers if writer.is_read(name)]))
        made = [step.stage.name for step in writer.whole]
        read = [name for name in buffers if writer.is_read(name)]
        launches.append(_launch(number, group, [buffers.get(name, name) for name in (*read, *made)]))
        for step in writer.whole:
            buffers[step.stage.name] = step.stage.name
            if port_of(step.stage.name, outputs) is None:
                size = step.stage.numel * BYTES[step.stage.kind]
                spaces.append(f'            {{"name": "{step.stage.name}", "nbytes": {size}}},')
    body = "\n".join(kernels)
    functions = "".join(f"__device__ {text}\n" for text in called(body, HELPERS))
    text = _file(launches, spaces, functions + "\n" + body, vectors)
    for old, new in NAMES.items():
        text = text.replace(old, new)
    return text


def _is_large(ports: Sequence[Port], group: Group) -> bool:
    """Tell whether an index may exceed 32 bits."""
    sizes = [math.prod(port.shape) for port in ports] + [step.stage.work for step in group.steps]
    return max(sizes) >= 1 << 31


def _vectors(groups: Sequence[Group], ports: Sequence[Port]) -> list[int]:
    """Return how many neighbours a thread may move at once: sizes and addresses must be multiples of it."""
    sizes = [group.rows for group in groups if group.is_flat] + [port.offset for port in ports]
    return [width for width in VECTORS if not any(size % width for size in sizes)]


def _launch(number: int, group: Group, names: Sequence[str]) -> str:
    args = ", ".join(f'"{name}"' for name in names)
    if group.is_flat:
        grid = f"cdiv({group.rows}, params.THREADS * params.VECTOR)"
        size, constants = "params.THREADS", '"THREADS": params.THREADS, "TEAMS": 1'
    else:
        longest = max(loop.count for loop in group.loops)
        team = f"min(params.THREADS, max(32, next_power_of_2(cdiv({longest}, 4))))"
        teams = math.gcd(group.rows, 8)
        grid = f"{group.rows} // min({teams}, max(1, 256 // team{number}))"
        size = f"team{number} * min({teams}, max(1, 256 // team{number}))"
        constants = f'"THREADS": team{number}, "TEAMS": min({teams}, max(1, 256 // team{number}))'
        return (
            f"team{number} = {team}\x00"
            f'{{"kernel": "group{number}", "grid": ({grid},), "block": ({size},), "args": [{args}],\n'
            f'             "constants": {{{constants}, "VECTOR": 1}}}},'
        )
    return (
        f'\x00{{"kernel": "group{number}", "grid": ({grid},), "block": ({size},), "args": [{args}],\n'
        f'             "constants": {{{constants}, "VECTOR": params.VECTOR}}}},'
    )


def _file(launches: Sequence[str], spaces: Sequence[str], body: str, vectors: Sequence[int]) -> str:
    scratch = "".join(f"{line}\n" for line in spaces)
    teams = "".join(f"    {before}\n" for one in launches if (before := one.split("\x00")[0]))
    calls = "\n".join(f"            {one.split(chr(0))[1]}" for one in launches)
    vector = f', "VECTOR": {list(vectors)}' if "params.VECTOR" in calls else ""
    return f"""#include "kernelwright.cuh"

/*kernelwright
PARAMS = {{"THREADS": {list(THREADS)}{vector}}}

def plan(case, params, device):
{teams}    return {{
        "workspaces": [
{scratch}        ],
        "launches": [
{calls}
        ],
    }}
*/

{HEAD}
{body}"""


class _Writer:
    """One group of stages as a kernel."""

    def __init__(self, group: Group, outputs: Sequence[Port], types: dict[str, str], is_large: bool) -> None:
        self.group, self.outputs, self.types = group, outputs, types
        self.makers = {step.stage.name: step for step in group.steps}
        self.integer = "int64_t" if is_large else "int"
        self.whole = [step for step in group.steps if group.stores[step.stage.name] is Store.WHOLE]
        for step in self.whole:
            types.setdefault(step.stage.name, str(step.stage.kind))
        self.loop: Loop = group.loops[0]
        """The one that is being written."""
        self.shared = {step.stage.name for step in group.steps if self._is_shared(step)}
        if sum(4 * 8 * self.makers[name].inner for name in self.shared) > SHARED:
            raise NotPlain("rows too long for shared memory")

    def is_read(self, name: str) -> bool:
        """Tell whether the group reads a buffer that it does not make."""
        return name not in self.makers and any(
            read.name == name for step in self.group.steps for read in step.reads
        )

    def _is_shared(self, step: Step) -> bool:
        """Tell whether a thread reads elements of a row that another thread makes."""
        if self.group.stores[step.stage.name] is not Store.ROW:
            return False
        reads = [read for one in self.group.steps for read in one.reads if read.name == step.stage.name]
        return any(self._own(read) != variable(STEP, step.inner) for read in reads)

    def _is_awaited(self, step: Step) -> bool:
        """Tell whether threads of the group may read what others of them make."""
        is_read = any(read.name == step.stage.name for one in self.group.steps for read in one.reads)
        return step.stage.name in self.shared or (step in self.whole and is_read)

    def _own(self, read: Read) -> Index:
        """Return the place of an element in its row."""
        return read.index - variable(ROW, self.group.rows) * self.makers[read.name].inner

    def text(self, name: str, read: Sequence[str]) -> str:
        """Return the kernel."""
        given = [f"const {self.types[one]}* __restrict__ {one}" for one in read]
        given += [f"{self.types[step.stage.name]}* __restrict__ {step.stage.name}" for step in self.whole]
        head = f'extern "C" __global__ void __launch_bounds__(THREADS * TEAMS) {name}({", ".join(given)}) {{'
        lines = self._flat() if self.group.is_flat else self._rows()
        inside = [f"    {line}" if not line.startswith("#") else line for line in lines]
        return "\n".join([f"#ifdef KW_KERNEL_{name}", head, *inside, "}", "#endif", ""])

    def _flat(self) -> list[str]:
        """Return a thread's few neighbours."""
        row = variable(ROW, self.group.rows)
        near = {read.name: read for step in self.group.steps for read in step.reads if read.index == row}
        near = {name: read for name, read in near.items() if name not in self.makers}
        lines = [
            "const int64_t first = (int64_t(blockIdx.x) * THREADS + threadIdx.x) * VECTOR;",
            f"if (first >= {self.group.rows}) return;",
        ]
        for name in near:
            kind = self.types[name]
            lines.append(
                f"const Many<{kind}> {name}_near = *reinterpret_cast<const Many<{kind}>*>({name} + first);"
            )
        lines += [f"Many<{self.types[s.stage.name]}> {s.stage.name}_near;" for s in self.whole]
        lines += ["#pragma unroll", "for (int k = 0; k < VECTOR; ++k) {"]
        lines.append(f"    const {self.integer} {ROW} = first + k;")

        def reading(read: Read) -> str:
            is_whole = self.group.stores.get(read.name) is Store.WHOLE
            if read.index == row and (read.name in near or is_whole):
                return f"{read.name}_near.at[k]"
            if read.name in self.makers:
                return read.name
            return f"{read.name}[{index_text(read.index, reading)}]"

        for step in self.group.steps:
            value, name = expression_text(step.expression, reading), step.stage.name
            if step in self.whole:
                lines.append(f"    {name}_near.at[k] = {self._cast(step, value)};")
            else:
                lines.append(f"    const {step.stage.kind} {name} = {value};")
        lines.append("}")
        for step in self.whole:
            kind, name = self.types[step.stage.name], step.stage.name
            lines.append(f"*reinterpret_cast<Many<{kind}>*>({name} + first) = {name}_near;")
        return lines

    def _rows(self) -> list[str]:
        """Return a team's row."""
        sums = sum(bool(step.stage.how) and not step.is_column for step in self.group.steps)
        lines = ["const int lane = threadIdx.x % THREADS, team = threadIdx.x / THREADS;"]
        lines.append(f"const {self.integer} {ROW} = {self.integer}(blockIdx.x) * TEAMS + team;")
        if sums:
            lines.append(f"__shared__ float scratch[{sums}][32];")
        used = 0
        for loop in self.group.loops:
            self.loop = loop
            for step in self.loop.steps:
                if self.group.stores[step.stage.name] is Store.ROW:
                    lines.append(self._buffer(step))
            totals = [step for step in self.loop.steps if step.stage.how and not step.is_column]
            lines += [f"float {step.stage.name}_part = {_start(step)};" for step in totals]
            lines += self._loop(totals)
            for step in totals:
                lines += self._total(step, used)
                used += 1
            if any(self._is_awaited(step) for step in self.loop.steps):
                lines.append("__syncthreads();")
        return lines

    def _buffer(self, step: Step) -> str:
        kind, name = step.stage.kind, f"{step.stage.name}_row"
        if step.stage.name in self.shared:
            return f"__shared__ {kind} {name}[TEAMS][{step.inner}];"
        return f"{kind} {name}[({step.inner} + THREADS - 1) / THREADS];"

    def _loop(self, totals: Sequence[Step]) -> list[str]:
        count, body = self.loop.count, []
        for step in self.loop.steps:
            if step in totals:
                part, value = f"{step.stage.name}_part", expression_text(step.expression, self._read)
                keeper = {"max": "larger", "min": "smaller"}.get(step.stage.how)
                body.append(f"{part} = {keeper}({part}, {value});" if keeper else f"{part} += {value};")
            elif step.is_column:
                body += self._column(step)
            else:
                body += self._kept(step, expression_text(step.expression, self._read))
        if count == 1 and not totals:
            return body
        lines = [
            "#pragma unroll",
            f"for (int k = 0; k < ({count} + THREADS - 1) / THREADS; ++k) {{",
            f"    const int {STEP} = lane + k * THREADS;",
            f"    if ({STEP} < {count}) {{",
        ]
        return [*lines, *(f"        {line}" for line in body), "    }", "}"]

    def _column(self, step: Step) -> list[str]:
        """Return the sum of one place of a row over others than its own axis."""
        part, value = f"{step.stage.name}_part", expression_text(step.expression, self._read)
        keeper = {"max": "larger", "min": "smaller"}.get(step.stage.how)
        line = f"{part} = {keeper}({part}, {value});" if keeper else f"{part} += {value};"
        kind = "float" if step.stage.kind is Kind.FLOAT or keeper else "int64_t"
        lines = [
            f"{kind} {part} = {_start(step)};",
            f"for (int {TURN} = 0; {TURN} < {step.turns}; ++{TURN}) {line}",
        ]
        total = part if step.stage.divisor == 1 else f"{part} / {step.stage.divisor}.0f"
        return [*lines, *self._kept(step, total)]

    def _total(self, step: Step, number: int) -> list[str]:
        name = step.stage.name
        how = {"sum": "kw::Sum", "max": "kw::MaxOrNan", "min": "Least"}[step.stage.how]
        whole = f"kw::team_reduce<{how}, THREADS>({name}_part, scratch[{number}])"
        if step.stage.divisor != 1:
            whole = f"{whole} / {step.stage.divisor}.0f"
        value = f"static_cast<{step.stage.kind}>({whole})"
        if step in self.whole:  # every thread takes part in the sum, one of them stores it
            return [f"const {step.stage.kind} {name}_all = {value};", *self._kept(step, f"{name}_all")]
        return self._kept(step, value)

    def _kept(self, step: Step, value: str) -> list[str]:
        name, store = step.stage.name, self.group.stores[step.stage.name]
        if store is Store.WHOLE:
            first = "if (lane == 0) " if step.inner == 1 else ""
            return [f"{first}{name}[{index_text(step.place, self._read)}] = {self._cast(step, value)};"]
        lines = [f"const {step.stage.kind} {name} = {value};"]
        if store is Store.ROW:
            lines.append(f"{name}_row{f'[team][{STEP}]' if name in self.shared else '[k]'} = {name};")
        return lines

    def _cast(self, step: Step, value: str) -> str:
        port = port_of(step.stage.name, self.outputs)
        return value if port is None else f"static_cast<{TYPES[port.dtype][0]}>({value})"

    def _read(self, read: Read) -> str:
        maker, store = self.makers.get(read.name), self.group.stores.get(read.name)
        if maker is None or store is Store.WHOLE:
            return f"{read.name}[{index_text(read.index, self._read)}]"
        if store is not Store.ROW or (maker in self.loop.steps and not maker.is_column):
            return read.name
        if read.name in self.shared:
            return f"{read.name}_row[team][{index_text(self._own(read), self._read)}]"
        return f"{read.name}_row[k]"


def _start(step: Step) -> str:
    return {"sum": "0", "max": "-INFINITY", "min": "INFINITY"}[step.stage.how]
