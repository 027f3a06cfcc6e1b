"""What the pages show, and that no text of a candidate can be more than text on them."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from importlib import resources

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kernelwright.core.candidate import Author, ParamChoice
from kernelwright.core.events import LessonLearnt, Noted
from kernelwright.core.foreign import in_a_line, visible
from kernelwright.core.lesson import Lesson
from kernelwright.report.axes import LogScale, calls, micros, padded, span, ticks, whole_ticks
from kernelwright.report.html import page
from kernelwright.report.lineage import drawn, rows
from kernelwright.report.markdown import document, fenced, plain
from kernelwright.report.markup import rendered, tag
from kernelwright.report.model import Experiment, Fate
from kernelwright.report.results import results_tsv
from tests.unit.report_runs import Telling, region, shipped_run

HOSTILE = (
    "<script>alert(1)</script>",
    "</title></style></pre></svg><img src=x onerror=alert(1)>",
    '" onload="alert(1)" x="',
    "' onmouseover='alert(1)",
    "&lt;script&gt;&#60;script&#62;",
    "]]><![CDATA[<svg/onload=alert(1)>",
    "--><!--<iframe src=javascript:alert(1)>",
    "[click](javascript:alert(1)) ![x](http://evil.test/x.png)",
    "| a | b |\n|---|---|\n\n# heading\n\n```\nfence\n```\n<b>bold</b>",
    "[1]: http://evil.test 'x'",
    "https://evil.test www.evil.test @everyone #1 $x$ **bold** __bold__ ~~gone~~ `code`",
    "1. item\n- item\n+ item\n> quote\n===",
    "\x00\x1b[31m\u202egnp.exe\u2066\ufeff",
    "\\",
)


def named_run(make, text):
    """Return a run in which a text stands wherever an author, a user or the judge may have written it."""
    run = (
        Telling(make, model=f"net.py:{text}")
        .started(note=text)
        .ranked(region(f"r{text}", skipped=f"w{text}"))
        .found()
    )
    base = run.baseline(100.0)
    seed = run.challenger(
        base, (100.0, 80.0), f"// seed\n{text}\n", note=f"n{text}", author=Author(name=f"a{text}")
    )
    run.challenger(
        seed,
        (80.0, 90.0),
        "slower",
        kept=False,
        note=f"m{text}",
        author=Author(name="mover", detail=f"d{text}"),
        parents=(seed.hash,),
    )
    best = run.challenger(
        base,
        (100.0, 50.0),
        f"// winner\n{text}\n{text}\n",
        parents=(seed.hash,),
        choices=(ParamChoice(values={"mode": f"v{text}"}),),
    )
    run.decided(best, kept=True, reason=f"because {text}")
    run.tell(LessonLearnt(lesson=Lesson(claim=f"c{text}", evaluations=("e",))), Noted(text=f"o{text}"))
    return run.verified(best).ended(f"e{text}")


class Skeleton(HTMLParser):
    """Collects tags with the names of their attributes, and all text."""

    def __init__(self, text):
        super().__init__()
        self.shape, self.words = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.shape.append((tag, tuple(name for name, _ in attrs)))
        self.words += [value or "" for _, value in attrs]

    def handle_endtag(self, tag):
        self.shape.append((f"/{tag}", ()))

    def handle_data(self, data):
        self.words.append(data)

    def handle_comment(self, data):
        self.shape.append(("comment", ()))

    def unknown_decl(self, data):
        self.shape.append(("declaration", ()))


def unspanned(shape):
    """Return the skeleton without the lines of the diff: a text of more lines has more of them."""
    return [one for one in shape if one not in {("span", ("class",)), ("/span", ())}]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_adds_an_element_or_an_attribute_to_the_page(make, text):
    found, known = (
        Skeleton(page(named_run(make, text).report())),
        Skeleton(page(named_run(make, "word").report())),
    )
    assert unspanned(found.shape) == unspanned(known.shape)
    joined = "".join(found.words)
    for letter in "nmac":  # notes, authors and claims are one line each
        assert f"{letter}{in_a_line(text)}" in joined
    for letter in "ow":
        assert f"{letter}{visible(text)}" in joined


@given(text=st.text(max_size=40))
def test_any_text_is_shown_as_it_is_and_as_nothing_else(text):
    found = Skeleton(rendered(tag("p", text, title=text)))
    assert found.shape == [("p", ("title",)), ("/p", ())]
    # HTML reads both ends of a line as one.
    assert "".join(found.words) == visible(text) * 2


def test_what_cannot_be_seen_is_shown():
    assert visible("a\u202eb\x00c\u200bd\ud800e\x1bf\n\tg") == "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf\n\tg"


def test_page_and_markdown_hold_nothing_that_turns_or_hides_text(make):
    report = named_run(make, "x\u202egnp\u200b.exe\x1b").report()
    for text in (page(report), document(report, "")):
        assert visible(text) == text
        assert "x\ufffdgnp\ufffd.exe\ufffd" in text


def test_page_asks_nobody_for_anything(make):
    text = page(shipped_run(make).report())
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?://""", text)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_of_the_page_can_be_told_from_what_they_stand_on(theme):
    style = resources.files("kernelwright.report").joinpath("page.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    named = dict(
        re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", light if theme == "light" else dark.split("* {")[0])
    )
    for words in ("--ink", "--soft", "--floor", "--link"):
        assert contrast(named[words], named["--paper"]) >= 4.5, words
    for mark in ("--kept", "--reverted", "--failed"):
        assert contrast(named[mark], named["--paper"]) >= 3, mark
    for side in ("--added", "--removed"):
        assert contrast(named["--ink"], named[side]) >= 7, side
    inside = {"--s0": named["--on-s0"], "--left0": named["--on-left"], "--left1": named["--on-left"]}
    for bar in ("--s0", "--s1", "--s2", "--s3", "--s4", "--s5", "--left0", "--left1"):
        assert contrast(inside.get(bar, "#10151a"), named[bar]) >= 4.5, bar


def test_page_shows_every_part_of_a_run(make):
    words = " ".join(Skeleton(page(named_run(make, "word").report())).words)
    for part in (
        *("Problems", "Progress", "The model's time, before and after", "Roofline", "Search tree"),
        *("Winner against seed", "Certificate", "Lessons", "Left out", "Notes", "Settings and versions"),
        'kernelwright.apply(model, "kernels")',
    ):
        assert part in words, part


def test_page_of_a_run_without_anything_is_short_and_whole(make):
    words = " ".join(Skeleton(page(Telling(make).started().ended("nothing to do").report())).words)
    assert "The run has none." in words and "nothing to do" in words
    assert "Roofline" not in words and "Progress" not in words


def inline_kinds(text):
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    kinds = [token.type for token in tokens]
    return kinds, [child.type for token in tokens for child in token.children or ()]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_markup_in_the_markdown(make, text):
    found = inline_kinds(document(named_run(make, text).report(), "progress.png"))
    known = inline_kinds(document(named_run(make, "word").report(), "progress.png"))
    assert found[0] == known[0]
    assert {*found[1]} <= {"text", "image", "strong_open", "strong_close"}
    assert found[1].count("image") == known[1].count("image") == 1


@settings(max_examples=300)
@given(text=st.text(alphabet="-+#=1.)> `*_[](!<a:/@\n\\~|&;$", max_size=12) | st.text(max_size=30))
@example(text="- item")
@example(text="1. item")
@example(text="+ item")
@example(text="===")
def test_any_text_is_plain_markdown(text):
    tokens = MarkdownIt("commonmark", {"html": True}).enable("strikethrough").parse(plain(text))
    assert {token.type for token in tokens} <= {"paragraph_open", "inline", "paragraph_close"}
    shown = "".join(child.content for token in tokens for child in token.children or ())
    assert shown == visible(" ".join(text.split()))


@given(text=st.text(alphabet="`~\n a", max_size=30))
@example(text="a\n```\nb")
@example(text="`````")
def test_block_of_code_ends_where_it_should(text):
    tokens = MarkdownIt("commonmark").parse(f"{fenced(text)}\n\nafter\n")
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content == f"{text}\n"


def test_markdown_names_the_picture_only_if_there_is_one(make):
    report = shipped_run(make).report()
    assert "(progress.png)" in document(report, "progress.png")
    assert "progress.png" not in document(report, "")


def test_results_have_times_and_reasons_and_no_field_that_a_spreadsheet_computes(make):
    run = Telling(make).started().found()
    base = run.baseline(100.0)
    run.challenger(base, (100.0, 50.0), author=Author(name="=cmd|calc"))
    told = run.run()
    head, *lines = [line.split("\t") for line in results_tsv(told.tree, told.when).splitlines()]
    found = [dict(zip(head, line, strict=True)) for line in lines]
    assert found[1]["author"] == "'=cmd|calc"
    assert found[1]["reason"].startswith("proven faster: x2.000")
    assert [datetime.fromisoformat(one["time"]) for one in found] == [
        datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 4, 7, tzinfo=UTC),
    ]


