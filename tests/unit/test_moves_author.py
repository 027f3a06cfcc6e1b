"""The mover: one move an answer, chosen by the brief alone; nothing is proposed twice, and nothing raises."""

from pathlib import Path

import pytest

import kernelwright
from kernelwright.agents import mover
from kernelwright.core import plugins
from kernelwright.core.brief import Attempt, Brief
from kernelwright.core.candidate import Author, ParamChoice
from kernelwright.core.normal import key_of
from kernelwright.core.plan_language import first_values, parse_params
from kernelwright.core.ports import Moved
from kernelwright.core.verdict import Status

SEEDS = Path(kernelwright.__file__).parent / "seeds"


@pytest.fixture
def brief(make):
    """Return what builds a brief on the seed of rmsnorm."""

    def built(file="cpp.cpp", backend="cpp", **changes):
        source = (SEEDS / "rmsnorm" / file).read_text()
        parent = make.candidate(
            source,
            backend=backend,
            choices=(ParamChoice(values=first_values(source)),),
            author=Author(name="seed"),
        )
        return Brief(**({"problem": make.problem(), "parents": (parent,), "evaluations": ()} | changes))

    return built


def walked(found, steps=60, author=None):
    """Return every proposal the mover makes of one parent, each told to be known, and why it stops."""
    made = []
    for _ in range(steps):
        answer = (author or mover.author()).propose(found)
        if not answer.proposals:
            return made, answer.reason
        made += answer.proposals
        fresh = key_of(answer.proposals[0].candidate(found.problem))
        found = found.model_copy(update={"known": (*found.known, fresh)})
    raise AssertionError("the mover never stops")


def test_every_proposal_of_a_parent_is_new_and_then_it_says_why_there_is_none(brief):
    found = brief()
    made, reason = walked(found)
    keys = [key_of(one.candidate(found.problem)) for one in made]
    assert len(keys) == len(set(keys)) >= 3
    assert {one.author.detail.partition(":")[0] for one in made} == {
        "non_temporal_stores",
        "openmp_schedule",
        "pipeline_depth",
        "unrolling",
    }
    assert "no_staging: no loop works on buffers that are only copied to and from memory" in reason


def test_proposal_names_its_move_and_tells_of_it_in_a_sentence(brief):
    (proposal,) = mover.author("non_temporal_stores").propose(brief()).proposals
    assert proposal.author == Author(
        name="mover", detail="non_temporal_stores: 1 stores of results past the cache"
    )
    assert proposal.note == "non temporal stores: 1 stores of results past the cache"
    assert proposal.choices[-1].values == {"UNROLL": 4, "GRAIN": 16384, "STREAM": 1}


def test_same_brief_gives_the_same_answer_and_another_seed_another_order(brief):
    assert mover.author().propose(brief(seed=3)) == mover.author().propose(brief(seed=3))
    firsts = {mover.author().propose(brief(seed=seed)).proposals[0].author.detail for seed in range(12)}
    assert len(firsts) > 1


def test_diagnosis_decides_which_move_comes_first(brief):
    told = ("memory bandwidth", "thread imbalance", "instruction overhead")
    first = [
        mover.author()
        .propose(brief(diagnoses=told, diagnosis=at))
        .proposals[0]
        .author.detail.partition(":")[0]
        for at in range(3)
    ]
    assert first == ["non_temporal_stores", "openmp_schedule", "unrolling"]


def test_card_decides_where_there_is_no_diagnosis(brief):
    for move in ("unrolling", "openmp_schedule"):
        answer = mover.author().propose(brief(cards=(f"# A card\n\n- tier: 3\n- move: {move}\n",)))
        assert answer.proposals[0].author.detail.startswith(move)


def test_expansions_without_a_diagnosis_begin_with_different_moves(brief):
    orders = [tuple(mover.ordered(brief(diagnosis=at))) for at in range(4)]
    assert len({order[0] for order in orders}) == 4
    assert {frozenset(order) for order in orders} == {frozenset(plugins.names("moves"))}


def test_what_a_sibling_tried_waits_until_the_others_had_their_turn(brief):
    tried = mover.author().propose(brief()).proposals[0]
    attempt = Attempt(
        candidate_hash="0" * 64, relation="sibling", author=tried.author, note=tried.note, status=Status.WRONG
    )
    again = mover.author().propose(brief(attempts=(attempt,))).proposals[0]
    assert again.author.detail.partition(":")[0] != tried.author.detail.partition(":")[0]


def test_bold_brief_is_answered_with_two_moves_in_a_row(brief):
    calm = brief()
    (proposal,) = mover.author().propose(calm.model_copy(update={"bold": True})).proposals
    first, second = proposal.author.detail.partition(":")[0].split("+")
    single = mover.author(first).propose(calm).proposals[0]
    after = calm.model_copy(update={"parents": (single.candidate(calm.problem),)})
    assert mover.author(second).propose(after).proposals[0].source == proposal.source
    assert proposal.source not in {one.source for one in walked(calm)[0]}


def test_bold_mover_that_has_no_two_moves_left_makes_single_ones_and_stops(brief):
    bold = brief().model_copy(update={"bold": True})
    made, reason = walked(bold)
    doubled = ["+" in one.author.detail for one in made]
    assert doubled == sorted(doubled, reverse=True)
    assert set(doubled) == {True, False}
    assert reason.startswith("no move gives anything new")


