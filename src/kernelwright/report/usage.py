"""How to use what a run found, in one line of Python."""

from pathlib import Path

from kernelwright.core.account import Against
from kernelwright.core.events import RunStarted


def line(folder: Path | str, rest: str = "eager") -> str:
    """Return the line of Python that puts a folder's kernels into a model."""
    more = "" if rest == "eager" else f', rest="{rest}"'
    return f'model = kernelwright.apply(model, "{folder}"{more})'


def who_ran_the_rest(started: RunStarted | None) -> str:
    """Return who ran what the winners leave of the model, by a run's settings."""
    config = started.config if started else {}
    by_baseline = "inductor" if config.get("against") == Against.COMPILED else "eager"
    return str(config.get("rest") or by_baseline)
