"""How the best of a problem got faster, verdict by verdict, as SVG; and the extent of that picture for others."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.report.axes import LogScale, factor, padded, ticks, whole_ticks
from kernelwright.report.canvas import Frame, canvas, mark, upright
from kernelwright.report.markup import Element, add, tag
from kernelwright.report.model import Experiment, Fate, ProblemFact, Step

FAR = 3.0
"""A floor further above the best than this is named in words: as a line it would flatten everything else."""


@dataclass(frozen=True)
class Extent:
    """The ends of the axis of speed, and the floor as a speed."""

    low: float
    high: float
    floor: float | None

    @property
    def floor_words(self) -> str:
        """Return what stands beside the floor's line, or instead of it."""
        if self.floor is None:
            return ""
        return f"floor {factor(self.floor)}" + ("" if self.has_line else ", above the picture")

    @property
    def has_line(self) -> bool:
        """Tell whether the floor is inside the picture."""
        return self.floor is not None and self.floor <= self.high


def extent(problem: ProblemFact) -> Extent:
    """Return what a picture of a problem's progress must show."""
    floor = problem.baseline_us / problem.floor_us if problem.baseline_us and problem.floor_us else None
    known = [value for step in problem.steps for value in (step.speed, step.best) if value] or [1.0]
    near = [floor] if floor and floor <= FAR * max(known) else []
    return Extent(*padded([*known, 1.0, *near]), floor)


def progress(problem: ProblemFact) -> Element:
    """Return how the best of a problem got faster, verdict by verdict."""
    frame = Frame(58, 16, 446, 232)
    picture = canvas(460, 276, f"Progress of {problem.name}")
    shown = extent(problem)
    has_failed = any(step.speed is None for step in problem.steps)
    y = LogScale(shown.low, shown.high, frame.bottom - (18 if has_failed else 0), frame.top)
    count = max(1, len(problem.steps))
    width = (frame.right - frame.left) / count
    places = [frame.left + width * (place + 0.5) for place in range(count)]
    _rulers(picture, frame, y)
    for number in whole_ticks(count):
        add(picture, tag("text", str(number), x=places[number - 1], y=frame.bottom + 16, class_="tick mid"))
    middle = (frame.left + frame.right) / 2
    add(picture, tag("text", "verdicts of the judge", x=middle, y=frame.bottom + 36, class_="axis mid"))
    add(
        picture,
        upright(f"speed over {problem.baseline or 'the baseline'}", 14, (frame.top + frame.bottom) / 2),
    )
    add(picture, tag("line", x1=frame.left, x2=frame.right, y1=y(1), y2=y(1), class_="unit"))
    _floor_line(picture, frame, y, shown)
    size = 4.5 if count <= 60 else 3 if count <= 200 else 2
    by_number = {one.number: one for one in problem.experiments}
    marks: dict[bool, list[Element]] = {True: [], False: []}
    for step, x in zip(problem.steps, places, strict=False):
        told = _told(by_number[step.experiment], step, problem.baseline)
        place = y(step.speed) if step.speed else frame.bottom - 8
        marks[step.fate is Fate.KEPT].append(mark(x, place, step.fate, step.is_baseline, told, size))
    best = tag("path", d=_staircase(problem.steps, places, width, y), class_="best")
    add(picture, *marks[False], best, *marks[True])
    return picture


def _rulers(picture: Element, frame: Frame, y: LogScale) -> None:
    for value in ticks(y.low, y.high):
        add(
            picture,
            tag("line", x1=frame.left, x2=frame.right, y1=y(value), y2=y(value), class_="ruler"),
            tag("text", factor(value), x=frame.left - 8, y=y(value) + 4, class_="tick end"),
        )
    add(picture, tag("line", x1=frame.left, x2=frame.right, y1=frame.bottom, y2=frame.bottom, class_="frame"))


def _floor_line(picture: Element, frame: Frame, y: LogScale, shown: Extent) -> None:
    if shown.floor is None:
        return
    place = y(shown.floor)
    if shown.has_line:
        add(picture, tag("line", x1=frame.left, x2=frame.right, y1=place, y2=place, class_="floor"))
    words_y = place - 5 if place > 24 else place + 11
    add(picture, tag("text", shown.floor_words, x=frame.right, y=words_y, class_="floor-word end"))


def _staircase(steps: Sequence[Step], places: Sequence[float], width: float, y: LogScale) -> str:
    """Return the path of the best so far: level during a verdict, up or down where the title goes."""
    path, is_down = "", False
    for step, x in zip(steps, places, strict=False):
        if step.best is None:
            is_down = False
            continue
        begin = f"V{y(step.best):.1f}" if is_down else f"M{x - width / 2:.1f} {y(step.best):.1f}"
        path += f"{begin}H{x + width / 2:.1f}"
        is_down = True
    return path or "M0 0"


def _told(one: Experiment, step: Step, baseline: str) -> str:
    speed = f", {factor(step.speed)} over {baseline}" if step.speed else ""
    return f"{step.number}. {one.backend} by {one.author}{speed}: {step.fate.value}\n{one.note}\n{one.reason}"
