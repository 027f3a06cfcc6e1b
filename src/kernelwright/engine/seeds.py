"""The seeds: starting kernels and baselines that come with the package, as candidates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import kernelwright
from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.device import DeviceKind
from kernelwright.core.plan_language import first_values
from kernelwright.core.problem import Problem
from kernelwright.engine.own_baseline import own_baseline


def seed_file(op: str, backend: str, name: str = "") -> Path | None:
    """Return the file of a seed, if there is one; `name` where it is not the backend's (a dialect such as Gluon)."""
    extension = plugins.load("backends", backend).EXTENSION
    file = Path("seeds", op, f"{name or backend}{extension}")
    places = (Path(kernelwright.__file__).parent, *plugins.folders())
    return next((place / file for place in places if (place / file).is_file()), None)


def seed(op: str, backend: str, origin: Origin, name: str = "") -> Candidate | None:
    """Return the seed of an op in a language with its author's own parameter values, if there is one."""
    path = seed_file(op, backend, name)
    if path is None:
        return None
    source = path.read_text()
    values = {} if origin is Origin.BASELINE else first_values(source)
    return Candidate(
        op=op,
        backend=backend,
        source=source,
        choices=(ParamChoice(values=values),),
        origin=origin,
        author=Author(name="baseline" if origin is Origin.BASELINE else "seed", detail=path.name),
        note="the baseline to beat" if origin is Origin.BASELINE else "the starting kernel",
    )


def written_seeds(problem: Problem, backends: Sequence[str]) -> list[Candidate]:
    """Return the kernels that were written from a captured region, in the order of the languages."""
    sources = {} if problem.captured is None else problem.captured.kernels
    return [
        Candidate(
            op=problem.op,
            backend=name,
            source=sources[name],
            choices=(ParamChoice(values=first_values(sources[name])),),
            author=Author(name="codegen", detail=name),
            note="written from the captured graph",
        )
        for name in backends
        if name in sources
    ]


def eager_baseline(problem: Problem) -> Candidate | None:
    """Return a problem as the framework runs it: by its op's own file, or by the region's own text."""
    return own_baseline(problem) if problem.captured else seed(problem.op, "eager", Origin.BASELINE)


def compiled_baseline(problem: Problem, threads: int, mode: str = "default") -> Candidate | None:
    """Return the eager baseline as torch.compile runs it.

    On a CPU every case of the problem has a row of its own, compiled ahead; on a GPU one row has all of them compiled
    by the process that runs them.
    """
    eager = eager_baseline(problem)
    if eager is None:
        return None
    on_cpu = problem.device.kind is DeviceKind.CPU
    own = tuple(case.hash for case in problem.cases)
    rows = [] if on_cpu else [ParamChoice(case_hashes=own, values={"mode": mode, "jit": True})]
    rows += [
        ParamChoice(
            case_hashes=(case.hash,),
            values={"mode": mode, "threads": threads, "case": case.model_dump_json(exclude={"weight"})},
        )
        for case in (problem.cases if on_cpu else ())
    ]
    return eager.model_copy(
        update={
            "backend": "compiled",
            "choices": (*rows, ParamChoice(values={"mode": mode})),
            "author": Author(name="baseline", detail=f"torch.compile {mode}"),
            "note": "the stronger baseline to beat",
        }
    )


@dataclass(frozen=True)
class Seeds:
    """What a search begins with: the baselines of a problem and its first candidates."""

    backends: tuple[str, ...]
    """Languages of the first candidates."""
    threads: int

    def baselines(self, problem: Problem) -> list[Candidate]:
        """Return what is judged before anything else; the faster one holds the title."""
        eager = eager_baseline(problem)
        compiled = None if self._is_late(problem) else compiled_baseline(problem, self.threads)
        return [one for one in (eager, compiled) if one is not None]

    def late_baseline(self, problem: Problem) -> Candidate | None:
        """Return a baseline that is held against the best at the end."""
        return compiled_baseline(problem, self.threads) if self._is_late(problem) else None

    def first(self, problem: Problem) -> list[Candidate]:
        """Return the seeds in the languages of the run."""
        found = [seed(problem.op, name, Origin.AUTHOR) for name in self.backends]
        return [one for one in found if one is not None] + written_seeds(problem, self.backends)

    def _is_late(self, problem: Problem) -> bool:
        # On a CPU torch.compile takes 20 s to compile one case (docs/measured.md): it is asked once there is something
        # to hold against it.
        return problem.device.kind is DeviceKind.CPU
