"""The maker of mutants: every change is one that a person could make, and is made to what computes."""

import ast

import pytest
from benchmarks.mutation import EQUIVALENT, key_of, mutants, sample

from kernelwright.core import plugins
from kernelwright.core.candidate import Origin
from kernelwright.engine.seeds import seed

C_SOURCE = """\
/* PARAMS = {"W": [1 + 1]}; rows < cols */
#include <a + b>
// a comment: i < n, a + b
bool is_dense(const kw_tensor* t) { return t->shape[0] <= 1; }
bool is_even(int i) { return i + i < 4; }
int run(const kw_tensor* t, float eps) {
    bool is_legal = true;
    if (eps < 0)
        is_legal = false;
    if (!is_dense(t) || t->stride[0] < 1) return KW_UNSUPPORTED_LAYOUT;
    for (int i = 0; i < 8; i += 2) total += is_even(i);
    if (!is_legal) return KW_UNSUPPORTED_SHAPE;
    return total + eps;  // a + b
}
"""
PYTHON_SOURCE = '''\
"""Rows: i < n."""
PARAMS = {"block": [1 + 1]}  # a < b


@triton.jit
def walk(x, out, eps, cols, BLOCK: tl.constexpr):
    """Walk: a + b."""
    col = tl.arange(0, BLOCK)  # a - b
    value = tl.load(x + col, mask=(col < cols) & (col[None, :] >= 0), other=float("-inf")).to(tl.float32)
    tl.store(out, value, mask=col < cols)


def plan(case, params, device):
    rows = case.axes.rows + 1
    return {"launches": [{"kernel": "walk", "grid": (rows - 1,), "args": []}]}
'''


def changes(source: str) -> set[tuple[int, str, str]]:
    """Return the line, kind and new text of every mutant."""
    return {(one.line, one.operator, one.after) for one in mutants(source)}


def test_comments_parameters_includes_and_refusals_of_c_are_left_alone() -> None:
    assert changes(C_SOURCE) == {
        (5, "bound off by one", "bool is_even(int i) { return i + i <= 4; }"),
        (5, "sign", "bool is_even(int i) { return i - i < 4; }"),
        (8, "bound off by one", "if (eps <= 0)"),
        (11, "bound off by one", "for (int i = 0; i <= 8; i += 2) total += is_even(i);"),
        (11, "starts at one", "for (int i = 1; i < 8; i += 2) total += is_even(i);"),
        (11, "last term lost", "for (int i = 0; i < 8; i += 2) total = is_even(i);"),
        (13, "sign", "return total - eps;  // a + b"),
        (13, "eps", "return total;  // a + b"),
    }


def test_docstrings_heads_parameters_and_plans_of_python_are_left_alone() -> None:
    load = 'value = tl.load(x + col{}, other=float("-inf")).to(tl.float32)'
    mask = ", mask=(col < cols) & (col[None, :] >= 0)"
    assert changes(PYTHON_SOURCE) == {
        (8, "starts at one", "col = (tl.arange(0, BLOCK) + 1)  # a - b"),
        (9, "bound off by one", load.format(mask.replace("<", "<="))),
        (9, "sign", load.format(mask).replace("x + col", "x - col")),
        (9, "dropped mask", "value = tl.load(x + col).to(tl.float32)"),
        (9, "wrong fill", load.format(mask).replace('float("-inf")', "0.0")),
        (10, "bound off by one", "tl.store(out, value, mask=col <= cols)"),
        (10, "dropped mask", "tl.store(out, value)"),
    }


@pytest.mark.parametrize(
    ("line", "kind", "changed"),
    [
        ("    double total = 0;", "lower precision", {"_Float16 total = 0;"}),
        ("    for (; i < count; ++i) to[i] = 0;", "dropped tail", {"for (; false;) to[i] = 0;"}),
        ("    visit(load_part(x + i, count - i, fill));", "dropped mask", {"visit(load(x + i));"}),
        ("    store_part(out + i, count - i, v);", "dropped mask", {"store(out + i, v);"}),
        ("void store_part(T* p, int64_t count, vec v) {", "dropped mask", set()),
        (
            "#pragma omp for schedule(static)\n#pragma omp for",
            "missing barrier",
            {"#pragma omp for schedule(static) nowait"},
        ),
        ("#pragma omp for schedule(static)\n#pragma omp parallel\n#pragma omp for", "missing barrier", set()),
    ],
)
def test_a_kind_of_mistake_has_its_form_in_c(line: str, kind: str, changed: set[str]) -> None:
    found = {one.after for one in mutants(f"{line}\n") if one.operator == kind}
    assert found == changed


@pytest.mark.parametrize("backend", ["cpp", "triton", "cuda"])
def test_the_seeds_of_a_language_have_accumulators_to_spoil_and_masks_or_barriers_to_lose(
    backend: str,
) -> None:
    bases = [seed(op, backend, Origin.AUTHOR) for op in plugins.names("ops")]
    kinds = {one.operator for base in bases if base for one in mutants(base.source)}
    assert "lower precision" in kinds
    assert kinds & {"dropped mask", "missing barrier"}


@pytest.mark.parametrize("op", plugins.names("ops"))
def test_every_mutant_of_a_triton_seed_is_python(op: str) -> None:
    base = seed(op, "triton", Origin.AUTHOR)
    found = [] if base is None else list(mutants(base.source))
    for one in found:
        ast.parse(one.source)
    assert bool(found) == (base is not None)


@pytest.mark.parametrize("key", EQUIVALENT)
def test_a_mutant_called_right_is_one_of_the_seed_as_it_is_now(key: str) -> None:
    backend, op, *_ = key.split("/")
    base = seed(op, backend, Origin.AUTHOR)
    assert base is not None
    assert key in {key_of(backend, op, one) for one in mutants(base.source)}


def test_a_sample_holds_as_many_kinds_as_there_are_and_is_the_same_each_time() -> None:
    base = seed("rmsnorm", "cpp", Origin.AUTHOR)
    assert base is not None
    kinds = {one.operator for one in mutants(base.source)}
    chosen = sample(base.source, len(kinds), "key")
    assert {one.operator for one in chosen} == kinds
    assert sample(base.source, len(kinds), "key") == chosen
