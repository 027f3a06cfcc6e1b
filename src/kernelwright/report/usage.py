"""How to use what a run found, in one line of Python."""

from collections.abc import Sequence
from pathlib import Path

from kernelwright.core.account import Against
from kernelwright.core.case import Case
from kernelwright.core.events import RunStarted
from kernelwright.core.tree import Tree
from kernelwright.report.drop_in import module_name, spelled

CALLABLE = ("cpp", "cuda", "triton")
"""Languages a drop-in module can call: by our own C call, or by a plan. Anything else is host code of a candidate's."""


def line(folder: Path | str, rest: str = "eager", launch: str = "plain") -> str:
    """Return the line of Python that puts a folder's kernels into a model."""
    more = "" if rest == "eager" else f', rest="{rest}"'
    more += "" if launch == "plain" else f', launch="{launch}"'
    return f'model = kernelwright.apply(model, "{folder}"{more})'


def line_alone(folder: Path | str, cases: Sequence[tuple[str, Case]]) -> str:
    """Return the line of Python that calls a folder's kernels by themselves: modules, and the cases they serve."""
    where = Path(folder).absolute()
    if not where.name.isidentifier():  # no name Python could import
        return line(folder)
    (first, case), *_ = cases
    modules = ", ".join(dict.fromkeys(module for module, _ in cases))
    given = [spelled(spec.name) for spec in case.inputs]
    given += [f"{name}={value!r}" for name, value in case.scalars.items()]
    return (
        f"import sys; sys.path.insert(0, {str(where.parent)!r}); from {where.name} import {modules}; "
        f"y = {first}.call({', '.join(given)})"
    )


def is_alone(started: RunStarted | None) -> bool:
    """Tell whether a run's kernels are used by themselves: it searched, without a model, against the baselines."""
    others = ("model", "source", "replays")
    return started is not None and not any(started.config.get(name) for name in others)


def is_handed_over(tree: Tree, key: str) -> bool:
    """Tell whether a problem's best goes out as a module: confirmed, of a run without a model, in such a language."""
    node = tree.nodes[key, tree.best[key]] if key in tree.best else None
    if node is None or not is_alone(tree.started) or node.candidate.backend not in CALLABLE:
        return False
    return node.is_confirmed and bool(node.evaluations[-1].artefact_hashes)


def served(tree: Tree) -> list[tuple[str, Case]]:
    """Return what the modules of a run without a model serve: the name of each, and a case."""
    return [
        (module_name(case, problem.captured.source if problem.captured else ""), case)
        for key, problem in tree.problems.items()
        if is_handed_over(tree, key)
        for case in problem.cases
    ]


def who_ran_the_rest(started: RunStarted | None) -> str:
    """Return who ran what the winners leave of the model, by a run's settings."""
    config = started.config if started else {}
    by_baseline = "inductor" if config.get("against") == Against.COMPILED else "eager"
    return str(config.get("rest") or by_baseline)


def how_launched(tree: Tree | None) -> str:
    """Return how a run's winners pay: launched one by one, or as one CUDA graph alone."""
    return tree.verified.mode if tree is not None and tree.verified is not None else "plain"