def experiment(number, *parents, fate=Fate.REVERTED):
    return Experiment(
        number=number,
        at=None,
        hash=f"h{number}",
        parents=tuple(f"h{one}" for one in parents),
        is_baseline=False,
        backend="cpp",
        author="mover",
        note="",
        status="accepted",
        fate=fate,
        reason="",
        certified_us=1.0,
        speed=1.0,
        over_baseline=None,
        floor_fraction=None,
        screenings=0,
    )


def test_tree_has_every_candidate_once_and_children_below_their_parent():
    placed = rows([experiment(0), experiment(1, 0), experiment(2), experiment(3, 0), experiment(4, 1, 2)])
    assert [(row.experiment.number, row.depth, row.above) for row in placed] == [
        *((0, 0, None), (1, 1, 0), (4, 2, 1), (3, 1, 0), (2, 0, None)),
    ]


def test_large_tree_keeps_the_way_to_everything_that_was_kept():
    many = [experiment(0), *(experiment(number, number - 1) for number in range(1, 5))]
    many[4] = experiment(4, 3, fate=Fate.KEPT)
    many += [experiment(number) for number in range(5, 100)]
    shown, missing = drawn(many, most=10)
    assert [one.number for one in shown] == [0, 1, 2, 3, 4, 95, 96, 97, 98, 99]
    assert missing == 90


