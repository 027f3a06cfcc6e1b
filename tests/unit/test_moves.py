"""Moves: each changes some seed as it says, within the language's rules, and never trips over a foreign source."""

import json
from functools import cache
from pathlib import Path

import pytest
from benchmarks.moves import RESULTS, is_structural, summary

import kernelwright
from kernelwright.core import plugins
from kernelwright.core.case import DType
from kernelwright.core.plan_language import parse_params
from kernelwright.core.ports import Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves import _cpp, _params
from kernelwright.store.playbook import read_playbook
from tests.unit.conftest import make_device

SEEDS = Path(kernelwright.__file__).parent / "seeds"
FILES = {"cpp": "cpp.cpp", "cuda": "cuda.cu", "triton": "triton.py"}
OPS = sorted(path.name for path in SEEDS.iterdir() if (path / "cpp.cpp").is_file())
MOVES = plugins.names("moves")
ALIEN = (
    "",
    "int kernel_fn();",
    "\x00\x01",
    "for (;;) {",
    "/*kernelwright\nPARAMS = {\n*/",
    "/*kernelwright\nPARAMS = {'UNROLL': [True, 'x'], 'block': [0]}\n*/ int x = 1;",
    "PARAMS = 3\ndef plan(case, params, device):\n    return {}\n",
    "PARAMS = {'stages': [2]}\ndef plan(case, params, device):\n    return {'launches': [{'kernel': 1}]}\n",
    "import triton\n@triton.jit\ndef k(x):\n    for i in range(3):\n        pass\n",
    "def plan(:\n",
    "#pragma omp parallel for schedule(\nvoid f() { for (int i = 0; i < 3; ++i) for (;;) store(a, b); }",
    "struct s { void add(int v) { a = (b - c) - d; } };",
    "a ? b : c; auto x = [&](int i) { store(p, v); };",
)
REWRITES = {
    "cache_hints", "l2_swizzle", "loop_order", "native_rounding", "no_staging", "non_temporal_stores", "online_softmax",
    "openmp_schedule", "persistent_grid", "pipeline_depth", "plain_maximum", "plain_sums", "scaled_exponent", "split_k",
    "tile_shapes", "two_pass", "unrolling", "vector_width",
}  # fmt: skip
"""Moves that change more than the lists of `PARAMS` on some seed."""


def seed(op, backend):
    return (SEEDS / op / FILES[backend]).read_text()


def apply(move, source, backend, op="rmsnorm"):
    """Return what a move makes of a source."""
    return plugins.load("moves", move).apply(Subject(source, backend, op, (), make_device()))


@cache
def on_seed(move, op, backend="cpp"):
    """Return what a move makes of a seed."""
    return apply(move, seed(op, backend), backend, op)


def every_way(move):
    """Return all that a move makes of all seeds: op, language, unmoved source, way."""
    return [
        (op, backend, seed(op, backend), way)
        for backend in plugins.load("moves", move).BACKENDS
        for op in OPS
        if not isinstance(found := on_seed(move, op, backend), str)
        for way in found
    ]


def test_every_move_that_a_card_names_exists():
    assert {card.move for card in read_playbook() if card.move} <= set(MOVES)


def test_a_card_names_a_move_of_a_language_the_card_is_for():
    strange = {
        card.name: card.move
        for card in read_playbook()
        if card.move and card.backends and not {*card.backends} & {*plugins.load("moves", card.move).BACKENDS}
    }
    assert strange == {}


@pytest.mark.parametrize("move", MOVES)
def test_move_says_what_it_does_for_which_languages_and_against_what(move):
    found = plugins.load("moves", move)
    assert len(found.SUMMARY) > 10
    assert set(found.BACKENDS) <= set(FILES)
    assert found.AGAINST
    assert set(found.AGAINST) <= set(Bottleneck)


@pytest.mark.parametrize("move", MOVES)
def test_move_changes_a_seed_into_what_the_guards_accept(move):
    ways = every_way(move)
    assert ways
    for op, backend, before, way in ways:
        assert way.source != before, (op, backend)
        assert plugins.load("backends", backend).check(way.source) is None, (op, backend, way.note)
        grid = parse_params(way.source)
        assert all(value in grid[name] for name, value in way.values.items()), (op, backend, way.note)
        assert {name: values[0] for name, values in grid.items() if name in way.values} == way.values


@pytest.mark.parametrize("move", MOVES)
def test_ways_of_a_move_are_told_apart_by_their_notes(move):
    ways = [(op, backend, way.note) for op, backend, _, way in every_way(move)]
    assert len(ways) == len(set(ways))


