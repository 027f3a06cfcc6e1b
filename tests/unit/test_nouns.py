"""Nouns are frozen, refuse what they do not know, and are identified by their content alone."""

import json
import math
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.case import Case, Compute, DType, TensorSpec
from kernelwright.core.device import Device
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.lesson import Lesson
from kernelwright.core.problem import Problem

NUMBERS = st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text("abcdefgh_", min_size=1, max_size=6)
TEXT = st.text('ab \n\0é€😀"\\', max_size=20)


def test_digest_is_sha256_of_the_utf8_text():
    assert digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest("é") == digest("é".encode())


def test_canonical_json_sorts_keys_and_leaves_no_spaces():
    assert canonical_json({"b": [1, 2.5, True], "a": "é"}) == '{"a":"é","b":[1,2.5,true]}'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_canonical_json_has_no_spelling_for_a_number_that_is_none(value):
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json([value])


@given(st.dictionaries(NAMES, NUMBERS))
def test_canonical_json_does_not_depend_on_the_order_of_keys(values):
    backwards = dict(reversed(values.items()))
    assert canonical_json(backwards) == canonical_json(values)
    assert json.loads(canonical_json(values)) == values


def test_equal_content_has_an_equal_hash_in_another_process(make, fresh_python):
    nouns = [
        make.case(),
        make.problem(),
        make.candidate(choices=(ParamChoice(values={"B": 4, "A": True}),)),
        make.device(),
    ]
    code = """
from kernelwright.core.candidate import Candidate
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.problem import Problem
kinds = {kind.__name__: kind for kind in (Case, Problem, Candidate, Device)}
answer = {name: kinds[name].model_validate_json(text).hash for name, text in given.items()}
"""
    sent = {type(noun).__name__: noun.model_dump_json() for noun in nouns}
    assert fresh_python(code, sent) == {type(noun).__name__: noun.hash for noun in nouns}


@given(st.dictionaries(NAMES, NUMBERS, max_size=4))
def test_case_keeps_its_hash_through_json(make, scalars):
    case = make.case(scalars=scalars)
    again = Case.model_validate_json(case.model_dump_json())
    assert again == case
    assert again.hash == case.hash
    assert list(again.scalars.items()) == list(case.scalars.items())


@given(
    st.dictionaries(NAMES, NUMBERS | st.text("xyzé\n", max_size=5), max_size=4),
    st.text('ab \n\0é€😀"\\', max_size=20),
)
def test_candidate_keeps_its_hash_through_json(make, values, note):
    candidate = make.candidate(choices=(ParamChoice(values=values),), note=note)
    again = Candidate.model_validate_json(candidate.model_dump_json())
    assert again == candidate
    assert again.hash == candidate.hash


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_weight_is_no_part_of_a_case(make, weight):
    assert make.case(weight=weight).hash == make.case().hash


def test_weight_of_a_case_is_part_of_its_problem(make):
    assert make.problem(cases=(make.case(weight=2.0),)).hash != make.problem().hash


def test_order_of_scalars_is_part_of_a_case(make):
    one = make.case(scalars={"causal": True, "scale": 0.5})
    other = make.case(scalars={"scale": 0.5, "causal": True})
    assert one.hash != other.hash


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0, False), (0.0, -0.0)])
def test_scalars_that_compare_equal_but_behave_differently_are_different_cases(make, one, other):
    assert one == other
    assert make.case(scalars={"s": one}).hash != make.case(scalars={"s": other}).hash


CASE_CHANGES = [
    {"op": "layernorm"},
    {"axes": {"rows": 8, "cols": 65}},
    {"dtype": DType.BF16},
    {"compute": Compute.STRICT_FP32},
    {"inputs": (TensorSpec(name="x", shape=(8, 64), dtype=DType.FP16, offset=1),)},
    {"inputs": (TensorSpec(name="x", shape=(8, 64), dtype=DType.FP16, strides=(128, 1)),)},
    {"outputs": ()},
    {"scalars": {"eps": 1e-6}},
    {"scalars": {}},
]
CANDIDATE_CHANGES = [
    {"op": "layernorm"},
    {"backend": "cuda"},
    {"source": "int kernel_fn() ;"},
    {"choices": (ParamChoice(values={"BLOCK": 128}),)},
    {"choices": (ParamChoice(case_hashes=("ab",)), ParamChoice())},
    {"origin": Origin.BASELINE},
]
DEVICE_CHANGES = [
    {"kind": "rocm"},
    {"name": "Other GPU"},
    {"arch": "sm_100"},
    {"index": 1},
    {"driver": "580"},
    {"units": 131},
    {"memory_bytes": 1},
    {"cache_bytes": 1},
    {"shared_bytes": 1},
]


