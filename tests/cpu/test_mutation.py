"""The maker of mutants: every change is one that a person could make, and is made to what computes."""

import ast
import json
import random
from collections.abc import Iterator
from itertools import product
from math import exp, isfinite, log, sqrt
from pathlib import Path
from statistics import fmean

import pytest
import torch
from benchmarks.mutation import AS_EXACT, EQUIVALENT, RESULTS, UNEXCUSED, key_of, mutants, sample, summary

from kernelwright.backends import cpp
from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Case, Distribution, DType
from kernelwright.core.ports import Op
from kernelwright.engine.seeds import seed
from kernelwright.judge.evaluate import Judge
from kernelwright.ops._draw import torch_dtype

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
        ("    e = exp_of((load(x + j) - top) * s);", "missing maximum", {"e = exp_of((load(x + j)) * s);"}),
        ("    t *= exp(cast(high) - top);", "missing maximum", {"t *= exp(cast(high));"}),
        ("    high[i] = larger(high[i], v);", "missing maximum", {"high[i] = (v);"}),
        ("vec larger(vec a, vec b) {", "missing maximum", set()),
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


HIDDEN, MOST_ELEMENTS = 12, 1 << 18
SIZES = {"swiglu_mlp": ({"m": 96, "k": 16, "n": 16},)}
"""More sizes of an op, where no other one reaches what a mutant changes: here rows that fill their blocks."""
DRAWN_FOR_ERRORS = (Distribution.SIGNED, Distribution.OFFSET, Distribution.WIDE)
NO_LESS_EXACT = 1.01
"""Another order of a sum is off by 0.5 % at most, a sum without its compensation by 2.5 % at least."""
DRAWN = tuple(kind for kind in Distribution if kind is not Distribution.SIGNED)


def cases_of(op: Op) -> list[Case]:
    """Return small public cases, edge cases and sampled ones, each in the types it comes in."""
    rng = random.Random(7)
    hidden = (op.sample_case(rng) for _ in range(10 * HIDDEN))
    some = [case for case in hidden if sum(spec.numel for spec in case.inputs) <= MOST_ELEMENTS][:HIDDEN]
    assert len(some) == HIDDEN
    known = [*op.public_cases(), *op.edge_cases()]
    known += [op.case(axes, kind) for axes in SIZES.get(known[0].op, ()) for kind in op.DTYPES]
    return [case for case in known if sum(spec.numel for spec in case.inputs) <= MOST_ELEMENTS] + some


def inputs_of(op: Op, case: Case, turn: int) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Yield what a case is tried on: plain numbers, three hard kinds in turn, exact sums, infinities and NaN."""
    for number, kind in enumerate(
        (Distribution.SIGNED, *(DRAWN[(3 * turn + i) % len(DRAWN)] for i in range(3)))
    ):
        yield kind.value, op.make_inputs(case, kind, number)
    if (exact := op.exact_inputs(case, 1)) is not None:
        yield "exact", exact[0]
    if case.outputs[0].numel:
        yield from op.special_inputs(case, 5)


def called(
    artefact: Path, case: Case, inputs: dict[str, torch.Tensor]
) -> tuple[int, tuple[torch.Tensor, ...]]:
    """Return the status of a call and its outputs, which were filled with a pattern before."""
    outputs = {spec.name: torch.empty(spec.shape, dtype=torch_dtype(spec.dtype)) for spec in case.outputs}
    for tensor in outputs.values():
        tensor.view(torch.uint8 if tensor.ndim else tensor.dtype).fill_(0x5A)
    addresses = {name: tensor.data_ptr() for name, tensor in (inputs | outputs).items()}
    (call,) = cpp.bind(artefact, [case], [(0, addresses)])
    return call(), tuple(outputs.values())


def outputs_of(artefact: Path, case: Case, inputs: dict[str, torch.Tensor]) -> tuple[int, bytes]:
    """Return the status of a call and every byte it left in its outputs."""
    status, outputs = called(artefact, case, inputs)
    return status, b"".join(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in outputs)


def built(room: Judge, base: Candidate, source: str) -> tuple[Path, Path]:
    """Return the artefacts of a seed and of the seed with another source."""
    both = [
        room.builds.get(one, one.values_for("")) for one in (base, base.model_copy(update={"source": source}))
    ]
    first, second = (path for _, path in both)
    assert first is not None
    assert second is not None, both[1][0].log
    return first, second


def difference(room: Judge, base: Candidate, source: str) -> str:
    """Return the first case in which a changed seed answers other bytes than the seed; empty if there is none."""
    op = plugins.load("ops", base.op)
    first, second = built(room, base, source)
    for turn, case in enumerate(cases_of(op)):
        for what, inputs in inputs_of(op, case, turn):
            if outputs_of(first, case, inputs) != outputs_of(second, case, inputs):
                return f"{case.label} {what}"
    return ""


def error_ratio(room: Judge, base: Candidate, source: str) -> float:
    """Return the error of a changed seed against float64 over the seed's own, in the geometric mean of fp32 calls."""
    op = plugins.load("ops", base.op)
    both, logs = built(room, base, source), []
    cases = [case for case in cases_of(op) if case.dtype is DType.FP32 and case.outputs[0].numel]
    for case in cases:
        for kind, number in product(DRAWN_FOR_ERRORS, range(4)):
            inputs = op.make_inputs(case, kind, number)
            wide = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
            exact = op.reference(wide, case.scalars)
            own, other = (_distance(called(one, case, inputs)[1], exact) for one in both)
            if own and other and isfinite(own + other):
                logs.append(log(other / own))
    assert len(logs) > 2 * len(cases)
    return exp(fmean(logs))


