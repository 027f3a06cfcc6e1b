"""A captured graph around one large matrix product as C++: what comes before it is computed while its rows are packed,
what comes after it while its sums are still in the cache.

    out = after(before(x...) weight^T)

Rows are handed out in blocks. A thread packs a block of rows, multiplies it with the packed weight by a kernel that
holds MR x NR sums in registers, and finishes its rows; nothing but inputs and outputs touches memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.codegen.cpp_functions import FUNCTIONS, SPELLED
from kernelwright.codegen.indices import variable
from kernelwright.codegen.lowering import Port, last_stages, lower, port_value
from kernelwright.codegen.plain_cpp import RowWriter, template
from kernelwright.codegen.rows import ROW, Group, Step, in_rows
from kernelwright.codegen.sums import MOST_PRODUCTS, Lowering
from kernelwright.codegen.text import called, expression_text, index_text
from kernelwright.codegen.values import Kind, NotPlain, Read, Stage, Value, buffer, loop_indices, reshaped

MOST_DEPTH, MOST_WIDTH = 4096, 8192
"""Rows longer than this leave no room for a block of them in the cache."""
SUMS, LINE = "sums", "line"
"""The rows of sums of a block, and the row that is being packed."""
PARAMS = {"ROWS": (48, 96, 24), "PIECE": (64, 128, 256)}
"""Rows of a block, and terms that are summed in registers before they are added to a sum in memory."""


@dataclass(frozen=True)
class Product:
    """The one large product of a graph."""

    left: Value
    """Rows by depth."""
    right: Value
    """Depth by columns."""
    before: int
    """How many stages come before it."""

    @property
    def rows(self) -> int:
        """Return the rows of the product."""
        return self.left.shape[0]

    @property
    def depth(self) -> int:
        """Return the length of its sums."""
        return self.left.shape[1]

    @property
    def columns(self) -> int:
        """Return the columns of the product."""
        return self.right.shape[1]


class Around(Lowering):
    """All operations, but one large product is taken out: what it gives is a buffer that others fill."""

    def __init__(self, most_products: int) -> None:
        super().__init__(most_products)
        self.product: Product | None = None

    def _matmul(self, left: Value, right: Value) -> Value:
        if len(left.shape) < 2 or len(right.shape) != 2:
            return super()._matmul(left, right)
        rows, depth, columns = math.prod(left.shape[:-1]), left.shape[-1], right.shape[-1]
        if rows * depth * columns <= self.most_products:
            return super()._matmul(left, right)
        if self.product is not None:
            raise NotPlain("a second large product")
        if depth > MOST_DEPTH or columns > MOST_WIDTH:
            raise NotPlain(f"a product of {rows}x{depth} and {depth}x{columns}: its rows are too long")
        self.product = Product(reshaped(left, (rows, depth)), right, len(self.stages.found))
        return buffer(SUMS, (*left.shape[:-1], columns), Kind.FLOAT)

    _mm = _matmul


def written(
    graph: Any,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    order: Sequence[int],
    most_products: int = MOST_PRODUCTS,
) -> str:
    """Return a graph as a C++ candidate; raises NotPlain if it is not one large product and what is around it.

    `order` says which input each placeholder of the graph is, `most_products` what is not large yet. `Any`: a
    GraphModule of torch.fx.
    """
    lowering = Around(most_products)
    answers = lower(graph, [port_value(inputs[place]) for place in order], lowering)
    product = lowering.product
    if product is None:
        raise NotPlain("no large product")
    before, after = lowering.stages.found[: product.before], lowering.stages.found[product.before :]
    line = Stage(LINE, product.left.shape, Kind.FLOAT, product.left.at(loop_indices(product.left.shape)))
    names = [port.name for port in outputs]
    first = in_rows([*before, line], product.rows, [LINE])
    last = in_rows([*after, *last_stages(answers, outputs)], product.rows, names)
    if first is None or last is None:
        raise NotPlain("a product whose rows are not worked on one by one")
    body = _body(product, *(_Block(group, outputs, product).row() for group in (first, last)))
    for name, own in SPELLED.items():
        body = body.replace(name, own)
    functions = [*called(body, FUNCTIONS), KERNEL]
    return template(inputs, outputs, body, functions, PARAMS, "kernelwright_vec.h")


class _Block(RowWriter):
    """The steps of a row whose line and sums belong to its block."""

    def __init__(self, group: Group, outputs: Sequence[Port], product: Product) -> None:
        super().__init__(group, outputs)
        self.row_number = variable(ROW, product.rows)
        self.columns = product.columns

    def _place(self, step: Step) -> str:
        if step.stage.name != LINE:
            return super()._place(step)
        return f"{LINE}[{index_text(step.place - self.row_number * step.inner, self._read)}]"

    def _read(self, read: Read) -> str:
        if read.name != SUMS:
            return super()._read(read)
        return f"{SUMS}[{index_text(read.index - self.row_number * self.columns, self._read)}]"


def _body(product: Product, packing: Sequence[str], finishing: Sequence[str]) -> str:
    """Return the loops around packing a row and finishing it."""
    place = [variable("k", product.depth), variable("column", product.columns)]
    return BODY.format(
        rows=product.rows,
        depth=product.depth,
        columns=product.columns,
        weight=expression_text(product.right.at(place), _element),
        packing=_indented(packing, 16),
        finishing=_indented(finishing, 12),
    )


def _element(read: Read) -> str:
    return f"{read.name}[{index_text(read.index, _element)}]"


def _indented(lines: Sequence[str], spaces: int) -> str:
    return "\n".join(line if line.startswith("#") else f"{' ' * spaces}{line}" for line in lines)


BODY = f"""constexpr int64_t M = {{rows}}, K = {{depth}}, N = {{columns}};
constexpr int64_t PANELS = (N + NR - 1) / NR, WIDE = PANELS * NR;
std::vector<float> packed(WIDE * K);
#pragma omp parallel
{{{{
    std::vector<float> lines((ROWS + 1) * K), block(ROWS * WIDE);
#pragma omp for schedule(static)
    for (int64_t panel = 0; panel < PANELS; ++panel)
        for (int64_t lane = 0; lane < NR && panel * NR + lane < N; ++lane) {{{{
            const int64_t column = panel * NR + lane;
            float* to = &packed[panel * NR * K + lane];
            for (int64_t k = 0; k < K; ++k) to[k * NR] = {{weight}};
        }}}}
#pragma omp for schedule(static)
    for (int64_t start = 0; start < M; start += ROWS) {{{{
        const int64_t end = start + ROWS < M ? start + ROWS : M;
        for (int64_t {ROW} = start; {ROW} < end; ++{ROW}) {{{{
            float *{LINE} = &lines[ROWS * K], *to = &lines[({ROW} - start) / MR * MR * K + ({ROW} - start) % MR];
            {{{{
{{packing}}
            }}}}
            for (int64_t k = 0; k < K; ++k) to[k * MR] = {LINE}[k];
        }}}}
        for (int64_t panel = 0; panel < PANELS; ++panel)
            for (int64_t from = 0; from < end - start; from += MR)
                multiplied(&lines[from * K], &packed[panel * NR * K], K, &block[from * WIDE + panel * NR], WIDE);
        for (int64_t {ROW} = start; {ROW} < end; ++{ROW}) {{{{
            const float* {SUMS} = &block[({ROW} - start) * WIDE];
{{finishing}}
        }}}}
    }}}}
}}}}"""
KERNEL = """using namespace kw;

#if defined(__AVX512F__)
constexpr int MR = 12;  // 24 sums, two vectors of the weight and a broadcast fit 32 registers
#else
constexpr int MR = 6;
#endif
constexpr int NV = 2, NR = NV * LANES;
static_assert(ROWS % MR == 0, "a block is whole panels");

// MR rows times NR columns over the whole depth; rows beyond the last one give sums that nobody reads.
[[gnu::noinline]] void multiplied(const float* a, const float* b, int64_t depth, float* sums, int64_t step) {
    for (int64_t done = 0; done < depth; done += PIECE) {
        const int64_t end = done + PIECE < depth ? done + PIECE : depth;
        vec sum[MR][NV] = {};
        for (int64_t p = done; p < end; ++p, a += MR, b += NR) {
            vec right[NV];
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) right[v] = load(b + v * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) sum[r][v] += a[r] * right[v];
        }
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
                float* target = sums + r * step + v * LANES;
                store(target, done ? load(target) + sum[r][v] : sum[r][v]);
            }
    }
}"""
