"""The model's time before and after as two bars of the same scale, as SVG."""

from collections.abc import Sequence

from kernelwright.report.axes import factor, micros, percent
from kernelwright.report.canvas import COLOURS, Frame, canvas
from kernelwright.report.markup import Element, add, tag
from kernelwright.report.model import Report, Slice


def amdahl(report: Report) -> Element:
    """Return the model's time as two bars of the same scale, and what was measured of the second."""
    frame, rows = Frame(112, 30, 700, 130), len(report.slices)
    picture = canvas(760, 172 + 20 * rows, "Where the model's time goes, before and after")
    total = max(1.0, *(sum(kind) for kind in zip(*((s.before, s.after) for s in report.slices), strict=True)))
    scale = (frame.right - frame.left) / total
    call_us = report.total_us or 0.0
    if report.limit and report.limit > 1:  # first: the bars lie over it
        x = frame.left + scale / report.limit
        words = f"every region at its floor: {factor(report.limit)}"
        add(
            picture,
            tag("line", x1=x, x2=x, y1=22, y2=128, class_="floor"),
            tag("text", words, x=x, y=15, class_="floor-word mid"),
        )
    after = sum(one.after for one in report.slices)
    for name, place, time_us in (("before", 30.0, call_us), ("after", 84.0, after * call_us)):
        add(
            picture,
            tag("text", name, x=frame.left - 12, y=place + 15, class_="axis end"),
            tag("text", micros(time_us), x=frame.left - 12, y=place + 30, class_="tick end"),
        )
        _bar(picture, report.slices, frame.left, place, scale, name == "before")
    if report.measured_after:
        _whisker(picture, frame.left, scale, report)
    for row, one in enumerate(report.slices):
        _key(picture, one, row, 172 + 20 * row, frame.left)
    return picture


def _bar(
    picture: Element, slices: Sequence[Slice], left: float, y: float, scale: float, is_before: bool
) -> None:
    x = left
    for row, one in enumerate(slices):
        width = scale * (one.before if is_before else one.after)
        add(picture, tag("rect", _share(one), x=x, y=y, width=width, height=36, class_=slice_class(one, row)))
        if width > 34:
            share = one.before if is_before else one.after
            label = tag("text", f"{100 * share:.0f} %", x=x + width / 2, y=y + 23)
            label.set("class", f"mid inside on-{slice_class(one, row).split()[-1]}")
            add(picture, label)
        x += width


def _share(one: Slice) -> Element:
    return tag("title", f"{one.name}: {percent(one.before)} before, {percent(one.after)} after")


def slice_class(one: Slice, row: int) -> str:
    """Return the colour of a slice: one of its own for a problem, a grey for what was left alone."""
    if one.problem is None:
        return f"slice left{row % 2}"
    return f"slice s{one.problem % COLOURS}"


def _whisker(picture: Element, left: float, scale: float, report: Report) -> None:
    found = report.measured_after
    assert found is not None
    low, middle, high = (left + scale * value for value in (found.low, found.ratio, found.high))
    word = f"measured end to end: {micros((report.total_us or 0) * found.ratio)}"
    add(
        picture,
        tag("path", d=f"M{low:.1f} 129v10m0 -5H{high:.1f}m0 -5v10", class_="whisker"),
        tag("circle", cx=middle, cy=134, r=4, class_="whisker-dot"),
        tag("text", word, x=low - 8, y=138, class_="tick end"),
    )


def _key(picture: Element, one: Slice, row: int, y: float, left: float) -> None:
    change = (
        percent(one.before) if one.after == one.before else f"{percent(one.before)} → {percent(one.after)}"
    )
    add(
        picture,
        tag("rect", x=left, y=y - 11, width=13, height=13, class_=slice_class(one, row)),
        tag("text", one.name, x=left + 22, y=y, class_="key"),
        tag("text", change, x=left + 588, y=y, class_="key end"),
    )
