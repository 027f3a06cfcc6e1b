"""The plan language: the subset means what Python means, and everything else is a `PlanFault` and nothing worse."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.core.candidate import ParamChoice
from kernelwright.core.plan import BufferArg, LaunchPlan, ScalarArg, TensorMapArg
from kernelwright.core.plan_language import PlanFault, first_values, parse_params, parse_plan, python_part
from kernelwright.core.plan_run import PlanDeclined, run_plan

HEAD = "def plan(case, params, device):\n"
TAIL = '    return {"launches": [{"kernel": "k", "grid": (1,), "args": ["x", "out"]}]}\n'
SECONDS = 5.0
PARAMS = {"BLOCK": 128, "num_warps": 4, "two_pass": False}


def lines(*statements: str) -> str:
    """Return a plan of these statements that ends with a legal launch."""
    return HEAD + "".join(f"    {statement}\n" for statement in statements) + TAIL


def returning(expression: str) -> str:
    """Return a plan that returns one expression."""
    return f"{HEAD}    return {expression}\n"


def launching(**fields: str) -> str:
    """Return a plan of one launch, each field given as source."""
    entries = {"kernel": "'k'", "grid": "1"} | fields
    inner = ", ".join(f"'{key}': {value}" for key, value in entries.items())
    return returning(f"{{'launches': [{{{inner}}}]}}")


@pytest.fixture(scope="module")
def run(make):
    """Return a function from source to the launch plan, on a case of 300 x 1000 in fp16."""
    case, device = make.case(rows=300, cols=1000, scalars={"eps": 1e-5, "causal": True}), make.device()

    def run_source(source: str) -> LaunchPlan:
        return run_plan(parse_plan(source), case, PARAMS, device)

    return run_source


@pytest.fixture(scope="module")
def value(run):
    """Return a function from statements and an expression to the value the language gives it."""

    def value_of(expression: str, *statements: str) -> bool | int | float | str:
        source = HEAD + "".join(f"    {statement}\n" for statement in statements)
        source += (
            f"    return {{'launches': [{{'kernel': 'k', 'grid': 1, 'constants': {{'R': {expression}}}}}]}}"
        )
        return run(source).launches[0].constants["R"]

    return value_of


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("cdiv(10, 3)", 4),
        ("cdiv(9, 3)", 3),
        ("cdiv(0, 3)", 0),
        ("next_power_of_2(0)", 1),
        ("next_power_of_2(1)", 1),
        ("next_power_of_2(1000)", 1024),
        ("next_power_of_2(1024)", 1024),
        ("case.axes.rows", 300),
        ("case.axes['cols']", 1000),
        ("case.scalars.eps", 1e-5),
        ("case.scalars.causal", True),
        ("case.dtype", "fp16"),
        ("case.itemsize", 2),
        ("case.tensors.x.shape[1]", 1000),
        ("case.tensors.x.shape[-1]", 1000),
        ("case.tensors.x.strides[0]", 1000),
        ("case.tensors.weight.numel", 1000),
        ("case.tensors.out.dtype", "fp16"),
        ("case.tensors.out.itemsize", 2),
        ("case.tensors.x.offset", 0),
        ("params.BLOCK", 128),
        ("params['num_warps']", 4),
        ("device.kind", "cuda"),
        ("device.arch", "sm_90"),
        ("device.units", 132),
        ("device.shared_bytes", 227 << 10),
        ("device.cache_bytes", 50 << 20),
        ("1 if case.axes.rows > 256 else 2", 1),
        ("1 < 2 < 3 != 4", True),
        ("'x' in case.tensors and 'y' not in case.tensors", True),
        ("not params.two_pass", True),
        ("(1, (2, 3))[1][0]", 2),
        ("[4, 5][-1]", 5),
        ("{'a': 1, 'b': 2}['b']", 2),
        ("{'fp16': '__half', 'fp32': 'float'}[case.dtype]", "__half"),
        ("min(3, 1, 2) + max((4, 6))", 7),
        ("abs(-3) + int(2.9) + round(2.6)", 8),
        ("float(3)", 3.0),
        ("bool(0)", False),
        ("len((1, 2, 3)) + len('ab') + len(case.axes)", 7),
        ("'a' + 'b'", "ab"),
        ("(1 << 62) - 1 + (1 << 62)", (1 << 63) - 1),
        ("-7 // 2 * 10 + -7 % 3", -38),
        ("6 & 3 | 8", 10),
        ("1024 >> 3", 128),
    ],
)
def test_expression_of_the_subset_has_its_value(value, expression, expected):
    found = value(expression)
    assert found == expected
    assert type(found) is type(expected)


def test_assignments_and_unpacking_bind_names(value):
    assert value("a * 100 + b * 10 + c", "a, (b, c) = (1, [2, 3])") == 123
    assert value("a * 10 + b", "a, b = 1, 2", "a, b = b, a") == 21


def test_names_of_the_interpreter_can_be_rebound_without_harm(value):
    assert value("rows", "rows = case.axes.rows", "case = 5") == 300


def test_if_elif_else_choose_one_branch(value):
    chain = ["if n < 2:", "    r = 'small'", "elif n < 4:", "    r = 'middle'", "else:", "    r = 'large'"]
    assert [value("r", f"n = {n}", *chain) for n in (1, 3, 9)] == ["small", "middle", "large"]


def test_early_return_ends_the_plan(run):
    early = HEAD + "    if case.axes.rows:\n        return {'launches': []}\n" + TAIL
    assert run(early).launches == ()


def test_branch_not_taken_is_not_evaluated(value):
    assert value("1 if True else 1 // 0") == 1
    assert value("False and 1 // 0") is False
    assert value("True or 1 // 0") is True


def test_docstring_and_pass_mean_nothing(run):
    assert len(run(lines("'''Say why.'''", "pass")).launches) == 1


ATOMS = st.integers(-9, 9).map(lambda n: f"({n})") | st.sampled_from(
    ("True", "False", "2.5", "a", "b", "c[1]")
)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(("+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", ">", ">=", "&", "|"))
    return st.one_of(
        st.builds("({} {} {})".format, inner, binary, inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(("<<", ">>")), st.integers(0, 70)),
        st.builds("(-{})".format, inner),
        st.builds("(not {})".format, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("{}({}, {})".format, st.sampled_from(("min", "max")), inner, inner),
        st.builds("abs({})".format, inner),
        st.builds("({}, {})[{}]".format, inner, inner, st.sampled_from("01")),
        st.builds("({} < {} <= {})".format, inner, inner, inner),
    )


@given(st.recursive(ATOMS, _compound, max_leaves=8))
@settings(max_examples=60)
def test_expression_means_what_python_means(value, expression):
    names = {"a": 7, "b": -3, "c": (1, 4), "min": min, "max": max, "abs": abs}
    try:
        expected = eval(expression, {"__builtins__": {}}, names)
    except (TypeError, ZeroDivisionError, OverflowError) as error:
        with pytest.raises(PlanFault, match=f"{type(error).__name__}|64 bits|shift beyond"):
            value(expression, "a = 7", "b = -3", "c = (1, 4)")
        return
    try:
        found = value(expression, "a = 7", "b = -3", "c = (1, 4)")
    except PlanFault as fault:
        assert "beyond 64 bits" in str(fault) or "shift beyond" in str(fault)
        return
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("expression", "expected"), [("0 or 5", 5), ("3 and 4", 4), ("0 and 4", 0), ("2 or 5", 2)]
)
def test_and_and_or_give_an_operand_as_in_python(value, expression, expected):
    found = value(expression)
    assert found == expected
    assert type(found) is type(expected)


def test_launch_carries_every_field(run):
    plan = run(
        launching(
            kernel="'norm'",
            grid="(cdiv(case.axes.rows, 4), 2)",
            block="(params.BLOCK, 2)",
            cluster="(2,)",
            shared_bytes="1024",
            args="['x', 'out', case.axes.cols, 0.5, True, 1 << 40, ('i64', 5), ('fp64', 2.0)]",
            constants="{'BLOCK': params.BLOCK, 'T': '__half'}",
            num_warps="params.num_warps",
            num_stages="2",
        )
    )
    (launch,) = plan.launches
    assert launch.kernel == "norm"
    assert (launch.grid, launch.block, launch.cluster) == ((75, 2, 1), (128, 2, 1), (2, 1, 1))
    assert launch.shared_bytes == 1024
    assert launch.args == (
        BufferArg(name="x"),
        BufferArg(name="out"),
        ScalarArg(value=1000, type="i32"),
        ScalarArg(value=0.5, type="fp32"),
        ScalarArg(value=True, type="i1"),
        ScalarArg(value=1 << 40, type="i64"),
        ScalarArg(value=5, type="i64"),
        ScalarArg(value=2.0, type="fp64"),
    )
    assert launch.constants == {"BLOCK": 128, "T": "__half"}
    assert launch.meta == {"num_warps": 4, "num_stages": 2}


@pytest.mark.parametrize(
    ("number", "kind"), [(2**31 - 1, "i32"), (2**31, "i64"), (-(2**31), "i32"), (-(2**31) - 1, "i64")]
)
def test_integer_that_does_not_fit_32_bits_is_passed_in_64(run, number, kind):
    (arg,) = run(launching(args=f"[{number}]")).launches[0].args
    assert (arg.value, arg.type) == (number, kind)


def test_grid_may_be_a_number_and_missing_axes_are_one(run):
    assert run(launching(grid="7")).launches[0].grid == (7, 1, 1)
    assert run(launching(grid="[7, 8]")).launches[0].grid == (7, 8, 1)


@pytest.mark.parametrize("grid", ["0", "(0,)", "(4, 0)", "(4, 4, 0)"])
def test_launch_with_a_zero_in_its_grid_is_left_out(run, grid):
    source = returning(f"{{'launches': [{{'kernel': 'k', 'grid': {grid}}}, {{'kernel': 'l', 'grid': 1}}]}}")
    assert [launch.kernel for launch in run(source).launches] == ["l"]


def test_workspaces_and_tensor_maps_are_buffers_by_name(run):
    source = returning(
        "{'launches': [{'kernel': 'k', 'grid': 1, 'args': ['x', 'partial', 'tile']}],"
        " 'workspaces': [{'name': 'partial', 'nbytes': 4 * case.axes.rows, 'zero_fill': True}],"
        " 'tensor_maps': [{'name': 'tile', 'buffer': 'x', 'dtype': 'fp16', 'shape': (1000, 300),"
        " 'strides_bytes': (2000,), 'box': (64, 8), 'swizzle': '128b'}]}"
    )
    plan = run(source)
    assert [(w.name, w.nbytes, w.zero_fill) for w in plan.workspaces] == [("partial", 1200, True)]
    assert plan.tensor_maps[0].box == (64, 8)
    assert plan.launches[0].args == (
        BufferArg(name="x"),
        BufferArg(name="partial"),
        TensorMapArg(name="tile"),
    )


def test_declined_case_is_named_in_the_plan_s_own_words(run):
    with pytest.raises(PlanDeclined) as declined:
        run(returning("{'unsupported': 'head_dim ' + 'above 256'}"))
    assert str(declined.value) == "head_dim above 256"
    assert issubclass(PlanDeclined, PlanFault)


def test_running_a_plan_changes_neither_parameters_nor_case(make):
    params, case = {"BLOCK": 1}, make.case()
    before = case.model_dump_json()
    run_plan(parse_plan(lines("params = 3", "case = 4")), case, params, make.device())
    assert params == {"BLOCK": 1}
    assert case.model_dump_json() == before


def test_plan_is_pure(run):
    source = launching(grid="(cdiv(case.axes.rows, params.BLOCK),)")
    assert run(source) == run(source)


CUDA = """// a file of CUDA C++
#include <cuda_fp16.h>

