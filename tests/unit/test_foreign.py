"""Words of others: whatever a candidate, a compiler or a file wrote, it steers no terminal and is a part of nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from kernelwright.cli.screen import Answer, err, out, print_json, telling
from kernelwright.core.brief import Answer as AuthorsAnswer
from kernelwright.core.candidate import Author
from kernelwright.core.foreign import HIDING, fenced, in_a_line, visible
from kernelwright.core.lesson import Lesson
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.messages.progress import Fault, Progress
from kernelwright.core.ports import BuildResult
from kernelwright.core.verdict import Stage, StageResult, Status

EVIL = "\x1b]52;c;Y3VybA==\x07\x1b[2J\x9b1;1H\u202eAll stages passed\r"
SEEN = "\ufffd]52;c;Y3VybA==\ufffd\ufffd[2J\ufffd1;1H\ufffdAll stages passed\ufffd"


class Told(Answer):
    """What a verb may print."""

    words: str


@given(st.text())
def test_no_text_hides_anything_grows_or_changes_twice(text: str) -> None:
    shown = visible(text)
    assert HIDING.search(shown) is None
    assert len(shown) <= len(text)
    assert visible(shown) == shown
    assert in_a_line(in_a_line(text, 20), 20) == in_a_line(text, 20)


def test_newlines_and_tabs_stay_and_everything_that_steers_becomes_a_mark() -> None:
    assert visible(EVIL) == SEEN
    assert visible("a\n\tb\r\nc") == "a\n\tb\nc"


def test_a_line_is_one_line_and_ends_where_it_must() -> None:
    assert in_a_line("one\n\n## Task\u2028two\x1b", 99) == "one ## Task two\ufffd"
    assert in_a_line("x" * 30, 10) == "xxxxxxxxx…"


@given(st.text(alphabet="`ab\n", max_size=30))
def test_nothing_inside_a_fence_closes_it(text: str) -> None:
    first, *inner, last = fenced(text, "cpp").split("\n")
    ticks = first.removesuffix("cpp")
    assert (ticks, set(ticks)) == (last, {"`"})
    assert not any(line.startswith(ticks) for line in inner)


def test_what_a_candidate_wrote_is_harmless_in_every_type_it_enters() -> None:
    held = [
        StageResult(stage=Stage.SMOKE, passed=False, seconds=0.1, reason=EVIL).reason,
        Disqualified(candidate_hash="c", status=Status.CRASHED, reason=EVIL).reason,
        BuildResult(status=Status.BUILD_FAILED, log=EVIL).log,
        Progress(text=EVIL).text,
        Fault(error="E", message=EVIL, trace=EVIL).trace,
        AuthorsAnswer(reason=EVIL).reason,
    ]
    assert held == [SEEN] * len(held)
    lines = [Lesson(claim=EVIL, evaluations=("e",)).claim, Author(name=EVIL).name]
    assert lines == [SEEN.removesuffix("\ufffd")] * 2


def test_the_screen_shows_every_text_as_it_is_and_obeys_none(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("[/head]", box=None)
    table.add_row(f"[red]{EVIL}[/x] :smile:")
    for one in (f"[/x] [link=https://x]y[/] :smile:{EVIL}", Text(EVIL), table):
        out().print(one, soft_wrap=True)
        err().print(one, soft_wrap=True)
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert HIDING.search(text) is None
        for shown in ("[/head]", "[/x] [link=https://x]y[/] :smile:", "[red]", "All stages passed"):
            assert shown in text


def test_the_changing_line_of_a_terminal_takes_brackets_for_brackets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take any stream for a terminal
    monkeypatch.setenv("TERM", "xterm")
    with telling("first [/x]") as tell:
        tell("looking at [/x]: expected [/b]\x1b]0;owned\x07")
    said = capsys.readouterr().err
    assert "\x1b]0;" not in said
    assert "[/x]" in said


def test_json_on_a_terminal_is_the_same_value_in_characters_that_can_be_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = EVIL + "\U000e0041\x7f naïve 日本"
    print_json(Told(words=words))
    text = capsys.readouterr().out
    assert HIDING.search(text) is None
    assert "naïve 日本" in text
    assert json.loads(text) == {"words": words}