@pytest.mark.parametrize(
    ("noun", "changes"),
    [("case", CASE_CHANGES), ("candidate", CANDIDATE_CHANGES), ("device", DEVICE_CHANGES)],
)
def test_changing_any_identity_field_changes_the_hash(make, noun, changes):
    build = getattr(make, noun)
    hashes = [build().hash, *(build(**change).hash for change in changes)]
    assert len(set(hashes)) == len(changes) + 1


def test_every_identity_field_is_among_the_changes_tried():
    assert {key for change in CASE_CHANGES for key in change} == set(Case.model_fields) - {"weight"}
    riding = {"parents", "author", "note"}
    assert {key for change in CANDIDATE_CHANGES for key in change} == set(Candidate.model_fields) - riding
    assert {key for change in DEVICE_CHANGES for key in change} == set(Device.model_fields)


def test_changing_op_cases_device_or_reference_changes_a_problem(make):
    plain = make.problem()
    hashes = {
        plain.hash,
        make.problem(cases=(make.case(rows=9),)).hash,
        make.problem(cases=(make.case(), make.case(rows=9))).hash,
        make.problem(device=make.device(index=1)).hash,
        make.problem(reference="models.llama:Block").hash,
        make.problem(op="graph", cases=(make.case(op="graph"),)).hash,
    }
    assert len(hashes) == 6


def test_order_of_cases_count_and_share_are_no_part_of_a_problem(make):
    small, large = make.case(rows=1), make.case(rows=9)
    one = make.problem(cases=(small, large))
    assert make.problem(cases=(large, small), count=7, share=0.25).hash == one.hash


def test_author_parents_and_note_are_no_part_of_a_candidate(make):
    other = make.candidate(parents=("a" * 64,), author=Author(name="tuner", detail="trial 9"), note="wider")
    assert other.hash == make.candidate().hash
    assert other != make.candidate()


def test_nouns_of_different_kinds_never_share_a_hash(make):
    nouns = [make.case(), make.problem(), make.candidate(), make.device()]
    assert len({noun.hash for noun in nouns}) == 4
    assert all(len(noun.hash) == 64 and int(noun.hash, 16) >= 0 for noun in nouns)


def test_reading_the_hash_changes_neither_equality_nor_the_stored_text(make):
    read, unread = make.candidate(), make.candidate()
    before = read.model_dump_json()
    assert read.hash == digest(f"Candidate:{canonical_json(read.identity())}")
    assert read == unread
    assert read.model_dump_json() == before


def test_copy_with_other_content_has_another_hash_even_after_the_hash_was_read(make):
    original = make.candidate()
    assert original.hash == make.candidate().hash
    assert original.model_copy(update={"source": "other"}).hash == make.candidate("other").hash


@pytest.mark.parametrize("noun", ["case", "problem", "candidate", "device"])
def test_nouns_are_frozen(make, noun):
    built = getattr(make, noun)()
    for field in type(built).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(built, field, getattr(built, field))


@pytest.mark.parametrize("noun", ["case", "problem", "candidate", "device"])
def test_unknown_keys_are_refused(make, noun):
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        getattr(make, noun)(colour="red")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(make, value):
    with pytest.raises(ValidationError):
        make.case(scalars={"eps": value})
    with pytest.raises(ValidationError):
        make.case(weight=value)
    with pytest.raises(ValidationError):
        ParamChoice(values={"ALPHA": value})
    with pytest.raises(ValidationError):
        make.problem(share=value)


