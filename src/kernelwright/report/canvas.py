"""What the pictures of the page are drawn with.

Colours are names of the style sheet, so that a dark page gets its own; shape tells what colour does, for whoever
cannot tell the colours apart.
"""

from dataclasses import dataclass

from kernelwright.report.markup import Element, tag
from kernelwright.report.model import Fate

COLOURS = 6
"""Problems that have a colour of their own; then they begin anew."""


@dataclass(frozen=True)
class Frame:
    """The inner rectangle of a chart."""

    left: float
    top: float
    right: float
    bottom: float


def canvas(width: float, height: float, label: str) -> Element:
    """Return an empty picture."""
    return tag("svg", viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, class_="chart")


def mark(x: float, y: float, fate: Fate, is_baseline: bool, title: str, size: float = 4.5) -> Element:
    """Return a candidate's mark: filled if kept, hollow if reverted, a cross if failed; a diamond for a baseline."""
    told, half = tag("title", title), size * 0.85
    name = f"mark {fate.value}"
    if fate is Fate.FAILED:
        across = f"{2 * half:.1f}"
        path = f"M{x - half:.1f} {y - half:.1f}l{across} {across}m0 -{across}l-{across} {across}"
        return tag("path", told, d=path, class_=name)
    if is_baseline:
        path = (
            f"M{x:.1f} {y - size:.1f}l{size:.1f} {size:.1f}l{-size:.1f} {size:.1f}l{-size:.1f} {-size:.1f}z"
        )
        return tag("path", told, d=path, class_=f"{name} base")
    return tag("circle", told, cx=x, cy=y, r=half, class_=name)


def upright(text: str, x: float, y: float) -> Element:
    """Return the words beside a vertical axis."""
    return tag("text", text, transform=f"translate({x:g} {y:g}) rotate(-90)", class_="axis mid")