@given(low=st.floats(1e-6, 1e9), span_=st.floats(1.05, 1e7))
def test_ticks_are_few_rising_and_inside(low, span_):
    found = ticks(low, low * span_)
    assert len(found) <= 7
    assert found == sorted(found)
    assert all(low * 0.999999 <= value <= low * span_ * 1.000001 for value in found)


@given(last=st.integers(1, 100_000))
def test_whole_ticks_begin_with_one_and_stay_inside(last):
    found = whole_ticks(last)
    assert (found[0], found[-1] <= last, len(found) <= 9) == (1, True, True)


def test_scale_is_even_in_ratios():
    scale = LogScale(1.0, 100.0, 200.0, 0.0)
    assert (scale(1.0), scale(10.0), scale(100.0), scale(1000.0)) == (200.0, pytest.approx(100.0), 0.0, 0.0)
    assert padded([2.0])[0] < 2.0 < padded([2.0])[1]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (micros(None), "–"),
        (micros(12.34), "12.3 µs"),
        (micros(45338.0), "45.3 ms"),
        (micros(2e6), "2 s"),
        (span(0.004), "0.004 s"),
        (span(83.2), "83 s"),
        (span(321.0), "5 min"),
        (span(9000.0), "2.5 h"),
        (calls(12.1), "13"),
        (calls(61390.7), "61 000"),
    ],
)
def test_numbers_are_told_as_people_read_them(said, words):
    assert said.replace("\u00a0", " ") == words