/*kernelwright
PARAMS = {"BLOCK": [128, 256]}

def plan(case, params, device):
    return {"launches": [{"kernel": "k", "grid": 1, "block": (params.BLOCK,), "args": [nothing]}]}
*/
extern "C" __global__ void k() { int plan = 1 / 2; }
"""


def test_block_comment_of_a_c_like_file_keeps_its_line_numbers(run):
    assert parse_plan(CUDA).lineno == 7
    assert parse_params(CUDA) == {"BLOCK": [128, 256]}
    with pytest.raises(PlanFault, match=r"^line 8: unknown name 'nothing'$"):
        run(CUDA)
    assert run(CUDA.replace("[nothing]", "['x']")).launches[0].block == (128, 1, 1)


def test_file_without_a_block_comment_is_python_as_it_stands():
    assert python_part(TAIL) == TAIL


def test_syntax_error_in_a_block_comment_names_the_line_of_the_file():
    with pytest.raises(PlanFault, match=r"not valid Python: .*line 8"):
        parse_plan(CUDA.replace("return {", "return {{"))


def test_block_comment_that_is_never_closed_is_refused():
    with pytest.raises(PlanFault, match="never closed"):
        parse_plan(CUDA.replace("*/", ""))


def test_params_are_a_literal_of_lists():
    source = (
        'import x\nPARAMS = {"BLOCK": [256, 512], "two": [False], "alpha": [0.5], "t": ["a"], "n": [-1]}\n'
    )
    expected = {"BLOCK": [256, 512], "two": [False], "alpha": [0.5], "t": ["a"], "n": [-1]}
    assert parse_params(source) == expected
    assert first_values(source) == {"BLOCK": 256, "two": False, "alpha": 0.5, "t": "a", "n": -1}


@pytest.mark.parametrize("source", ["", "x = 1\n", "PARAMS = {}\n", "int main() { return 1 / 0; }"])
def test_source_without_params_has_none(source):
    assert parse_params(source) == {}


@pytest.mark.parametrize(
    "literal",
    [
        "dict(A=[1])",
        "{'A': [x for x in (1, 2)]}",
        "{'A': [1 + 1]}",
        "{'A': [open('/etc/passwd')]}",
        "{**{}}",
        "{'A': (1, 2)}",
        "{'A': []}",
        "{'A': 1}",
        "{1: [1]}",
        "[1]",
        "'A'",
        "{[1]: [2]}",
        "{'A': [None]}",
        "{'A': [[1]]}",
        "{'A': [b'x']}",
        "{'A': [1 + 2j]}",
        "{'A': [set()]}",
        "{'A': [1e999]}",
        "{'A': ['\\ud800']}",
    ],
)
def test_params_that_are_no_table_of_values_are_refused_with_their_line(literal):
    with pytest.raises(PlanFault, match=r"^line 2: PARAMS must"):
        parse_params(f"import triton\nPARAMS = {literal}\n")


def test_accepted_params_can_always_be_chosen():
    values = first_values("PARAMS = {'A': [1, 2], 'B': [True], 'C': [0.5], 'D': ['x']}")
    assert ParamChoice(values=values).values == values


def test_deeply_nested_statement_beside_the_params_is_a_fault_at_worst():
    source = "x" + "[0]" * 1200 + " = 1\nPARAMS = {'A': [1]}\n"
    try:
        assert parse_params(source) == {"A": [1]}
    except PlanFault as fault:
        assert "nested" in str(fault) or "recursion" in str(fault)


# name: (source, line of the fault or None where it has none, words of the fault)
HOSTILE: dict[str, tuple[str, int | None, str]] = {
    "import": (lines("import os"), 2, "Import is outside"),
    "import from": (lines("from os import system"), 2, "ImportFrom is outside"),
    "dunder import": (lines("a = __import__('os')"), 2, "only these can be called"),
    "lambda": (lines("f = lambda: 1"), 2, "Lambda is outside"),
    "list comprehension": (lines("a = [i for i in (1, 2)]"), 2, "ListComp is outside"),
    "set comprehension": (lines("a = {i for i in (1, 2)}"), 2, "SetComp is outside"),
    "dict comprehension": (lines("a = {i: i for i in (1, 2)}"), 2, "DictComp is outside"),
    "generator": (lines("a = max(i for i in (1, 2))"), 2, "GeneratorExp is outside"),
    "for": (lines("for i in (1, 2):", "    pass"), 2, "For is outside"),
    "while": (lines("while True:", "    pass"), 2, "While is outside"),
    "dunder attribute": (lines("a = case.__class__"), 2, "attribute '__class__' is outside"),
    "dunder chain": (lines("a = ().__class__.__bases__[0]"), 2, "is outside"),
    "private attribute": (lines("a = case._x"), 2, "attribute '_x' is outside"),
    "method call": (lines("a = 'x'.format(1)"), 2, "only these can be called"),
    "getattr": (lines("a = getattr(case, 'axes')"), 2, "only these can be called"),
    "open": (lines("a = open('/etc/passwd')"), 2, "only these can be called"),
    "eval": (lines("a = eval('1')"), 2, "only these can be called"),
    "exec": (lines("exec('x = 1')"), 2, "cannot stand here|only these can be called"),
    "print": (lines("print(1)"), 2, "only these can be called"),
    "call of a call": (lines("a = int(1)(2)"), 2, "only these can be called"),
    "call of a subscript": (lines("a = [int][0](1)"), 2, "only these can be called"),
    "function as a value": (lines("a = int"), 2, "unknown name 'int'"),
    "f-string": (lines("a = f'{case}'"), 2, "JoinedStr is outside"),
    "star argument": (lines("a = max(*(1, 2))"), 2, "Starred is outside"),
    "star in a tuple": (lines("a = (*(1, 2), 3)"), 2, "Starred is outside"),
    "star target": (lines("a, *b = (1, 2)"), 2, "Starred is outside"),
    "keyword argument": (lines("a = int('7', base=8)"), 2, "can be called|keyword is outside"),
    "double star argument": (lines("a = int(**case)"), 2, "can be called|keyword is outside"),
    "double star in a dict": (lines("a = {**case}"), 2, r"\*\* in a dict"),
    "huge left shift": (lines("a = 1 << 1000000000000"), 2, "shift beyond 62 bits"),
    "left shift beyond 64 bits": (lines("a = 3 << 62"), 2, "beyond 64 bits"),
    "product beyond 64 bits": (lines("a = 1 << 62", "b = a * a"), 3, "beyond 64 bits"),
    "literal beyond 64 bits": (lines(f"a = {10**100}"), 2, "beyond 64 bits"),
    "literal of 5000 digits": (lines("a = " + "9" * 5000), None, "not valid Python"),
    "string repetition": (lines("a = 'x' * 1000000000"), 2, r"\* works on numbers only"),
    "repetition from the left": (lines("a = 1000000000 * 'x'"), 2, r"\* works on numbers only"),
    "tuple repetition": (lines("a = (1,) * 1000000000"), 2, r"\* works on numbers only"),
    "list repetition": (lines("a = [1] * 1000000000"), 2, r"\* works on numbers only"),
    "string formatting": (lines("a = '%1000000000d' % 1"), 2, "% works on numbers only"),
    "deep parentheses": (returning("(" * 500 + "1" + ")" * 500), None, "not valid Python"),
    "deep unary": (returning("-" * 5000 + "1"), None, "not valid Python|syntax nodes"),
    "deep not": (returning("not " * 1500 + "1"), 1, "nested too deeply"),
    "deep attribute": (lines("a = case" + ".axes" * 1300), 1, "nested too deeply"),
    "deep subscript": (lines("a = case" + "[0]" * 900), 1, "nested too deeply"),
    "long sum": (returning("+".join(["1"] * 1000)), 1, "nested too deeply"),
    "very long sum": (returning("+".join(["1"] * 3000)), None, "syntax nodes|not valid Python"),
    "very long list": (returning(f"[{'1,' * 10000}]"), 1, "syntax nodes; at most 4000"),
    "very long elif chain": (
        HEAD + "    if 0:\n        pass\n" + "    elif 0:\n        pass\n" * 5000 + TAIL,
        None,
        "not valid Python|syntax nodes",
    ),
    "division by zero": (lines("a = 1 // 0"), 2, "ZeroDivisionError"),
    "float division by zero": (lines("a = 1.0 / 0.0"), 2, "ZeroDivisionError"),
    "remainder by zero": (lines("a = 1 % 0"), 2, "ZeroDivisionError"),
    "cdiv by zero": (lines("a = 1", "b = cdiv(a, 0)"), 3, "ZeroDivisionError"),
    "nan": (lines("a = float('nan')"), 2, "non-finite"),
    "inf": (lines("a = float('inf')"), 2, "non-finite"),
    "overflowing literal": (lines("a = 1e999"), 2, "non-finite"),
    "overflowing product": (lines("a = 1e308 * 10"), 2, "non-finite"),
    "inf made an integer": (lines("a = int(1e308 * 10)"), 2, "non-finite"),
    "float made a huge integer": (lines("a = int(1e300)"), 2, "beyond 64 bits"),
    "text made an integer": (lines("a = int('seven')"), 2, "ValueError"),
    "text made a float": (lines("a = float('seven')"), 2, "ValueError"),
    "text of 5000 digits": (lines("a = int('" + "9" * 5000 + "')"), 2, "."),
    "least of nothing": (lines("a = min(())"), 2, "ValueError"),
    "negative left shift": (lines("a = 1 << -1"), 2, "ValueError|shift"),
    "negative right shift": (lines("a = 1 >> -1"), 2, "ValueError|shift"),
    "rounding away 300000 digits": (lines("a = round(5, -300000)"), 2, "."),
    "string that doubles": (lines("a = 'xxxxxxxxxxxxxxxx'", *["a = a + a"] * 20), None, "."),
    "tuple that doubles": (lines("a = (1, 2, 3, 4)", *["a = a + a"] * 18), None, "."),
    "compared nests that double": (
        lines("a = (1,)", "b = (1,)", *["a, b = (a, a), (b, b)"] * 18, "c = a == b"),
        None,
        ".",
    ),
    "hashed nest that doubles": (lines("a = (1,)", *["a = (a, a)"] * 18, "b = {a: 1}"), None, "."),
    "string and number": (lines("a = 'x' + 1"), 2, "TypeError"),
    "order of string and number": (lines("a = 'x' < 1"), 2, "TypeError"),
    "wrong number of arguments": (lines("a = cdiv(1)"), 2, "TypeError"),
    "power of a float": (lines("a = next_power_of_2(1.5)"), 2, "AttributeError|TypeError"),
    "unhashable key": (lines("a = {[1]: 2}"), 2, "TypeError"),
    "index out of range": (lines("a = (1, 2)[2]"), 2, "IndexError"),
    "index of a number": (lines("a = 5[0]"), 2, "cannot look up 0 in a int"),
    "index of a string": (lines("a = 'abc'[0]"), 2, "cannot look up 0 in a str"),
    "attribute of a number": (lines("a = case.axes.rows.real"), 2, "cannot look up 'real' in a int"),
    "slice": (lines("a = (1, 2)[0:1]"), 2, "Slice is outside"),
    "unknown axis": (lines("a = case.axes.depth"), 2, "no 'depth' here; there are rows, cols"),
    "unknown parameter": (lines("a = params.TILE"), 2, "no 'TILE' here; there are BLOCK"),
    "unknown name": (lines("a = rows"), 2, "unknown name 'rows'"),
    "global name": (f"ROWS = 4\n{lines('a = ROWS')}", 3, "unknown name 'ROWS'"),
    "wrong unpacking": (lines("a, b = (1, 2, 3)"), 2, "cannot unpack"),
    "unpacking a number": (lines("a, b = 5"), 2, "cannot unpack 5"),
    "chained assignment": (lines("a = b = 1"), 2, "Assign cannot stand here"),
    "assigned attribute": (lines("case.axes = 1"), 2, "only names and tuples of names"),
    "assigned entry": (lines("params['BLOCK'] = 1"), 2, "only names and tuples of names"),
    "augmented assignment": (lines("a = 1", "a += 1"), 3, "AugAssign is outside"),
    "annotated assignment": (lines("a: int = 1"), 2, "AnnAssign is outside"),
    "walrus": (lines("a = (b := 1)"), 2, "NamedExpr is outside"),
    "del": (lines("a = 1", "del a"), 3, "Delete is outside"),
    "global": (lines("global a"), 2, "Global is outside"),
    "nonlocal": (lines("nonlocal a"), 2, "Nonlocal is outside"),
    "assert": (lines("assert True"), 2, "Assert is outside"),
    "raise": (lines("raise case"), 2, "Raise is outside"),
    "try": (lines("try:", "    pass", "except case:", "    pass"), 2, "Try is outside"),
    "with": (lines("with case:", "    pass"), 2, "With is outside"),
    "match": (lines("match case:", "    case 1:", "        pass"), 2, "Match is outside"),
    "yield": (lines("a = yield"), 2, "Yield is outside"),
    "await": (lines("a = await case"), 2, "Await is outside"),
    "nested function": (lines("def f(): pass"), 2, "nested functions are outside"),
    "nested class": (lines("class C: pass"), 2, "ClassDef is outside"),
    "bare expression": (lines("max(1, 2)"), 2, "Expr cannot stand here"),
    "complex": (lines("a = 1j"), 2, "constant 1j is outside"),
    "bytes": (lines("a = b'x'"), 2, "constant b'x' is outside"),
    "ellipsis": (lines("a = ..."), 2, "constant Ellipsis is outside"),
    "hostile annotation": ("def plan(case: open('x'), params, device):\n" + TAIL, 1, "can be called"),
    "decorator": (f"@cache\n{lines()}", None, "signature must be exactly"),
    "default argument": ("def plan(case, params, device=None):\n" + TAIL, 1, "signature must be exactly"),
    "too few parameters": ("def plan(case, params):\n" + TAIL, 1, "signature must be exactly"),
    "other parameters": ("def plan(c, p, d):\n" + TAIL, 1, "signature must be exactly"),
    "keyword-only": ("def plan(case, params, *, device):\n" + TAIL, 1, "signature must be exactly"),
    "positional-only": ("def plan(case, /, params, device):\n" + TAIL, 1, "signature must be exactly"),
    "variable arguments": ("def plan(case, params, device, *a):\n" + TAIL, 1, "signature must be exactly"),
    "two plans": (lines() + lines(), None, "2 top-level functions named 'plan'"),
    "no plan": ("x = 1\n", None, "0 top-level functions named 'plan'"),
    "plan in a class": ("class A:\n    def plan(case, params, device): pass\n", None, "0 top-level"),
    "plan as a lambda": ("plan = lambda case, params, device: {}\n", None, "0 top-level"),
    "async plan": ("async " + lines(), None, "0 top-level"),
    "no Python at all": ("__global__ void k() {}\n", None, "not valid Python"),
    "null byte": (lines("a = '\0'"), None, "not valid Python"),
    "lone surrogate": (lines("a = '\ud800'"), None, "not valid Python"),
    "nothing returned": (HEAD + "    pass\n", 1, "plan returned nothing"),
    "bare return": (HEAD + "    return\n", None, "must return a dict with 'launches'"),
    "number returned": (returning("5"), None, "must return a dict with 'launches'"),
    "list returned": (returning("[]"), None, "must return a dict with 'launches'"),
    "dict without launches": (returning("{}"), None, "must return a dict with 'launches'"),
    "reason that is no text": (returning("{'unsupported': 5}"), None, "must return a dict"),
    "unknown key": (returning("{'launches': [], 'hooks': []}"), None, r"unknown keys \['hooks'\]"),
    "unknown keys of two types": (
        returning("{'launches': [], 'a': 1, 5: 2}"),
        None,
        "malformed|unknown keys",
    ),
    "launches that are no list": (returning("{'launches': 5}"), None, "malformed"),
    "launch that is no dict": (returning("{'launches': [5]}"), None, "malformed"),
    "launch without a grid": (returning("{'launches': [{'kernel': 'k'}]}"), None, "malformed.*grid"),
    "launch without a kernel": (returning("{'launches': [{'grid': 1}]}"), None, r"launches\.0\.kernel"),
    "negative grid": (launching(grid="-1"), None, "grid must be one to three"),
    "fractional grid": (launching(grid="1.5"), None, "grid must be one to three"),
    "grid of four": (launching(grid="(1, 1, 1, 1)"), None, "grid must be one to three"),
    "grid of none": (launching(grid="()"), None, "grid must be one to three"),
    "block of text": (launching(block="'wide'"), None, "block must be one to three"),
    "negative shared bytes": (launching(shared_bytes="-1"), None, "shared_bytes"),
    "unknown buffer": (launching(args="['y']"), None, "argument 'y' is no buffer"),
    "argument that is nothing": (launching(args="[None]"), None, "neither a name nor a number"),
    "argument of three": (launching(args="[(1, 2, 3)]"), None, "neither a name nor a number"),
    "argument of an unknown type": (launching(args="[('fp8', 1)]"), None, r"args\.0\.scalar\.type"),
    "typed argument that is no number": (launching(args="[('i32', 'x')]"), None, r"args\.0\.scalar\.value"),
    "argument nested without end": (
        HEAD + "    a = 1\n" + f"    a = {'(' * 150}a{',)' * 150}\n" * 9 + launching(args="[a]")[len(HEAD) :],
        None,
        ".",
    ),
    "grid nested without end": (
        HEAD + "    a = 1\n" + f"    a = {'(' * 150}a{',)' * 150}\n" * 9 + launching(grid="a")[len(HEAD) :],
        None,
        ".",
    ),
    "option that is a list": (launching(num_warps="[4]"), None, r"meta\.num_warps"),
    "option whose name is a number": (launching().replace("'grid'", "5: 1, 'grid'"), None, "meta"),
    "65 launches": (
        HEAD + f"    a = {{'kernel': 'k', 'grid': 1}}\n    return {{'launches': [{'a, ' * 65}]}}\n",
        None,
        "at most 64",
    ),
    "workspaces that are no list": (returning("{'launches': [], 'workspaces': 3}"), None, "malformed"),
    "workspace without a size": (
        returning("{'launches': [], 'workspaces': [{'name': 'w'}]}"),
        None,
        r"workspaces\.0\.nbytes",
    ),
    "workspace of negative size": (
        returning("{'launches': [], 'workspaces': [{'name': 'w', 'nbytes': -1}]}"),
        None,
        r"workspaces\.0\.nbytes",
    ),
    "tensor map of an unknown buffer": (
        returning(
            "{'launches': [], 'tensor_maps': [{'name': 't', 'buffer': 'y', 'dtype': 'fp16', 'shape': (8,),"
            " 'strides_bytes': (), 'box': (8,)}]}"
        ),
        None,
        "unknown buffer 'y'",
    ),
    "tensor map whose ranks differ": (
        returning(
            "{'launches': [], 'tensor_maps': [{'name': 't', 'buffer': 'x', 'dtype': 'fp16', 'shape': (8,),"
            " 'strides_bytes': (), 'box': (8, 8)}]}"
        ),
        None,
        "disagree in rank",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_or_malformed_plan_is_a_plan_fault_and_nothing_else_and_quickly(run, name):
    source, line, words = HOSTILE[name]
    started = time.process_time()
    with pytest.raises(PlanFault, match=words) as raised:
        run(source)
    assert time.process_time() - started < SECONDS
    assert type(raised.value) is PlanFault
    assert line is None or str(raised.value).startswith(f"line {line}: ")
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize("expression", ["2 ** 3", "2 ^ 3", "2 @ 3", "1 is 1", "1 is not 1", "~1"])
def test_operator_outside_the_subset_is_refused_with_its_line(run, expression):
    with pytest.raises(PlanFault, match="is outside the plan subset") as raised:
        run(lines(f"a = {expression}"))
    assert str(raised.value).startswith("line 2: ")


@pytest.mark.parametrize(
    "source",
    [
        launching(block="0"),
        launching(cluster="(0, 1)"),
        launching(args="[('i32', 1 << 40)]"),
        launching(args="[('u32', -1)]"),
        launching(args="[('i32', 1.5)]"),
        returning("{'launches': [], 'workspaces': [{'name': 'x', 'nbytes': 4}]}"),
        returning("{'launches': [], 'workspaces': [{'name': 'w', 'nbytes': 4}, {'name': 'w', 'nbytes': 8}]}"),
    ],
    ids=[
        "block without threads",
        "cluster without blocks",
        "number too wide for its type",
        "negative number of an unsigned type",
        "fraction of an integer type",
        "workspace that hides an input",
        "two workspaces of one name",
    ],
)
def test_plan_that_no_launcher_could_carry_out_is_refused(run, source):
    with pytest.raises(PlanFault):
        run(source)


@pytest.mark.parametrize(
    "source",
    [
        returning("{'unsupported': 'no \\ud800 here'}"),
        launching(kernel="'\\ud800'"),
        launching(constants="{'T': '\\ud800'}"),
    ],
    ids=["reason", "kernel", "constant"],
)
def test_text_that_cannot_be_written_never_leaves_the_language(run, source):
    try:
        written = run(source).model_dump_json()
    except PlanFault as fault:
        written = str(fault)
    assert written.encode().decode() == written


@given(st.text("def plan(cs):\n\t'\"{}[]0.é\0\\/*=", max_size=60))
def test_arbitrary_text_is_a_plan_fault_and_nothing_else(run, text):
    for source in (text, HEAD + "    " + text, returning(text), f"/*kernelwright {text}"):
        with pytest.raises(PlanFault):
            run(source)


VALID = launching(args="['x', case.axes.rows, ('i64', 5)]", constants="{'B': params.BLOCK}")


@given(st.integers(0, len(VALID) - 1), st.integers(0, 6), st.sampled_from(" ()[]{}:,.'\"0-*@x\n"))
@settings(max_examples=60)
def test_mutated_plan_is_a_plan_or_a_plan_fault(run, place, removed, added):
    source = VALID[:place] + added + VALID[place + removed :]
    try:
        plan = run(source)
    except PlanFault:
        return
    assert LaunchPlan.model_validate_json(plan.model_dump_json()) == plan
