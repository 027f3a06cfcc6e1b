"""Kernels written without a language model: what indices come down to, and which stages share their rows."""

from itertools import product

import pytest

from kernelwright.codegen.indices import Index, Quotient, Rest, Variable, variable
from kernelwright.codegen.lowering import Port
from kernelwright.codegen.plain_cpp import template
from kernelwright.codegen.rows import Store, grouped, pieces
from kernelwright.codegen.sums import Lowering
from kernelwright.codegen.text import called, index_text
from kernelwright.codegen.values import Kind, NotPlain, Read, Stage, Value, buffer, dense, flat, loop_indices
from kernelwright.core.plan_language import first_values

ROW, J = variable("row", 24), variable("j", 10)


def worth(index: Index, **values: int) -> int:
    """Return the number an index is for given loop variables, computed as C++ would."""

    def one(atom: object) -> int:
        if isinstance(atom, Variable):
            return values[atom.name]
        assert isinstance(atom, Quotient | Rest)
        inner = worth(atom.index, **values)
        return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by

    return index.constant + sum(one(atom) * factor for atom, factor in index.terms)


@pytest.mark.parametrize(
    ("made", "short"),
    [
        ((ROW // 6) * 6 + ROW % 6, ROW),
        ((ROW // 12) * 12 + (ROW // 4 % 3) * 4 + ROW % 4, ROW),
        ((ROW * 10 + J) // 10, ROW),
        ((ROW * 10 + J) % 10, J),
        ((ROW * 10 + J) // 60, ROW // 6),
        ((ROW * 4) // 8, ROW // 2),
        (J // 10, Index()),
        ((J + 10) // 10, Index((), 1)),
        (ROW // 2 // 3, ROW // 6),
    ],
)
def test_what_a_reshape_takes_apart_comes_together_again(made: Index, short: Index) -> None:
    assert made == short


@pytest.mark.parametrize("by", [1, 2, 3, 4, 7, 10, 24, 240])
def test_a_shortened_index_is_the_same_number_everywhere(by: int) -> None:
    for index in (ROW * 10 + J, ROW * 3 + J * 2 + 5, (ROW * 10 + J) // 4 * 7 + 1, ROW % 5 * 10 + J):
        for row, j in product(range(24), range(10)):
            plain = worth(index, row=row, j=j)
            assert worth(index // by, row=row, j=j) == plain // by
            assert worth(index % by, row=row, j=j) == plain % by


def test_an_index_is_written_as_one_would_write_it() -> None:
    text = index_text(ROW * 256 + J - 8, lambda read: read.name)
    assert (text, index_text(Index(), str)) == ("row * 256 + j - 8", "0")
    assert index_text((ROW // 4) * 3 + ROW % 4, str) == "(row / 4) * 3 + (row % 4)"


def value(name: str, *shape: int) -> Value:
    return buffer(name, shape, Kind.FLOAT)


def finished(lowering: Lowering, answer: Value) -> list[Stage]:
    return [
        *lowering.stages.found,
        Stage("out", answer.shape, Kind.FLOAT, answer.at(loop_indices(answer.shape))),
    ]


def test_a_norm_with_its_residual_is_one_pass_over_the_rows() -> None:
    ops = Lowering()
    total = ops.stages.stored(ops.apply("add", [value("x", 4, 16, 32), value("residual", 4, 16, 32)], {}))
    normed = ops.apply("layer_norm", [total, [32], value("w", 32), value("b", 32)], {})
    (group,) = grouped(finished(ops, normed), ["out"])
    assert (group.rows, [loop.count for loop in group.loops]) == (64, [32, 32, 1, 32])
    assert [[step.stage.name for step in loop.steps] for loop in group.loops] == [
        ["t0", "t1"],
        ["t2"],
        ["t3"],
        ["out"],
    ]
    assert group.stores == {
        "t0": Store.ROW, "t1": Store.ONE, "t2": Store.ONE, "t3": Store.ONE, "out": Store.WHOLE
    }  # fmt: skip


def test_pointwise_work_on_dense_tensors_is_one_flat_loop() -> None:
    ops = Lowering()
    inner = ops.stages.stored(ops.apply("mul", [value("x", 8, 3, 5), 2], {}))
    (group,) = grouped(finished(ops, ops.apply("add", [inner, ops.apply("silu", [inner], {})], {})), ["out"])
    assert (group.rows, group.is_flat, group.stores["t0"]) == (120, True, Store.ONE)


def test_a_reshape_between_two_stages_does_not_part_them() -> None:
    ops = Lowering()
    first = ops.stages.stored(ops.apply("exp", [value("x", 512, 64)], {}))
    folded = ops.apply("reshape", [first, [4, 128, 64]], {})
    second = ops.apply("mul", [folded, ops.apply("sum", [folded, [-1], True], {})], {})
    (group,) = grouped(finished(ops, second), ["out"])
    assert (group.rows, [loop.count for loop in group.loops]) == (512, [64, 64])


def test_a_row_that_reads_another_row_is_a_group_of_its_own() -> None:
    ops = Lowering()
    first = ops.stages.stored(ops.apply("exp", [value("x", 256, 256)], {}))
    (one, other) = grouped(finished(ops, ops.apply("add", [first, ops.apply("t", [first], {})], {})), ["out"])
    assert (one.stores["t0"], [step.stage.name for step in other.steps]) == (Store.WHOLE, ["out"])


def test_sums_over_the_first_axis_are_made_a_row_at_a_time() -> None:
    ops = Lowering()
    pooled = ops.apply("mean", [value("x", 64, 50, 32), [1]], {})
    group = grouped(finished(ops, pooled), ["out"])[0]
    (step,) = group.loops[0].steps
    assert (group.rows, step.is_column, step.inner, step.turns) == (64, True, 32, 50)
    assert all(read.index.factor("j") == 1 for read in step.reads)


def test_halves_put_together_are_two_loops_without_a_question() -> None:
    ops = Lowering()
    x = value("x", 64, 16)
    low, high = ops.apply("slice", [x, 1, 0, 8], {}), ops.apply("slice", [x, 1, 8, 16], {})
    turned = ops.apply("cat", [[ops.apply("neg", [high], {}), low], 1], {})
    (group,) = grouped(finished(ops, turned), ["out"])
    assert (group.rows, pieces(group.loops[0].steps)) == (64, [(0, 8), (8, 16)])


def test_many_tiny_products_are_plain_loops_and_large_ones_are_left_to_a_library() -> None:
    lowering = Lowering(most_products=1 << 16)
    many = lowering._bmm(value("a", 4096, 6, 6), value("b", 4096, 6, 6))
    assert many.shape == (4096, 6, 6)
    with pytest.raises(NotPlain, match="a product of 16x16 and 16x16"):
        lowering._bmm(value("a", 64, 16, 16), value("b", 64, 16, 16))
    with pytest.raises(NotPlain, match="a product of 8x8 and 8x8"):
        lowering._bmm(value("a", 1 << 17, 8, 8), value("b", 1 << 17, 8, 8))


def test_the_same_sum_is_made_once() -> None:
    ops = Lowering()
    x = value("x", 8, 8)
    first, again = (ops.apply("sum", [x, [1], True], {}) for _ in range(2))
    assert len(ops.stages.found) == 1
    assert first.at(loop_indices((8, 1))) == again.at(loop_indices((8, 1))) == Read("t0", variable("i0", 8))


def test_a_source_holds_the_functions_it_calls_and_those_they_call() -> None:
    table = {"exp_of": "exp_of(float)", "gelu": "{ exp_of(x) }", "relu": "{}", "tail": "{}"}
    assert called("y = gelu(x) + std::relu(1) + my_tail(2);", table) == ["exp_of(float)", "{ exp_of(x) }"]


def test_a_source_checks_strides_and_offers_what_there_is_to_tune() -> None:
    port = Port("x", (4, 8), "fp32", (16, 1))
    text = template([port], [Port("out0", (4,), "fp32")], "if (32 >= GRAIN) out0[0] = x[0];")
    assert "is(x_, KW_FP32, {4, 8}, {16, 1})" in text and "is(out0_, KW_FP32, {4}, {1})" in text
    assert first_values(text) == {"GRAIN": 16384}
    assert flat(loop_indices((4, 8)), dense((4, 8))).most == 31
