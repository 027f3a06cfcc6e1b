"""Arithmetic intensity against what was achieved, under the ceilings of the device, as SVG."""

import math
from collections.abc import Sequence

from kernelwright.report.axes import LogScale, padded, rate, ticks
from kernelwright.report.canvas import COLOURS, Frame, canvas, upright
from kernelwright.report.markup import Element, add, tag
from kernelwright.report.model import Point, Report, Roof

WIDTH = 7.0
"""Of a character, about."""


def roofline(report: Report) -> Element:
    """Return arithmetic intensity against what was achieved, under the ceilings of the device."""
    frame = Frame(84, 20, 744, 368)
    picture = canvas(760, 414, "Roofline")
    placed = [(place, one) for place, problem in enumerate(report.problems) for one in problem.points]
    points, roof = [one for _, one in placed], report.roof
    rates = [value for one in points for value in (one.before, one.after, one.floor) if value]
    classes = sorted({one.compute_class for one in points})
    tops = {name: roof.flops[name] for name in classes if name in roof.flops} if roof else {}
    x = LogScale(*_wide([one.intensity for one in points], roof, tops), frame.left, frame.right)
    y = LogScale(*padded([*rates, *tops.values()], by=1.9, least=30), frame.bottom, frame.top)
    _roof_axes(picture, frame, x, y)
    if roof:
        _ceilings(picture, frame, (x, y), roof, tops)
    for place, one in placed:
        _point(picture, one, f"p{place % COLOURS}", (x, y))
    _labels(picture, points, x, y)
    return picture


def _wide(intensities: Sequence[float], roof: Roof | None, tops: dict[str, float]) -> tuple[float, float]:
    ridges = [top / roof.bandwidth for top in tops.values()] if roof else []
    low, high = min([*intensities, *ridges]), max([*intensities, *ridges])
    return low / 2.5, high * 6


def _roof_axes(picture: Element, frame: Frame, x: LogScale, y: LogScale) -> None:
    for value in ticks(y.low, y.high, most=6):
        add(
            picture,
            tag("line", x1=frame.left, x2=frame.right, y1=y(value), y2=y(value), class_="ruler"),
            tag("text", rate(value, ""), x=frame.left - 8, y=y(value) + 4, class_="tick end"),
        )
    for value in ticks(x.low, x.high, most=9):
        add(
            picture,
            tag("line", x1=x(value), x2=x(value), y1=frame.top, y2=frame.bottom, class_="ruler"),
            tag("text", f"{value:g}", x=x(value), y=frame.bottom + 16, class_="tick mid"),
        )
    middle = (frame.left + frame.right) / 2
    words = "arithmetic intensity, FLOP per byte that must be moved"
    add(picture, tag("text", words, x=middle, y=frame.bottom + 38, class_="axis mid"))
    add(picture, upright("achieved, FLOP per second", 18, (frame.top + frame.bottom) / 2))


def _ceilings(
    picture: Element, frame: Frame, scales: tuple[LogScale, LogScale], roof: Roof, tops: dict[str, float]
) -> None:
    x, y = scales
    peak = max(tops.values(), default=y.high)
    begin = max(x.low, y.low / roof.bandwidth)
    end = min(x.high, peak / roof.bandwidth)
    if end > begin:
        add(
            picture,
            tag(
                "line",
                x1=x(begin),
                y1=y(begin * roof.bandwidth),
                x2=x(end),
                y2=y(end * roof.bandwidth),
                class_="roof",
            ),
        )
        middle = math.exp(0.45 * math.log(begin) + 0.55 * math.log(end))
        rise = y(begin * roof.bandwidth) - y(end * roof.bandwidth)
        turn = -math.degrees(math.atan2(rise, x(end) - x(begin)))
        place = f"translate({x(middle):.1f} {y(middle * roof.bandwidth) - 8:.1f}) rotate({turn:.1f})"
        add(
            picture,
            tag("text", f"memory {rate(roof.bandwidth, 'B/s')}", transform=place, class_="roof-word mid"),
        )
    same: dict[float, list[str]] = {}
    for name, top in tops.items():
        same.setdefault(top, []).append(name)
    for top, names in same.items():
        left = x(min(x.high, top / roof.bandwidth))
        add(
            picture,
            tag("line", x1=left, x2=frame.right, y1=y(top), y2=y(top), class_="roof"),
            tag(
                "text",
                f"{', '.join(names)} {rate(top, 'FLOP/s')}",
                x=frame.right,
                y=y(top) - 7,
                class_="roof-word end",
            ),
        )


def _point(picture: Element, one: Point, colour: str, scales: tuple[LogScale, LogScale]) -> None:
    x, y = scales
    at = x(one.intensity)
    words = f"{one.label}: {one.intensity:.3g} FLOP/byte"
    if one.floor:
        add(
            picture,
            tag(
                "line", x1=at - 9, x2=at + 9, y1=y(one.floor), y2=y(one.floor), class_=f"link dashed {colour}"
            ),
        )
        words += f", floor at {rate(one.floor, 'FLOP/s')}"
    if one.before and one.after:
        add(picture, tag("line", x1=at, x2=at, y1=y(one.before), y2=y(one.after), class_=f"link {colour}"))
    if one.before:
        told = tag("title", f"{words}, baseline at {rate(one.before, 'FLOP/s')}")
        base = y(one.before)
        path = f"M{at:.1f} {base - 5:.1f}l5 5l-5 5l-5 -5z"
        add(picture, tag("path", told, d=path, class_=f"dot hollow {colour}"))
    if one.after:
        told = tag("title", f"{words}, winner at {rate(one.after, 'FLOP/s')}")
        add(picture, tag("circle", told, cx=at, cy=y(one.after), r=5, class_=f"dot {colour}"))


def _labels(picture: Element, points: Sequence[Point], x: LogScale, y: LogScale) -> None:
    """Name the points: at the right unless something is there, none on another."""
    spots = [(x(one.intensity), y(best), one.label) for one in points if (best := one.after or one.before)]
    taken: list[float] = []
    for at, height, label in sorted(spots, key=lambda spot: spot[1]):
        end = at + 11 + WIDTH * len(label)
        is_blocked = any(at < left < end and abs(top - height) < 12 for left, top, _ in spots)
        is_left = end > x.end + 14 or (is_blocked and at - WIDTH * len(label) > x.start)
        place = height + 4
        while any(abs(place - other) < 14 for other in taken):
            place += 2
        taken.append(place)
        add(
            picture,
            tag("text", label, x=at - 11 if is_left else at + 11, y=place, class_=f"key{' end' * is_left}"),
        )
