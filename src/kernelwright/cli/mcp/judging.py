"""Tools that have something measured: a candidate by the judge, a model by the profiler, a submission by its run."""

import tempfile
from pathlib import Path

from pydantic import Field

from kernelwright.cli.config import load_config
from kernelwright.cli.judge import JudgeAnswer
from kernelwright.cli.judge import answer_of as judged
from kernelwright.cli.mcp.problems import OfProblem
from kernelwright.cli.mcp.runs import LONGEST_WAIT_S, named
from kernelwright.cli.mcp.tool import Arguments, Place, Tool
from kernelwright.cli.profile import ProfileAnswer
from kernelwright.cli.profile import answer_of as profiled_answer
from kernelwright.cli.submit import SubmitAnswer, hand_in, opened, wait_for
from kernelwright.cli.submit import answer_of as submitted
from kernelwright.core import plugins
from kernelwright.core.account import Against
from kernelwright.core.brief import Proposal
from kernelwright.core.candidate import Author, ParamChoice
from kernelwright.core.config import RunConfig
from kernelwright.core.errors import BadInput, UnknownName
from kernelwright.core.messages.model import ProfileModel
from kernelwright.core.verdict import Profile
from kernelwright.engine.foreign_runs import FoundRun
from kernelwright.engine.judging import BASELINES, Wish, judge_file, source_of
from kernelwright.engine.profile import profiled, ranked
from kernelwright.engine.regions import at_home, regions_folder, write_regions
from kernelwright.engine.taking_part import problem_named
from kernelwright.hardware.detect import usable_cores

MAX_SOURCE = 1 << 20


class Given(Arguments):
    """A kernel, as text or as a file of the project."""

    source: str | None = Field(default=None, max_length=MAX_SOURCE)
    """The whole source; give `backend` too."""
    backend: str | None = None
    """Its language: cpp, cuda, triton or python; a file's extension says it too."""
    file: str | None = None
    """A file of the project, instead of source."""


class JudgeCandidate(Given):
    """What is judged, what it must compute, and how thoroughly it is looked at."""

    run: str | None = None
    """Judge it on the problem of this run, at that problem's own sizes."""
    problem: str | None = None
    """Which problem of the run, if it has several."""
    op: str | None = None
    """Or on this kernel type."""
    case: tuple[str, ...] = ()
    """Sizes to judge at, with `op`, such as `256x256 fp32 eps=1e-6`; none takes a usual one."""
    reference: str | None = None
    """Or against a file of the project with Model, get_inputs and get_init_inputs."""
    against: str | None = None
    """Compare with `eager`, `compiled` or a file of the project; needs profile keep or ship."""
    profile: Profile = Profile.KEEP
    """quick: builds and runs small cases. keep: every stage and certified times. ship: the last audits too."""


class Submit(Given, OfProblem):
    """What is submitted to which problem of which run."""

    note: str = Field(default="", max_length=4000)
    """What is tried and why, in a sentence."""
    author: str = "assistant"
    """Who proposes it."""
    parent: str = ""
    """Hash of the candidate it was made from; empty leaves that to be seen."""
    choices: tuple[ParamChoice, ...] = ()
    """Parameters per case, the rule for unseen shapes last; none means the first values of PARAMS."""
    wait_s: float = Field(default=0.0, ge=0, le=LONGEST_WAIT_S)
    """Wait so many seconds at most for the decision."""


class ProfileOf(Arguments):
    """Which model, called how."""

    model: str
    """`path.py:factory` of the project, `hf:NAME`, or, where the server allows it, `package.module:Class`."""
    input: tuple[str, ...] = ()
    """Inputs by shape, such as `1,512:int64`; none takes those of its file."""
    dtype: str | None = None
    """Element type of the weights: fp32, fp16, bf16."""
    device: str | None = None
    """cpu, cuda, cuda:1."""
    against: Against = Against.COMPILED
    """The baseline of shares and gains."""


