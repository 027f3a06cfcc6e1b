"""The normal form of a source: blind to comments and layout, and to nothing else."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelwright
from kernelwright.core.candidate import ParamChoice
from kernelwright.core.events import CandidateProposed, ProblemFound
from kernelwright.core.normal import key_of, known_keys, normal
from kernelwright.core.tree import fold

SEEDS = Path(kernelwright.__file__).parent / "seeds"
PLAIN = '''def plan(case, params, device):
    """Return the launches."""
    x = 1  # one
    return {"launches": []}
'''


@pytest.mark.parametrize(
    "same",
    [
        PLAIN.replace("  # one", ""),
        PLAIN.replace('    """Return the launches."""\n', ""),
        "# a new head\n\n" + PLAIN.replace("x = 1", "x   =  1"),
        '"""Why this module exists."""\n' + PLAIN,
        PLAIN.replace('"launches": []', '"launches":  [\n    ]'),
    ],
)
def test_python_is_the_same_without_comments_docstrings_and_layout(same):
    assert normal(same, "triton") == normal(PLAIN, "triton")


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("x = 1", "x = 2"),
        PLAIN.replace("x = 1", "x = 1.0"),
        PLAIN.replace("x = 1", "x = True"),
        PLAIN.replace('"launches"', '"launches "'),
        PLAIN.replace("    return", "    'a text, no docstring'\n    return"),
    ],
)
def test_python_that_says_something_else_is_another(other):
    assert normal(other, "triton") != normal(PLAIN, "triton")


def test_python_that_does_not_parse_is_told_by_its_text():
    assert normal("def (", "triton") == normal("def (", "triton") != normal("def  (", "triton")


CPP = 'int f(int a) { return a + +b; } // end\n#define F(x) x\nconst char* s = "// no comment";\n'


@pytest.mark.parametrize(
    "same",
    [
        CPP.replace("// end", "/* end\n of it */"),
        CPP.replace("a + +b", "a+ /* two */ +b"),
        CPP.replace("#define F(x) x", "#define F(x)   x  // macro"),
        CPP.replace("#define F(x) x", "#define F(x) \\\n x"),
        "\n\n\t" + CPP,
    ],
)
def test_cpp_is_the_same_without_comments_and_layout(same):
    assert normal(same, "cpp") == normal(CPP, "cpp")


@pytest.mark.parametrize(
    "other",
    [
        CPP.replace("a + +b", "a ++b"),
        CPP.replace("#define F(x)", "#define F (x)"),
        CPP.replace("#define F(x) x", "#define F(x)\nx"),
        CPP.replace("// no comment", "//  no comment"),
        CPP.replace("int a", "inta"),
        CPP + 'auto r = R"(// raw)";',
    ],
)
def test_cpp_that_says_something_else_is_another(other):
    assert normal(other, "cpp") != normal(CPP, "cpp")


def test_raw_string_keeps_what_looks_like_a_comment():
    one, two = (f'auto r = R"x(/* {word} )" */)x";' for word in ("a", "b"))
    assert normal(one, "cuda") != normal(two, "cuda")


def test_number_with_separators_and_exponents_is_one_token():
    assert normal("x = 1'000 + 1e+5;", "cpp") == normal("x=1'000+1e+5 ;", "cpp")
    assert normal("x = 1e +5;", "cpp") != normal("x = 1e+5;", "cpp")


def test_parameters_and_plan_in_the_block_comment_count():
    source = '/*kernelwright\nPARAMS = {"BLOCK": [64, 128]}\n*/\nint kernel_fn();'
    assert normal(source, "cpp") != normal(source.replace("128", "256"), "cpp")
    assert normal(source, "cpp") == normal(source.replace("PARAMS", "# the grid\nPARAMS"), "cpp")


@pytest.mark.parametrize(
    "path", sorted(SEEDS.glob("*/*.c[pu]*")), ids=lambda path: f"{path.parent.name}.{path.name}"
)
def test_marking_a_seed_with_a_comment_makes_no_new_kernel(path):
    text = path.read_text()
    marked = "// try 7\n" + text.replace("    ", "\t") + "\n/* the end */\n"
    assert normal(marked, "cpp") == normal(text, "cpp")
    assert normal(text + ";", "cpp") != normal(text, "cpp")


@given(st.text(max_size=80))
def test_any_text_has_a_normal_form_in_every_language(text):
    for backend in ("triton", "cpp"):
        assert normal(text, backend) == normal(text, backend)


def test_key_tells_parameters_apart_and_ignores_who_wrote_it(make):
    plain = make.candidate("int a;")
    assert key_of(plain) == key_of(make.candidate("int a; // again", note="mine"))
    assert key_of(plain) != key_of(make.candidate("int a;", choices=(ParamChoice(values={"B": 1}),)))
    assert key_of(plain) != key_of(make.candidate("int a;", backend="cuda"))


def test_known_keys_are_those_of_the_problem_alone_and_name_the_first_of_twins(make):
    problem, other = make.problem(), make.problem(reference="m:f")
    first, twin, stranger = make.candidate("int a;"), make.candidate("int  a;"), make.candidate("int b;")
    tree = fold(
        [
            ProblemFound(problem=problem),
            ProblemFound(problem=other),
            CandidateProposed(problem_hash=problem.hash, candidate=first),
            CandidateProposed(problem_hash=problem.hash, candidate=twin),
            CandidateProposed(problem_hash=other.hash, candidate=stranger),
        ]
    )
    assert known_keys(tree, problem.hash) == {key_of(first): first.hash}