def test_source_that_no_file_could_hold_is_no_candidate(make):
    with pytest.raises(ValidationError):
        make.candidate("int kernel_fn(); // \ud800")


def test_problem_refuses_cases_of_another_op(make):
    with pytest.raises(ValidationError, match=r"problem of op 'softmax' holds cases of \['rmsnorm'\]"):
        make.problem(op="softmax")


def test_problem_without_cases_is_refused(make):
    with pytest.raises(ValidationError, match="at least 1 item"):
        make.problem(cases=())


@pytest.mark.parametrize("weight", [0.0, -1.0])
def test_weight_must_be_positive(make, weight):
    with pytest.raises(ValidationError, match="greater than 0"):
        make.case(weight=weight)


def test_values_come_from_the_row_of_the_case_or_from_the_last_rule(make):
    rows = (
        ParamChoice(case_hashes=("a", "b"), values={"BLOCK": 1}),
        ParamChoice(case_hashes=("c",), values={"BLOCK": 2}),
        ParamChoice(values={"BLOCK": 3}),
    )
    candidate = make.candidate(choices=rows)
    assert [candidate.values_for(name)["BLOCK"] for name in "abcd"] == [1, 1, 2, 3]


@pytest.mark.parametrize("choices", [(), (ParamChoice(case_hashes=("ab",), values={"BLOCK": 1}),)])
def test_table_without_a_rule_for_unseen_shapes_is_refused(make, choices):
    with pytest.raises(ValidationError):
        make.candidate(choices=choices)


def test_lesson_without_evidence_is_refused():
    with pytest.raises(ValidationError, match="at least 1 item"):
        Lesson(claim="wider loads help", evaluations=())
    assert len(Lesson(claim="wider loads help", evaluations=("ab",)).hash) == 64


SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def _offsets(spec: TensorSpec) -> list[int]:
    """Return where each element lies, row-major, by walking every index."""
    return [
        spec.offset + sum(i * s for i, s in zip(index, spec.element_strides, strict=True))
        for index in product(*(range(extent) for extent in spec.shape))
    ]


@given(SHAPES, st.integers(0, 3))
def test_contiguous_tensor_lies_densely_in_row_major_order(shape, offset):
    spec = TensorSpec(name="x", shape=shape, dtype=DType.FP16, offset=offset)
    offsets = _offsets(spec)
    assert len(offsets) == spec.numel == math.prod(shape)
    assert all(after - before == 1 for before, after in pairwise(offsets))
    assert spec.is_contiguous
    assert spec.nbytes == 2 * len(offsets)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=4), st.integers(0, 3))
def test_storage_reaches_exactly_to_the_last_element(axes, offset):
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    spec = TensorSpec(name="x", shape=shape, dtype=DType.FP32, strides=strides, offset=offset)
    offsets = _offsets(spec)
    assert spec.storage_elements == max(offsets, default=offset - 1) + 1
    is_dense = all(after - before == 1 for before, after in pairwise(offsets))
    assert spec.is_contiguous == is_dense or spec.numel == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shape": (2, 3), "strides": (1,)}, "2 axes but 1 strides"),
        ({"shape": (-1,)}, "negative extent or stride"),
        ({"shape": (2,), "strides": (-1,)}, "negative extent or stride"),
        ({"shape": (2,), "offset": -1}, "greater than or equal to 0"),
    ],
)
def test_layout_that_no_buffer_can_have_is_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        TensorSpec(name="x", dtype=DType.FP32, **fields)


def test_itemsize_is_known_for_every_dtype():
    sizes = {kind.value: kind.itemsize for kind in DType}
    assert sizes == {"fp32": 4, "fp16": 2, "bf16": 2, "fp64": 8, "int64": 8, "int32": 4, "bool": 1}


def test_label_names_op_axes_and_dtype(make):
    assert make.case(rows=512, cols=256).label == "rmsnorm 512x256 fp16"


def test_problem_keeps_its_hash_through_json(make):
    problem = make.problem(cases=(make.case(weight=0.1 + 0.2), make.case(rows=3)), reference="m:f")
    assert Problem.model_validate_json(problem.model_dump_json()).hash == problem.hash
