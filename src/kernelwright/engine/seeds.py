"""The seeds: starting kernels and baselines that come with the package, as candidates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import kernelwright
from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.config import RunConfig
from kernelwright.core.device import DeviceKind
from kernelwright.core.errors import BadInput, NotFound
from kernelwright.core.marked import HELP, plain, regions
from kernelwright.core.plan_language import PlanFault, first_values
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Tree
from kernelwright.engine.own_baseline import own_baseline

SOURCES = {".cpp": "cpp", ".cc": "cpp", ".cu": "cuda"}
"""Languages of existing source, by the end of its name."""
HURRIED_S = 300.0
"""Budget for a model below which torch.compile is put off until there is anything to hold it against."""


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


def read_source(path: Path) -> bytes:
    """Return existing C++ or CUDA source as it lies on the disk, line ends and all."""
    if path.suffix not in SOURCES:
        raise BadInput("--from", f"{str(path)!r} is no C++ or CUDA file", f"Known: {', '.join(SOURCES)}.")
    try:
        content = path.read_bytes()
        content.decode()
    except FileNotFoundError as error:
        raise NotFound("Source file", path, "Name a .cpp or .cu file.") from error
    except UnicodeDecodeError as error:
        raise BadInput("--from", f"{str(path)!r} is no text in UTF-8", "Save it as UTF-8.") from error
    return content


def given_seed(path: Path, op: str) -> Candidate:
    """Return existing source with marked regions as the candidate a search begins with, its line ends made plain."""
    text = plain(read_source(path).decode())
    if not regions(text, str(path)):
        raise BadInput("--from", f"{str(path)!r} has no marked region", HELP)
    try:
        values = first_values(text)
    except PlanFault as error:
        raise BadInput(
            "--from", f"{str(path)!r}: {error}", "Mend what stands in /*kernelwright ... */."
        ) from error
    return Candidate(
        op=op,
        backend=SOURCES[path.suffix],
        source=text,
        choices=(ParamChoice(values=values),),
        author=Author(name="seed", detail=path.name),
        note="the file to begin with",
    )


def given_of(config: RunConfig, tree: Tree) -> Candidate | None:
    """Return the file a search begins with: as the journal holds it, else as it is on the disk; None without one."""
    if config.source is None or config.op is None:
        return None
    known = (node.candidate for node in tree.nodes.values() if node.candidate.author.name == "seed")
    return next(known, None) or given_seed(Path(config.source), config.op)


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
    given: Candidate | None = field(default=None, kw_only=True)
    """Existing source that takes the place of the package's own kernels; only its marked regions may change."""
    hurried: bool = field(default=False, kw_only=True)
    """Whether the budget is too short to judge torch.compile before there is anything to hold it against."""

    def baselines(self, problem: Problem) -> list[Candidate]:
        """Return what is judged before anything else; the faster one holds the title. A given file is to be beaten."""
        if self.given is not None:
            return [self.given]
        eager = eager_baseline(problem)
        compiled = None if self._is_late(problem) else compiled_baseline(problem, self.threads)
        return [one for one in (eager, compiled) if one is not None]

    def late_baseline(self, problem: Problem) -> Candidate | None:
        """Return a baseline that is held against the best at the end."""
        return compiled_baseline(problem, self.threads) if self._is_late(problem) else None

    def first(self, problem: Problem) -> list[Candidate]:
        """Return the seeds in the languages of the run; a given file has been judged by then."""
        if self.given is not None:
            return []
        found = [seed(problem.op, name, Origin.AUTHOR) for name in self.backends]
        return [one for one in found if one is not None] + written_seeds(problem, self.backends)

    def _is_late(self, problem: Problem) -> bool:
        # On a CPU torch.compile takes 20 s to compile one case, on a GPU its verdict takes 20 s of imports and
        # compiling (docs/measured.md): where that counts it is asked once there is something to hold against it.
        return self.given is None and (self.hurried or problem.device.kind is DeviceKind.CPU)


def is_hurried(config: RunConfig) -> bool:
    """Tell whether there is so little time for a model that torch.compile is put off."""
    return config.model is not None and config.budget_s < HURRIED_S