def judge_candidate(place: Place, wanted: JudgeCandidate) -> JudgeAnswer:
    """Judge one kernel without submitting it: every stage of a profile, the reason of a failure, certified times.

    The candidate is built and run in a sandbox by the judge, like every other. A failure names the smallest failing
    case.
    """
    given = [one for one in (wanted.run, wanted.op, wanted.reference) if one is not None]
    if len(given) != 1:
        raise BadInput(
            "judge_candidate", "what it implements is not clear", "Give one of run, op, reference."
        )
    if wanted.case and wanted.op is None:
        raise BadInput("case", "sizes belong to an op", "Give op, or leave them to the run.")
    config = load_config({}, place.root)
    with tempfile.TemporaryDirectory(prefix="kernelwright-") as scratch:
        against = wanted.against
        if against is not None and against not in BASELINES:
            against = str(place.file("against", against))
        wish = Wish(
            file=_file(place, wanted, Path(scratch)),
            op=wanted.op,
            problem=_problem(place, wanted, Path(scratch)),
            reference=place.file("reference", wanted.reference) if wanted.reference else None,
            against=against,
            profile=wanted.profile,
            cases=wanted.case,
        )
        found = judge_file(wish, config, place.home, place.tell)
        answer = judged(wish, found)
    # Files of ours are gone: a command that names one would mislead.
    shown = None if answer.reproduce and scratch in answer.reproduce else answer.reproduce
    name = "source" if wanted.file is None else answer.file
    return answer.model_copy(update={"file": name, "reproduce": shown})


def _file(place: Place, given: Given, scratch: Path) -> Path:
    """Return a file with the kernel in it, whose extension says its language."""
    if (given.source is None) == (given.file is None):
        raise BadInput("source", "no kernel is given, or two are", "Give one of source and file.")
    if given.file is not None:
        return place.file("file", given.file)
    path = scratch / f"candidate{plugins.load('backends', _backend(given)).EXTENSION}"
    path.write_text(given.source or "", encoding="utf-8")
    return path


def _backend(given: Given) -> str:
    known = [name for name in plugins.names("backends") if name not in BASELINES]
    if given.backend is None:
        raise BadInput(
            "backend", "a source without a file has no language", f"Give one of {', '.join(known)}."
        )
    if given.backend not in known:
        raise UnknownName("backend", given.backend, known)
    return given.backend


def _problem(place: Place, wanted: JudgeCandidate, scratch: Path) -> Path | None:
    """Return a file with the problem of a run in it, if one is named."""
    if wanted.run is None:
        return None
    journal, folder = opened(place.home, named(place, wanted.run))
    FoundRun(folder, place.home).refuse_running(RunConfig())  # of it, the reference alone is run
    found = at_home(problem_named(journal.tree(), wanted.problem), place.home)
    write_regions([found], regions_folder(place.home))
    path = scratch / "problem.json"
    path.write_text(found.model_dump_json(), encoding="utf-8")
    return path


def submit(place: Place, wanted: Submit) -> SubmitAnswer:
    """Submit a candidate to a run; it is judged and compared with the best like any other, with the run's next step.

    `kept` and `reason` tell the decision once it is made. An ended run judges it after `resume_run`.
    """
    with tempfile.TemporaryDirectory(prefix="kernelwright-") as scratch:
        source, backend = source_of(_file(place, wanted, Path(scratch)))
    proposal = Proposal(
        source=source,
        backend=backend,
        author=Author(name=wanted.author, detail="mcp"),
        note=wanted.note,
        choices=wanted.choices,
    )
    handed = hand_in(place.home, named(place, wanted.run), wanted.problem, (proposal,), wanted.parent)
    place.tell(handed.hint)
    wait_for(handed, wanted.wait_s)
    return submitted(handed)


def profile(place: Place, wanted: ProfileOf) -> ProfileAnswer:
    """Measure where a model's time goes, region by region, and what each could still gain end to end."""
    spec = place.model(wanted.model)
    flags = {"model": spec, "input": wanted.input or None, "dtype": wanted.dtype, "device": wanted.device}
    config = load_config(flags, place.root)
    request = ProfileModel(
        spec=spec, options=config.model_options(), threads=config.threads or usable_cores()
    )
    found = profiled(request, place.tell)
    return profiled_answer(wanted.model, found, ranked(found, place.home, wanted.against, place.tell))


TOOLS = (
    Tool(judge_candidate, JudgeCandidate, JudgeAnswer, is_reading=False),
    Tool(submit, Submit, SubmitAnswer, is_reading=False),
    Tool(profile, ProfileOf, ProfileAnswer, is_reading=False),
)