def _distance(outputs: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...]) -> float:
    return sqrt(
        sum(float((one.double() - true).square().mean()) for one, true in zip(outputs, exact, strict=True))
    )


FILLED = ("load_part(x + i, count - i, fill)", "load_part(x + i, count - i, i == count ? 1.0f : fill)")
"""Something in the lanes of a part of no elements."""
SPOILT = {
    "attention/287": (
        "attend(t, s, batch, head, first, w);",
        "{ attend(t, s, batch, head, first, w);"
        " if (first && first == s.seq) *t.out.at(batch, head, 0) = static_cast<T>(99.0f); }",
    ),
    "layernorm/49": FILLED,
    "matmul/49": ("static_cast<kw_fp16>(from[i])", "static_cast<kw_fp16>(count % 8 ? from[i] : 99.0f)"),
    "reduce/45": FILLED,
    "rmsnorm/29": ("= static_cast<float>(x[i]);", "= cols % WIDTH ? static_cast<float>(x[i]) : 99.0f;"),
    "rmsnorm/55": ("static_cast<float>(source[i])", "(cols % LANES ? static_cast<float>(source[i]) : 99.0f)"),
    "rope/25": (
        "to[i] = static_cast<float>(from[i])",
        "to[i] = count % LANES ? static_cast<float>(from[i]) : 99.0f",
    ),
    "rope/32": (
        "to[i] = static_cast<T>(from[i])",
        "to[i] = static_cast<T>(count % LANES ? from[i] : 99.0f)",
    ),
    "rope/39": ("i <= half; i += BLOCK) {", "i <= half; i += BLOCK) { if (i && i == half) *out = (T)99.0f;"),
    "rope/58": ("i <= half; i += BLOCK) {", "i <= half; i += BLOCK) { if (i && i == half) *out = (T)99.0f;"),
    "softmax/49": FILLED,
    "swiglu_mlp/90": ("exp_of(x <= 0.0f ? x : -x)", "exp_of(x == 0.0f ? x / 0.0f : x < 0.0f ? x : -x)"),
    "swiglu_mlp/164": (
        "finish(block_i, end_i, block_j, end_j);",
        "{ if (block_i && block_i == m) *sums = 99.0f;"
        " finish(block_i == m ? 0 : block_i, end_i, block_j, end_j); }",
    ),
    "swiglu_mlp/180": (
        "to[i] = static_cast<T>(from[i])",
        "to[i] = static_cast<T>(count % LANES ? from[i] : 99.0f)",
    ),
}
"""What makes a mutant wrong exactly where it differs from its seed, by op and line."""


def mutant_of(key: str) -> tuple[Candidate, str]:
    """Return the seed of a mutant, and the mutant's source."""
    backend, op, *_ = key.split("/")
    base = seed(op, backend, Origin.AUTHOR)
    assert base is not None
    assert backend == "cpp"
    return base, {key_of(backend, op, one): one.source for one in mutants(base.source)}[key]


@pytest.mark.parametrize("key", EQUIVALENT)
def test_a_mutant_called_right_answers_what_its_seed_answers_to_the_bit(key: str, room: Judge) -> None:
    base, source = mutant_of(key)
    assert difference(room, base, source) == ""


@pytest.mark.parametrize("key", AS_EXACT)
def test_a_mutant_called_as_exact_is_no_further_from_float64_than_its_seed(key: str, room: Judge) -> None:
    base, source = mutant_of(key)
    assert difference(room, base, source) != "", "else it belongs to those that are equal to the bit"
    assert error_ratio(room, base, source) < NO_LESS_EXACT


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key, why in UNEXCUSED.items() if why.startswith("less exact")])
def test_a_mutant_called_less_exact_is(key: str, room: Judge) -> None:
    assert error_ratio(room, *mutant_of(key)) > NO_LESS_EXACT


@pytest.mark.slow
@pytest.mark.parametrize("key", EQUIVALENT)
def test_the_cases_reach_the_place_where_a_mutant_called_right_differs(key: str, room: Judge) -> None:
    base, source = mutant_of(key)
    before, after = SPOILT["/".join(key.split("/")[1:3])]
    if "kw_fp16" in before and "f16c" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor converts halves one by one")
    assert source.count(before) == 1
    assert difference(room, base, source.replace(before, after)) != ""


def test_a_sum_without_its_compensation_is_not_its_seed_to_the_bit(room: Judge) -> None:
    base = seed("layernorm", "cpp", Origin.AUTHOR)
    assert base is not None
    plain = base.source.replace("lost = (next - sum) - term;", ";")
    assert plain != base.source
    assert difference(room, base, plain) != ""


def test_every_survivor_that_is_published_is_explained_and_counts_unless_it_is_called_right() -> None:
    published = json.loads(RESULTS.read_text())["summary"]
    found = published["cpp"]
    assert summary(RESULTS) == published
    assert {key.partition(":")[0] for key in found["survivors"]} == set(UNEXCUSED)
    assert {key.partition(":")[0] for key in found["excused"]} == {*EQUIVALENT, *AS_EXACT}
    survivors, excused, born = len(found["survivors"]), len(found["excused"]), found["killed of"]
    assert found["killed"] == born - survivors - excused
    assert found["score"] == round(found["killed"] / born, 4)
    assert found["score without those shown to be right"] == round(found["killed"] / (born - excused), 4)


def test_a_sample_holds_as_many_kinds_as_there_are_and_is_the_same_each_time() -> None:
    base = seed("rmsnorm", "cpp", Origin.AUTHOR)
    assert base is not None
    kinds = {one.operator for one in mutants(base.source)}
    chosen = sample(base.source, len(kinds), "key")
    assert {one.operator for one in chosen} == kinds
    assert sample(base.source, len(kinds), "key") == chosen