@pytest.mark.parametrize("move", MOVES)
def test_move_applied_again_and_again_comes_to_an_end(move):
    first = {backend: (op, before, way) for op, backend, before, way in reversed(every_way(move))}
    for backend, (op, before, way) in first.items():
        seen, source = {before}, way.source
        # Loops that change places twice are as before: the tree knows that source.
        while source not in seen and len(seen) <= 20:
            seen.add(source)
            found = apply(move, source, backend, op)
            if isinstance(found, str):
                break
            source = found[0].source
        assert len(seen) <= 20, f"{move} never ends on {op} in {backend}"


@pytest.mark.parametrize("move", MOVES)
def test_foreign_source_is_a_reason_and_never_an_exception(move):
    for backend in plugins.load("moves", move).BACKENDS:
        for source in ALIEN:
            found = apply(move, source, backend, "matmul")
            assert found if isinstance(found, str) else all(way.source != source for way in found)


@pytest.mark.parametrize("move", sorted(REWRITES))
def test_move_changes_more_than_lists_of_values(move):
    ways = every_way(move)
    assert any(set(_code(way.source)) != set(_code(before)) for _, _, before, way in ways)


def _code(source):
    """Return the lines of a source that are neither parameters nor their macros."""
    words = ("PARAMS", "#ifndef", "#define", "#endif", '    "')
    return [line for line in source.splitlines() if line.strip() and not line.startswith(words)]


@pytest.mark.parametrize("move", MOVES)
def test_same_source_gives_the_same_ways(move):
    op, backend, before, way = every_way(move)[0]
    assert way in apply(move, before, backend, op)


@pytest.mark.parametrize("backend", FILES)
def test_other_values_of_parameters_are_no_structure_and_other_code_is(backend):
    before = seed("rmsnorm", backend)
    name, values = next(iter(parse_params(before).items()))
    assert not is_structural(before, _params.led_by(before, {name: values[0] * 2}, backend))
    rewritten = {way.source for move in MOVES for op, where, _, way in every_way(move)
                 if (op, where) == ("rmsnorm", backend) and _code(way.source) != _code(before)}  # fmt: skip
    assert rewritten
    assert all(is_structural(before, after) for after in rewritten)


def test_at_least_twelve_moves_that_change_code_have_a_proven_gain_on_some_seed():
    committed = json.loads(RESULTS.read_text())
    proven = {
        row["move"]
        for row in committed["rows"]
        if row["structural"]
        and row["status"] == "accepted"
        and row["outcome"] == "faster"
        and row["interval"][0] > 1
    }
    assert len(proven) >= 12, sorted(proven)
    assert sorted(proven) == committed["structural_moves"]
    assert summary(committed["rows"]) == committed["summary"]


# C++


def test_streamed_stores_go_to_outputs_alone_and_are_fenced():
    (way,) = on_seed("non_temporal_stores", "softmax")
    assert "stream_part(out + i" in way.source
    assert "store_part(exponentials + i" in way.source
    assert way.source.count("stream_end();") == 1
    assert parse_params(way.source)["STREAM"] == [1, 0]


def test_schedule_becomes_a_parameter_led_by_another_kind():
    (way,) = on_seed("openmp_schedule", "cross_entropy")
    assert "schedule(SCHEDULE_1)" in way.source
    assert parse_params(way.source)["SCHEDULE_1"] == ["static", "dynamic", "guided"]


def test_second_loop_keeps_its_name_when_the_first_is_a_parameter():
    first = on_seed("openmp_schedule", "attention")[0]
    names = [list(way.values) for way in apply("openmp_schedule", first.source, "cpp", "attention")]
    assert names == [["SCHEDULE_2"]]


def test_compensated_sum_becomes_a_plain_one():
    (way,) = on_seed("plain_sums", "reduce")
    assert "void add(vec v) { sum += v; }" in way.source
    assert "next - sum" not in way.source


def test_sum_that_is_not_compensated_is_left_alone():
    source = "struct t { vec sum, other; void add(vec v) { other = (v - sum) - v; sum = other + v; } };"
    assert apply("plain_sums", source, "cpp") == "no sum carries its rounding error along"


def test_lanes_added_to_one_sum_get_a_sum_each():
    way = on_seed("unrolling", "layernorm")[0]
    assert "double total_by_lane[LANES] = {};\n    for (const tally& part : parts)" in way.source
    assert "total_by_lane[i] += static_cast<double>(part.sum[i]) - part.lost[i];" in way.source
    assert "    total += total_by_lane[0];\n    return total;" in way.source


@pytest.mark.parametrize(
    "loop",
    [
        "for (int i = 0; i < LANES; ++i) total += total * x[i];",
        "for (int i = 1; i < LANES; ++i) total += x[i];",
        "for (int i = 0; i < count; ++i) total += x[i];",
        "for (int i = 0; i < LANES; ++i) other += x[i];",
        "for (int i = 0; i < LANES; ++i) total -= x[i];",
    ],
)
def test_chain_that_is_no_plain_sum_of_lanes_is_left_alone(loop):
    source = (
        f"double f(const float* x, int count) {{\n    double total = 0;\n    {loop}\n    return total;\n}}\n"
    )
    assert isinstance(apply("unrolling", source, "cpp"), str)


