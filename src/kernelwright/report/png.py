"""`progress.png`: the progress of every kernel in one picture, for a chat, a ticket or a slide.

matplotlib draws it and is imported only here. Where it is missing there is no picture, and `MISSING` says what to do.
"""

import io
import math
import textwrap
import warnings
from importlib.util import find_spec
from typing import Any

from kernelwright.core.foreign import visible
from kernelwright.report.axes import factor, ticks, whole_ticks
from kernelwright.report.model import Fate, ProblemFact, Report
from kernelwright.report.progress import extent
from kernelwright.report.wording import result

MISSING = "progress.png was not drawn: it needs matplotlib (pip install matplotlib)."
MOST_PANELS = 12
"""Problems with a panel of their own; the page has them all."""
PANEL = (5.4, 3.3)
INK, SOFT, LINE, KEPT, REVERTED, FAILED, FLOOR = (
    *("#1c2128", "#57606a", "#e3e8ec", "#0072b2", "#6e7781", "#c4500a", "#00795a"),
)
STYLE = {
    "text.parse_math": False,  # a dollar sign in a name is no formula
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": "#c4ccd4",
    "axes.labelcolor": SOFT,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
}
MARKS: dict[Fate, dict[str, Any]] = {
    Fate.KEPT: {"facecolors": KEPT, "edgecolors": KEPT},
    Fate.REVERTED: {"facecolors": "white", "edgecolors": REVERTED},
    Fate.FAILED: {"color": FAILED},
    Fate.OPEN: {"facecolors": "white", "edgecolors": REVERTED, "linestyles": ":"},
}


def is_drawable() -> bool:
    """Tell whether matplotlib is here."""
    return find_spec("matplotlib") is not None


def picture(report: Report) -> bytes:
    """Return the PNG: one panel per problem, those with the largest share first."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    problems = sorted((one for one in report.problems if one.steps), key=lambda one: -one.share)[:MOST_PANELS]
    columns = 1 if len(problems) < 2 else 2 if len(problems) < 7 else 3
    rows = max(1, math.ceil(len(problems) / columns))
    width, height = max(8.0, PANEL[0] * columns), PANEL[1] * rows + 1.6 if problems else 2.0
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # a character that the font does not have is drawn as a box
        figure = Figure(figsize=(width, height), facecolor="white")
        canvas = FigureCanvasAgg(figure)
        words = textwrap.fill(visible(report.headline), round(width * 10))
        figure.text(0.4 / width, 1 - 0.2 / height, words, size=12, weight="bold", va="top")
        for place, problem in enumerate(problems, 1):
            _panel(figure.add_subplot(rows, columns, place), problem)
        if problems:
            top = 1.0 - (1.05 + 0.22 * words.count("\n")) / height
            figure.subplots_adjust(
                left=0.85 / width,
                right=1 - 0.25 / width,
                top=top,
                bottom=0.95 / height,
                wspace=0.22,
                hspace=0.5,
            )
            _legend(figure, 0.3 / width, any(one.floor_us for one in problems))
        stream = io.BytesIO()
        canvas.print_figure(stream, format="png", dpi=150, metadata={"Software": None})
    return stream.getvalue()


def _panel(axes: Any, problem: ProblemFact) -> None:  # Any: matplotlib's own types are not followed
    shown = extent(problem)
    low, high = shown.low, shown.high
    if any(step.speed is None for step in problem.steps):
        low /= (high / low) ** 0.12  # room below for those without a speed
    count = len(problem.steps)
    axes.set(xlim=(0.5, count + 0.5), ylim=(low, high), yscale="log")
    axes.set_yticks(ticks(low, high), [factor(value) for value in ticks(low, high)])
    axes.set_yticks([], minor=True)
    axes.set_xticks(whole_ticks(count))
    axes.tick_params(length=0)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.axhline(1.0, color=SOFT, linewidth=0.9)
    if shown.floor:
        if shown.has_line:
            axes.axhline(shown.floor, color=FLOOR, linewidth=1.3, linestyle=(0, (5, 3)))
        place = min(shown.floor, high)
        axes.text(count + 0.5, place, shown.floor_words, color=FLOOR, size=8, ha="right", va="bottom")
    _best(axes, problem)
    _marks(axes, problem, low * (high / low) ** 0.04)
    axes.set_xlabel("verdicts of the judge")
    axes.set_ylabel(f"speed over {problem.baseline or 'the baseline'}")
    axes.set_title(visible(problem.name), loc="left", size=10, weight="bold", pad=17)
    axes.text(0, 1.025, visible(result(problem)), transform=axes.transAxes, size=8.5, color=SOFT, va="bottom")


def _best(axes: Any, problem: ProblemFact) -> None:
    """Draw the best so far: level during a verdict."""
    places = [value for step in problem.steps for value in (step.number - 0.5, step.number + 0.5)]
    values = [step.best if step.best else math.nan for step in problem.steps for _ in range(2)]
    axes.plot(places, values, color=KEPT, linewidth=1.8, solid_joinstyle="round", zorder=3)


def _marks(axes: Any, problem: ProblemFact, bottom: float) -> None:
    size = 34 if len(problem.steps) <= 60 else 14 if len(problem.steps) <= 200 else 6
    for fate, look in MARKS.items():
        for is_baseline, shape in ((True, "D"), (False, "o")):
            chosen = [step for step in problem.steps if step.fate is fate and step.is_baseline is is_baseline]
            axes.scatter(
                [step.number for step in chosen],
                [step.speed or bottom for step in chosen],
                marker="x" if fate is Fate.FAILED else shape,
                s=size,
                linewidths=1.4 if len(problem.steps) <= 200 else 0.6,
                zorder=4 if fate is Fate.KEPT else 2.5,  # the line of the best lies between
                clip_on=False,
                **look,
            )


def _legend(figure: Any, left: float, has_floor: bool) -> None:
    from matplotlib.lines import Line2D

    def entry(label: str, **look: Any) -> Any:
        plain: dict[str, Any] = {"linestyle": "none", "markersize": 6}
        return Line2D([], [], label=label, **plain | look)

    entries = [
        entry("baseline", marker="D", color=KEPT),
        entry("kept", marker="o", color=KEPT),
        entry("reverted", marker="o", markerfacecolor="white", color=REVERTED),
        entry("failed", marker="x", color=FAILED, markeredgewidth=1.6),
        entry("best so far", linestyle="-", color=KEPT),
    ]
    if has_floor:
        entries.append(entry("floor", linestyle=(0, (5, 3)), color=FLOOR))
    figure.legend(
        handles=entries,
        loc="lower left",
        bbox_to_anchor=(left, 0),
        ncol=len(entries),
        frameon=False,
        fontsize=8.5,
        labelcolor=SOFT,
    )
