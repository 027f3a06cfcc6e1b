"""What a model answers, taken apart and compared: tensors wherever they hide, errors pooled over several inputs.

A model may answer with a tensor, tuples, named tuples, dicts, dataclasses, transformers' outputs and caches, and None.
Floating tensors are compared with the model in higher precision; the framework's own error, the larger of eager's and
torch.compile's, is the measure. Whole numbers must be equal wherever the framework agrees with itself.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

FACTOR = 1.5
"""How much further from the truth than the framework itself an output may be: the error budget's own factor."""
LUCK = 4.0
"""Standard deviations of luck granted: two rms errors of n elements differ by 1/sqrt(n) in their logarithms."""
PEAK = 6.0
"""How much larger than the framework's largest error a single element's may be; the rms of millions hides one."""
HOPELESS = 1e30
"""An error no limit admits; messages carry no infinity."""
DEPTH = 8
Leaves = dict[str, Any]


def leaves(answer: Any) -> Leaves:
    """Return every tensor and plain value of an answer by its path."""
    return dict(_walk(answer, "", DEPTH))


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor | bool | int | float | complex | str | bytes) or value is None:
        yield path or "output", value
        return
    if depth == 0:
        return
    if isinstance(value, Mapping):
        parts = {f"{path}[{key!r}]": part for key, part in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = {f"{path}.{name}": part for name, part in zip(value._fields, value, strict=True)}
    elif isinstance(value, tuple | list):
        parts = {f"{path}[{place}]": part for place, part in enumerate(value)}
    elif dataclasses.is_dataclass(value):
        parts = {f"{path}.{one.name}": getattr(value, one.name) for one in dataclasses.fields(value)}
    elif callable(value):
        parts = {}
    else:  # an object of the model's own, such as a cache: what it holds counts
        parts = {f"{path}.{name}": part for name, part in getattr(value, "__dict__", {}).items()}
    for name, part in parts.items():
        yield from _walk(part, name.removeprefix("."), depth - 1)


def allowed(count: int) -> float:
    """Return the largest ratio of two rms errors over that many elements which is still noise."""
    return max(FACTOR, math.exp(LUCK / math.sqrt(max(1, count))))


@dataclass
class Pool:
    """Errors of one output, added up over several inputs."""

    squares: float = 0.0
    scale: float = 0.0
    count: int = 0
    largest: float = 0.0
    """Largest error of one element over the rms of its tensor."""

    def add(self, found: torch.Tensor, exact: torch.Tensor, counted: torch.Tensor) -> None:
        """Add the elements that count; one that is not finite is beyond every limit."""
        wide = exact.to(torch.complex128 if exact.is_complex() else torch.float64)[counted]
        error = (found.to(wide.dtype)[counted] - wide).abs()
        if not error.numel():
            return
        if not bool(torch.isfinite(error).all()):
            self.squares = self.largest = HOPELESS
            return
        scale = wide.abs().square()
        rms = float(scale.mean().sqrt())
        self.squares += float(error.square().sum())
        self.scale += float(scale.sum())
        self.count += error.numel()
        self.largest = max(self.largest, float(error.max()) / rms if rms else float(error.max()))

    @property
    def error(self) -> float:
        """Return the relative rms error; absolute where the truth is zero."""
        if self.squares >= HOPELESS:
            return HOPELESS
        return math.sqrt(self.squares / (self.scale or max(1, self.count)))


@dataclass
class Verdict:
    """How one output of one arm compares."""

    output: str
    error: float = 0.0
    own_error: float = 0.0
    ratio: float = 0.0
    allowed: float = FACTOR
    problem: str = ""


@dataclass
class Comparison:
    """The outputs of several arms, over several inputs of one kind."""

    arms: int
    framework: dict[str, list[Pool]] = field(default_factory=dict)
    """Per output the errors of eager and torch.compile."""
    spliced: dict[str, list[Pool]] = field(default_factory=dict)
    """Per output the errors of every arm."""
    smallest: dict[str, float] = field(default_factory=dict)
    """Per output the relative spacing of numbers of its type."""
    problems: list[dict[str, str]] = field(default_factory=list)
    """Per arm what is wrong with an output, by its path: not a matter of accuracy."""

    def __post_init__(self) -> None:
        self.problems = [{} for _ in range(self.arms)]

    def add(self, exact: Leaves, framework: list[Leaves], spliced: list[Leaves]) -> None:
        """Add one input's outputs: the truth, eager's and torch.compile's, and every arm's."""
        eager = framework[0]
        for place, found in enumerate(spliced):
            for path in eager.keys() ^ found.keys():
                self.problems[place].setdefault(path, "missing" if path in eager else "not in the original")
        for path, original in eager.items():
            own = [one[path] for one in framework if path in one]
            arms = [one.get(path) for one in spliced]
            if isinstance(original, torch.Tensor) and (original.is_floating_point() or original.is_complex()):
                self._add_floats(path, exact.get(path, original), own, arms)
            else:
                self._add_exact(path, exact.get(path, original), own, arms)

    def _add_floats(self, path: str, exact: Any, own: list[Any], arms: list[Any]) -> None:
        original = own[0]
        if not isinstance(exact, torch.Tensor) or exact.shape != original.shape:
            exact = original
        finite = torch.isfinite(original) & torch.isfinite(exact)
        framework = self.framework.setdefault(path, [Pool() for _ in own])
        spliced = self.spliced.setdefault(path, [Pool() for _ in arms])
        self.smallest[path] = torch.finfo(original.dtype).eps
        for pool, value in zip(framework, own, strict=False):
            if _alike(value, original):
                # Where torch.compile overflows and eager does not, nobody can tell what is right.
                pool.add(value, exact, finite & torch.isfinite(value))
        for place, (pool, value) in enumerate(zip(spliced, arms, strict=True)):
            if not _alike(value, original):
                self.problems[place].setdefault(path, f"{_kind(value)} instead of {_kind(original)}")
            elif not bool(torch.isfinite(value)[finite].all()):
                self.problems[place].setdefault(path, "not finite where the original is")
            else:
                pool.add(value, exact, finite)

    def _add_exact(self, path: str, exact: Any, own: list[Any], arms: list[Any]) -> None:
        original = own[0]
        for place, value in enumerate(arms):
            if not isinstance(original, torch.Tensor):
                if type(value) is not type(original) or value != original:
                    self.problems[place].setdefault(path, f"{value!r} instead of {original!r}"[:120])
                continue
            if not _alike(value, original):
                self.problems[place].setdefault(path, f"{_kind(value)} instead of {_kind(original)}")
                continue
            # A choice made of floating numbers may fall otherwise where the framework is not sure of it either.
            sure = torch.ones_like(original, dtype=torch.bool)
            for other in (exact, *own[1:]):
                if _alike(other, original):
                    sure &= other == original
            if wrong := int(((value != original) & sure).sum()):
                self.problems[place].setdefault(path, f"{wrong} of {original.numel()} whole numbers differ")

    def worst(self, place: int) -> Verdict:
        """Return the worst output of an arm: one that is wrong before one that is only less accurate."""
        found = [
            Verdict(path, HOPELESS, 0.0, HOPELESS, FACTOR, words)
            for path, words in self.problems[place].items()
        ]
        for path, pools in self.spliced.items():
            if path not in self.problems[place]:
                found.append(self._judged(path, pools[place]))
        return max(
            found, key=lambda one: (bool(one.problem), one.ratio / one.allowed), default=Verdict("none")
        )

    def _judged(self, path: str, pool: Pool) -> Verdict:
        least = self.smallest[path]
        own = max((one.error for one in self.framework[path]), default=0.0)
        limit, ratio = allowed(pool.count), pool.error / max(own, least)
        found = Verdict(path, pool.error, own, min(ratio, HOPELESS), limit)
        peak = pool.largest / max(*(one.largest for one in self.framework[path]), PEAK * least)
        if ratio > limit:
            found.problem = (
                f"error {pool.error:.2g}, {ratio:.3g} times the framework's own; {limit:.2f} is allowed"
            )
        elif peak > PEAK:
            found.problem = f"one element is off by {peak:.3g} times the framework's largest error"
        return found


def _alike(value: Any, original: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == original.shape and value.dtype is original.dtype


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{'x'.join(map(str, value.shape)) or 'a scalar'} {value.dtype}".replace("torch.", "")