def test_results_in_bf16_are_rounded_by_one_instruction_and_scratch_is_not():
    (way,) = on_seed("native_rounding", "softmax")
    assert "store_rounded_part(out + i" in way.source
    assert "store_part(exponentials + i" in way.source
    assert way.source.count("#if defined(__AVX512BF16__)") == 1
    assert isinstance(apply("native_rounding", way.source, "cpp"), str)


def test_nothing_is_rounded_where_no_result_is_bf16(make):
    def moved(dtype):
        subject = Subject(seed("rmsnorm", "cpp"), "cpp", "rmsnorm", (make.case(dtype=dtype),), make_device())
        return plugins.load("moves", "native_rounding").apply(subject)

    assert moved(DType.FP32) == "no result is bf16"
    assert len(moved(DType.BF16)) == 1


def test_maximum_loses_its_test_for_nan():
    (way,) = on_seed("plain_maximum", "cross_entropy")
    assert "inline vec larger(vec a, vec b) { return b > a ? b : a; }" in way.source


def test_power_of_two_is_one_instruction_where_the_machine_has_it():
    (way,) = on_seed("scaled_exponent", "softmax")
    before = "return p * (vec)((first + 127) << 23) * (vec)((whole - first + 127) << 23);"
    scaled = "return (vec)_mm512_scalef_ps((__m512)(p), _mm512_cvtepi32_ps((__m512i)(whole)));"
    assert f"#if defined(__AVX512F__)\n    {scaled}\n#else\n    {before}\n#endif\n" in way.source


def test_product_of_other_factors_is_left_alone():
    source = "vec f(vec p) { return p * (vec)((a + 127) << 23) * (vec)((b - c + 127) << 23); }"
    assert apply("scaled_exponent", source, "cpp").startswith("nothing is multiplied")


def test_staged_loop_works_on_vectors_and_the_other_one_stays():
    (way,) = on_seed("no_staging", "rope")
    halves, pairs = way.source.split("void turn_pairs")
    assert "const vec x1 = load(x + i + j);" in halves
    assert "store(out + half + i + j, y2);" in halves
    assert "float x1[BLOCK]" not in halves
    assert "widen(x + 2 * i, pairs, 2 * count);" in pairs


def test_loop_that_uses_its_buffers_otherwise_is_left_alone():
    source = seed("rope", "cpp").replace("y2[j] = x2[j] * c[j]", "y2[j] = x2[count - 1 - j] * c[j]")
    assert isinstance(apply("no_staging", source, "cpp", "rope"), str)


def test_first_pass_becomes_a_sample_if_a_later_one_corrects_it():
    (way,) = on_seed("two_pass", "layernorm")
    assert "sweep(x, sampled, 0.0f, [&](int slot, vec v, int64_t) { sum[slot] += v; });" in way.source
    assert "const float rough = sum_of(sum) / static_cast<float>(sampled);" in way.source


def test_mean_that_nobody_corrects_is_left_alone():
    source = seed("layernorm", "cpp").replace("const vec d = v - rough;", "const vec d = v;")
    assert (
        apply("two_pass", source, "cpp", "layernorm") == "no pass computes a mean that a later pass corrects"
    )


def test_tasks_are_handed_out_from_the_last_one():
    way = on_seed("loop_order", "attention")[0]
    assert "const int64_t first = (s.seq - 1) / (BQ) * (BQ) - first_up;" in way.source


def test_parallel_loops_change_places_and_dependent_ones_do_not():
    notes = [way.note for way in on_seed("loop_order", "rope")]
    assert [note.split(" in ")[0] for note in notes] == ["head outside batch", "position outside head"]
    loops = "for (int i = 0; i < n; ++i)\nfor (int j = i; j < n; ++j) g(i, j);"
    source = f"void f() {{\n#pragma omp for collapse(2)\n{loops}\n}}"
    assert isinstance(apply("loop_order", source, "cpp"), str)


def test_serial_loop_with_a_second_step_keeps_its_place():
    assert all("p" not in way.note.split() for way in on_seed("loop_order", "matmul"))


def test_edges_are_masked_for_floats_beside_the_general_functions():
    (way,) = on_seed("vector_width", "softmax")
    assert "inline vec load_part(const float* p, int64_t count, float fill) {" in way.source
    assert "inline void store_part(float* p, int64_t count, vec v) {" in way.source
    assert "template <typename T>\nvec load_part(const T* p, int64_t count, float fill) {" in way.source


def test_depth_is_split_behind_the_same_door():
    (way,) = on_seed("split_k", "matmul")
    assert way.source.count('extern "C" int kernel_fn(') == 1
    assert way.source.count("return whole_product(a, b, out);") == 1
    assert isinstance(on_seed("split_k", "softmax"), str)


