"""The seeds: starting kernels and baselines that come with the package, as candidates."""

from pathlib import Path

import kernelwright
from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.plan_language import first_values


def seed_file(op: str, backend: str) -> Path | None:
    """Return the file of a seed, if there is one."""
    extension = plugins.load("backends", backend).EXTENSION
    path = Path(kernelwright.__file__).parent / "seeds" / op / f"{backend}{extension}"
    return path if path.is_file() else None


def seed(op: str, backend: str, origin: Origin) -> Candidate | None:
    """Return the seed of an op in a language with its author's own parameter values, if there is one."""
    path = seed_file(op, backend)
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
