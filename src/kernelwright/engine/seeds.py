"""The seeds: starting kernels and baselines that come with the package, as candidates."""

from pathlib import Path

import kernelwright
from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.device import DeviceKind
from kernelwright.core.plan_language import first_values
from kernelwright.core.problem import Problem


def seed_file(op: str, backend: str, name: str = "") -> Path | None:
    """Return the file of a seed, if there is one; `name` where it is not the backend's (a dialect such as Gluon)."""
    extension = plugins.load("backends", backend).EXTENSION
    path = Path(kernelwright.__file__).parent / "seeds" / op / f"{name or backend}{extension}"
    return path if path.is_file() else None


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


def compiled_baseline(problem: Problem, threads: int, mode: str = "default") -> Candidate | None:
    """Return the eager baseline as torch.compile runs it.

    On a CPU every case of the problem has a row of its own, compiled ahead; on a GPU one row has all of them compiled
    by the process that runs them.
    """
    eager = seed(problem.op, "eager", Origin.BASELINE)
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