def test_register_tile_takes_its_blocks_along():
    way = on_seed("tile_shapes", "matmul")[0]
    assert way.values == {"TILE_ROWS": 8, "TILE_VECTORS": 3, "MC": 96, "NC": 240}
    assert way.source.count("constexpr int MR = TILE_ROWS;") == 3
    assert all(value % 48 == 0 for value in parse_params(way.source)["NC"])


def test_row_goes_by_chunks_with_a_maximum_each():
    (way,) = on_seed("online_softmax", "softmax")
    assert "sweep(x + start, here, LOWEST, [&](int slot, vec v, int64_t) { high[slot]" in way.source
    assert "store_part(exponentials + start + i, here - i, e);" in way.source
    assert "store_part(out + start + i, here - i, e * inverse + e * rest);" in way.source


def test_next_row_is_fetched_beside_every_vector_written():
    (loop,) = on_seed("pipeline_depth", "rmsnorm")
    assert (
        "{ __builtin_prefetch(source + AHEAD * cols + i); store(target + i, load(source + i)" in loop.source
    )
    (visitor,) = on_seed("pipeline_depth", "softmax")
    assert "__builtin_prefetch(x + AHEAD * cols + i); store_part(out + i, cols - i" in visitor.source


# GPUs


def test_stores_and_shared_loads_get_hints_that_have_none():
    stores, streamed, shared = on_seed("cache_hints", "rmsnorm", "triton")
    assert stores.source.count('eviction_policy="evict_first"') == 2 + 3
    assert (
        'gain = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last")'
        in shared.source
    )
    assert "tl.load(weight + col, mask=col < cols, other=0.0)" in streamed.source


def test_loops_of_loads_are_pipelined_and_those_of_products_are_not():
    found = on_seed("pipeline_depth", "softmax", "triton")
    assert "for i in tl.range(chunks, num_stages=3):" in found[0].source
    assert [way.values for way in on_seed("pipeline_depth", "matmul", "triton")] == [{"num_stages": 5}]


def test_programs_stay_with_a_loop_over_their_tasks():
    way = on_seed("persistent_grid", "softmax", "triton")[0]
    assert "for kw_task in range(tl.program_id(0), kw_tasks, tl.num_programs(0)):" in way.source
    assert "row = kw_task.to(tl.int64)" in way.source
    assert '"grid": (min(rows, params.programs * device.units),),' in way.source
    assert '"args": ["x", "out", cols, x.strides[0], out.strides[0]] + [rows],' in way.source


def test_kernel_that_changes_an_argument_cannot_stay():
    assert isinstance(on_seed("persistent_grid", "attention", "triton"), str)


def test_tiles_of_a_plain_grid_are_walked_in_bands():
    way = on_seed("l2_swizzle", "matmul", "cuda")[0]
    assert "const int row = kw_y * BM, column = kw_x * BN" in way.source
    assert way.source.count("blockIdx.y") == 2  # in the two new heads alone


# What moves share


def test_pragmas_belong_to_the_statement_right_below():
    unit = _cpp.parse(
        "void f() {\n    g();\n#pragma omp for\n#pragma GCC unroll 4\n    for (;;) h();\n}\n", "cpp"
    )
    (loop,) = unit.every("for_statement")
    assert [pragma.text for pragma in unit.pragmas_above(loop)] == ["#pragma GCC unroll 4", "#pragma omp for"]
    (first, _) = unit.every("expression_statement")
    assert unit.pragmas_above(first) == []


def test_edits_leave_every_other_byte_alone():
    source = "int a = 1; // größer\nint b = 2;\n"
    unit = _cpp.parse(source, "cpp")
    second = list(unit.every("number_literal"))[1]
    assert _cpp.edited(unit, [_cpp.replaced(second, "3")], "cpp") == source.replace("2", "3")


def test_edit_that_breaks_the_syntax_is_refused():
    unit = _cpp.parse("int a = 1;\n", "cpp")
    with pytest.raises(_cpp.Unparsed):
        _cpp.edited(unit, [_cpp.inserted(0, "for (")], "cpp")


@pytest.mark.parametrize("backend", sorted(FILES))
def test_new_value_leads_and_the_known_ones_follow(backend):
    source = seed("matmul", backend)
    name, values = next(iter(parse_params(source).items()))
    moved = _params.led_by(source, {name: 7, "fresh": "word"}, backend)
    assert parse_params(moved)[name] == [7, *values]
    assert parse_params(moved)["fresh"] == ["word"]
    assert ("#define fresh word" in moved) == (backend == "cpp")


def test_source_without_parameters_gets_some():
    assert parse_params(_params.led_by("x = 1\n", {"a": 1}, "triton")) == {"a": [1]}
