"""Marked regions: what is inside may change, every byte outside stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.core.errors import BadInput
from kernelwright.core.marked import outside, outside_unchanged, put_back, regions, replaced

SOURCE = """#include "kernelwright.h"
// kernelwright: begin loop
for (;;) {}
  // kernelwright: end loop
int between;
// kernelwright: begin tail
// kernelwright: end tail
int after;
"""
LINES = st.text(alphabet="ab {};/\t#", max_size=12)
BODY = st.lists(LINES, max_size=4).map(lambda lines: "".join(f"{line}\n" for line in lines))


def test_regions_come_in_order_with_their_text() -> None:
    found = regions(SOURCE, "k.cpp")
    assert [(one.name, SOURCE[one.start : one.end]) for one in found] == [
        ("loop", "for (;;) {}\n"),
        ("tail", ""),
    ]
    assert "".join(outside(SOURCE, "k.cpp")) == SOURCE.replace("for (;;) {}\n", "")


def test_a_text_without_marks_has_no_regions_and_may_change_anywhere() -> None:
    assert regions("int a;\n", "k.cpp") == ()
    assert outside_unchanged("int a;\n", "int b;\n") is None
    assert outside_unchanged("// kernelwright: end a\n", "int b;\n") is None


@given(inside=BODY, tail=BODY)
def test_replacing_regions_leaves_every_character_outside(inside: str, tail: str) -> None:
    made = replaced(replaced(SOURCE, "loop", inside, "k.cpp"), "tail", tail, "k.cpp")
    assert outside(made, "k.cpp") == outside(SOURCE, "k.cpp")
    assert outside_unchanged(SOURCE, made) is None
    assert [made[one.start : one.end] for one in regions(made, "k.cpp")] == [inside, tail]


@given(place=st.integers(0, len(SOURCE) - 1), character=st.sampled_from("xy\n"))
def test_one_changed_character_outside_is_refused_and_inside_is_not(place: int, character: str) -> None:
    if SOURCE[place] == character:
        return
    loop = regions(SOURCE, "k.cpp")[0]
    changed = SOURCE[:place] + character + SOURCE[place + 1 :]
    is_inside = (
        loop.start <= place < loop.end - 1
    )  # the last line end of a region keeps the mark on its own line
    assert (outside_unchanged(SOURCE, changed) is None) == is_inside


CHANGED = {
    "before a region": (("kernelwright.h", "other.h"), "before region 'loop'"),
    "between two": (("int between", "int beyond"), "before region 'tail'"),
    "behind the last": (("int after;\n", ""), "behind region 'tail': 1 lines are missing"),
    "a renamed region": (("loop", "hoop"), "its regions are hoop, tail, not loop, tail"),
    "a lost end": (("  // kernelwright: end loop\n", ""), "its marks are damaged"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_change_outside_is_refused_by_name(name: str) -> None:
    (old, new), words = CHANGED[name]
    assert words in (outside_unchanged(SOURCE, SOURCE.replace(old, new)) or "")


BAD = {
    "no end": ("// kernelwright: begin a\n", "the region 'a' has no end"),
    "no begin": ("// kernelwright: end a\n", "line 1: the region 'a' ends without a beginning"),
    "nested": ("// kernelwright: begin a\n// kernelwright: begin b\n", "line 2: 'b' begins inside 'a'"),
    "crossed": ("// kernelwright: begin a\n// kernelwright: end b\n", "'b' ends inside 'a'"),
    "twice": ("// kernelwright: begin a\n// kernelwright: end a\n" * 2, "two regions named 'a'"),
    "no name": ("// kernelwright: begin\n", "'' is no name"),
    "another word": ("// kernelwright: start a\n", "'start' is no mark"),
}


@pytest.mark.parametrize("name", BAD)
def test_marks_that_do_not_pair_are_one_line_with_the_remedy(name: str) -> None:
    text, words = BAD[name]
    with pytest.raises(BadInput, match="begin NAME") as caught:
        regions(text, "k.cpp")
    assert words in str(caught.value)


def test_a_region_that_is_not_there_and_content_with_marks_are_refused() -> None:
    with pytest.raises(BadInput, match="Did you mean 'loop'"):
        replaced(SOURCE, "lop", "", "k.cpp")
    with pytest.raises(BadInput, match="a mark of its own"):
        replaced(SOURCE, "loop", "// kernelwright: end loop\n", "k.cpp")


def test_a_file_with_mixed_line_ends_keeps_them_outside() -> None:
    mixed = SOURCE.replace("int after;\n", "int after;\r\n")
    made = put_back(mixed, replaced(SOURCE, "loop", "int fast;\n", "k.cpp"), "k.cpp")
    assert made == mixed.replace("for (;;) {}\n", "int fast;\r\n")


def test_a_proposal_goes_back_with_the_line_ends_of_the_file() -> None:
    dos = SOURCE.replace("\n", "\r\n")
    proposal = replaced(SOURCE, "loop", "int fast;\n", "k.cpp")
    made = put_back(dos, proposal, "k.cpp")
    assert made == dos.replace("for (;;) {}\r\n", "int fast;\r\n")
    with pytest.raises(BadInput, match="what lies behind region 'tail'"):
        put_back(dos, proposal.replace("int after", "int later"), "k.cpp")
    with pytest.raises(BadInput, match="no marked region"):
        put_back("int a;\n", proposal, "k.cpp")