def test_two_moves_that_a_sibling_has_are_not_made_again(brief):
    bold = brief().model_copy(update={"bold": True})
    (proposal,) = mover.author().propose(bold).proposals
    made = Attempt(candidate_hash="a", relation="sibling", author=proposal.author, note="", status=None)
    (other,) = mover.author().propose(bold.model_copy(update={"attempts": (made,)})).proposals
    pairs = [one.author.detail.partition(":")[0] for one in (proposal, other)]
    assert all("+" in pair for pair in pairs) and pairs[0] != pairs[1]


def test_bold_mover_that_may_make_one_move_alone_makes_it(brief):
    bold = brief().model_copy(update={"bold": True})
    (proposal,) = mover.author("non_temporal_stores").propose(bold).proposals
    assert proposal.author.detail.startswith("non_temporal_stores: ")


def test_tuned_values_stay_and_those_of_the_move_are_set(brief, make):
    found = brief()
    rows = (
        ParamChoice(case_hashes=("a" * 64,), values={"UNROLL": 8, "GRAIN": 65536}),
        ParamChoice(values={"UNROLL": 2, "GRAIN": 16384}),
    )
    tuned = found.parents[0].model_copy(update={"choices": rows})
    (proposal,) = (
        mover.author("openmp_schedule").propose(found.model_copy(update={"parents": (tuned,)})).proposals
    )
    assert [row.values for row in proposal.choices] == [
        {"UNROLL": 8, "GRAIN": 65536, "SCHEDULE_1": "dynamic"},
        {"UNROLL": 2, "GRAIN": 16384, "SCHEDULE_1": "dynamic"},
    ]


def test_value_that_a_move_took_out_of_the_list_falls_back_to_the_first(make):
    source = (SEEDS / "matmul" / "cpp.cpp").read_text()
    tuned = make.candidate(source, op="matmul", choices=(ParamChoice(values={"NC": 512, "KC": 384}),))
    way = Moved(source.replace('"NC": [256, 512, 128]', '"NC": [240, 480]'), "", {})
    (row,) = mover.carried(tuned, way)
    assert (row.values["NC"], row.values["KC"]) == (240, 384)
    assert row.values.keys() == parse_params(way.source).keys()


def test_move_of_the_second_parent_is_made_on_the_first(brief):
    found = brief()
    first, second = (
        mover.author(name).propose(found).proposals[0] for name in ("non_temporal_stores", "openmp_schedule")
    )
    both = tuple(one.candidate(found.problem) for one in (first, second))
    (made,) = mover.author().propose(found.model_copy(update={"parents": both})).proposals
    assert made.author.detail == second.author.detail
    assert "stream(target + i" in made.source
    assert "schedule(SCHEDULE_1)" in made.source
    assert (made.choices[-1].values["STREAM"], made.choices[-1].values["SCHEDULE_1"]) == (1, "dynamic")


def test_values_of_a_second_parent_that_was_tuned_are_taken_over(brief):
    found = brief()
    tuned = found.parents[0].model_copy(
        update={
            "choices": (ParamChoice(values={"UNROLL": 8, "GRAIN": 65536}),),
            "author": Author(name="tuner"),
        }
    )
    moved = mover.author("non_temporal_stores").propose(found).proposals[0].candidate(found.problem)
    (made,) = mover.author().propose(found.model_copy(update={"parents": (moved, tuned)})).proposals
    assert made.choices[-1].values == {"UNROLL": 8, "GRAIN": 65536, "STREAM": 1}
    assert made.source == moved.source


def test_what_the_plan_declines_is_not_proposed(brief):
    found = brief("triton.py", "triton")
    source = found.parents[0].source
    words = '    """Return the launches of a case."""\n'
    refusal = '    if params.lane_elements > 32:\n        return {"unsupported": "wide"}\n'
    picky = source.replace(words, words + refusal, 1)
    parent = found.parents[0].model_copy(update={"source": picky})
    found = found.model_copy(update={"parents": (parent,)})
    made, reason = walked(found, author=mover.author("vector_width"))
    assert {row.values["lane_elements"] for one in made for row in one.choices} == {4, 32}
    assert "lane_elements 64, beyond [8, 16, 32]: rmsnorm 8x64 fp16: wide" in reason


@pytest.mark.parametrize(
    "source", ["", "int kernel_fn();", "\x00", "def plan(", "/*kernelwright\nPARAMS = [\n*/"]
)
@pytest.mark.parametrize("backend", ["cpp", "cuda", "triton", "eager"])
def test_parent_that_cannot_be_read_is_a_reason(brief, make, source, backend):
    parent = make.candidate(source, backend=backend)
    answer = mover.author().propose(brief(parents=(parent,)))
    assert not answer.proposals
    assert answer.reason


def test_no_parent_and_an_unknown_move_are_reasons(brief):
    assert mover.author().propose(brief(parents=())).reason == "there is no source to move"
    assert mover.author("fly").propose(brief()).reason == "there is no move fly"


def test_mover_leaves_torch_and_triton_alone(fresh_python):
    code = """
from kernelwright.core import plugins
for name in plugins.names("moves"):
    plugins.load("moves", name)
plugins.load("agents", "mover")
answer = {name: name in sys.modules for name in ("torch", "triton", "libcst")}
"""
    assert fresh_python(code, {}) == {"torch": False, "triton": False, "libcst": True}
