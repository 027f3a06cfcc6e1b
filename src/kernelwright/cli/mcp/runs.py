"""Tools that start runs in the background, look at them, take them up again and stop them."""

import time
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from kernelwright.cli.config import load_config
from kernelwright.cli.mcp.tool import Arguments, Place, Tool
from kernelwright.cli.runs import open_run
from kernelwright.cli.screen import Answer
from kernelwright.core.errors import BadInput
from kernelwright.engine.background import launch, launch_again, stop
from kernelwright.store.jobs import Job, is_alive, job_ids, last_words, read_job
from kernelwright.store.locate import LAST, find_run, run_ids, runs_folder
from kernelwright.store.summary import Summary

POLL_S = 0.5
LONGEST_WAIT_S = 600.0
OUR_OWN = ("auto", "tuner", "mover", "none")
"""Authors that need no key and start no program."""


class State(StrEnum):
    """How a run stands."""

    STARTING = "starting"
    """Its process loads, profiles and calibrates; nothing is journalled yet."""
    RUNNING = "running"
    """Its process is at work."""
    ENDED = "ended"
    """It came to its end; what is submitted now is judged by `resume_run`."""
    STOPPED = "stopped"
    """Its process ended before the run did; `resume_run` takes it up."""
    OPEN = "open"
    """It was started elsewhere and has not ended: it runs there, or was interrupted."""


class RunNamed(Arguments):
    """Which run."""

    run: str = LAST
    """The run: its id, the beginning of it, or `last`."""


class StartRun(Arguments):
    """What is to be made faster, and how much may be spent on it."""

    model: str | None = None
    """A model: `path.py:factory` of the project, `hf:NAME`, or, where the server allows it, `package.module:Class`."""
    op: str | None = None
    """One kernel type by itself, instead of a model."""
    shape: tuple[str, ...] = ()
    """Sizes of that kernel, such as `4096x4096 fp32`; none takes a usual one."""
    input: tuple[str, ...] = ()
    """Inputs of the model by shape, such as `1,512:int64`; none takes those of its file."""
    dtype: str | None = None
    """Element type of the model's weights: fp32, fp16, bf16."""
    device: str | None = None
    """cpu, cuda, cuda:1; none takes where the model is built, or the first GPU."""
    backend: str | None = None
    """Language of the candidates; none takes every one the device has."""
    budget: str = "10m"
    """Time of the whole run: 90s, 10m, 8h."""
    author: str = "auto"
    """Who proposes kernels beside you: auto, tuner, mover, none, or llm:PROVIDER:MODEL together with max_cost."""
    strategy: str | None = None
    """How the search chooses: greedy, beam, mcts, evolve."""
    top: int | None = None
    """Regions of the model worked on at most."""
    target_speedup: float | None = None
    """Stop when so much is expected."""
    max_evaluations: int | None = None
    """Verdicts the search may ask for."""
    max_cost: float | None = None
    """Dollars the search may spend on language models."""
    max_pairs: int | None = None
    """Fresh process pairs per comparison at most."""
    threads: int | None = None
    """CPU threads of a judged kernel; 0 for all cores."""
    seed: int | None = None
    """Source of whatever the search draws."""


class StatusOf(RunNamed):
    """Which run, and how long to wait for news of it."""

    wait_s: float = Field(default=0.0, ge=0, le=LONGEST_WAIT_S)
    """Come back when the run has ended or was stopped, but after so many seconds at the latest."""


class StatusAnswer(Answer):
    """How a run stands."""

    run: str
    """The run."""
    folder: str
    """Its folder; `program.md` in it tells how to take part."""
    state: State
    """How it stands."""
    doing: str
    """What its process last said."""
    error: str
    """What went wrong; empty if nothing did."""
    summary: Summary | None
    """The run at a glance; none before anything is journalled."""


def start_run(place: Place, wanted: StartRun) -> StatusAnswer:
    """Start optimising a model, or one op by itself, in a background process that outlives this conversation.

    Comes back at once with the run's id; `status` tells how far it is. While it runs, `get_brief`, `judge_candidate`
    and `submit` take part in it.
    """
    if (wanted.model is None) == (wanted.op is None):
        raise BadInput("start_run", "what to optimise is not clear", "Give one of model and op.")
    if wanted.shape and wanted.op is None:
        raise BadInput("shape", "sizes belong to an op", "Give op too, for example softmax.")
    flags = wanted.model_dump(exclude={"budget", "model", "shape", "input"})
    flags |= {"model": place.model(wanted.model) if wanted.model else None, "budget_s": wanted.budget}
    flags |= {"shape": wanted.shape or None, "input": wanted.input or None}
    config = load_config(flags, place.root)
    for author in (config.author, *config.beside):
        _refuse_author(author, config.max_cost)
    if config.plugins or config.download:
        remedy = "A person starts such a run with `kernelwright optimize`."
        raise BadInput("kernelwright.toml", "it names plug-ins or allows downloads", remedy)
    if config.model is not None:
        place.model(config.model)  # the file may name one where the call names none
    for folder in config.knowledge:
        place.inside("kernelwright.toml", folder)  # briefs quote what lies in it
    config.model_options()  # an input that cannot be read is refused before anything is started
    _refuse_op(wanted.op, wanted.shape)
    return status_now(place, launch(config, place.home, place.root))


def _refuse_op(op: str | None, shape: tuple[str, ...]) -> None:
    """Raise for an op or a size that is none, before a process is started for it."""
    if op is not None:
        from kernelwright.engine.judging import problem_at
        from kernelwright.hardware.detect import cpu_device

        problem_at(op, shape, cpu_device())


def _refuse_author(author: str, max_cost: float | None) -> None:
    """Raise for an author that would start a program, or spend money without a limit."""
    kind = author.partition(":")[0]
    if kind == "llm" and max_cost is None:
        raise BadInput("author", "a language model spends money", "Give max_cost too, in dollars.")
    if kind not in (*OUR_OWN, "llm"):
        remedy = (
            f"Take {', '.join(OUR_OWN)} or llm; a person starts others with `kernelwright optimize --author`."
        )
        raise BadInput("author", f"{author!r} cannot be started from here", remedy)


def status(place: Place, wanted: StatusOf) -> StatusAnswer:
    """Tell how a run stands: what it is doing, its problems and what was kept; waits for its end if asked to."""
    run, until = named(place, wanted.run), time.monotonic() + wanted.wait_s
    found = status_now(place, run)
    while found.state in (State.STARTING, State.RUNNING) and time.monotonic() < until:
        place.tell(f"{found.state.value}: {found.doing}")
        time.sleep(min(POLL_S, max(0.0, until - time.monotonic())))
        found = status_now(place, run)
    return found


def resume_run(place: Place, wanted: RunNamed) -> StatusAnswer:
    """Take a run up again in the background: one that was stopped, or an ended one that has something submitted."""
    run = named(place, wanted.run)
    folder = runs_folder(place.home) / run
    if not folder.is_dir():
        raise BadInput("run", f"{run} has journalled nothing yet", "Start a new one.")
    launch_again(run, place.home, place.root)
    return status_now(place, run)


def stop_run(place: Place, wanted: RunNamed) -> StatusAnswer:
    """Stop a run that was started here; everything journalled is safe, and `resume_run` goes on."""
    run = named(place, wanted.run)
    if read_job(place.home, run) is None:
        raise BadInput("run", f"{run} was not started from here", "Stop it where it was started.")
    if not stop(run, place.home):
        raise BadInput("run", f"{run} is still ending", "Ask for its status in a moment.")
    return status_now(place, run)


def named(place: Place, name: str) -> str:
    """Return the id of the run that is meant; one that has journalled nothing yet has an id too."""
    known, jobs = run_ids(place.home), job_ids(place.home)
    if name == LAST and jobs and (not known or jobs[-1] > known[-1]):
        return jobs[-1]
    if name in jobs:
        return name
    early = [one for one in jobs if name and one.startswith(name) and one not in known]
    return early[0] if len(early) == 1 else find_run(place.home, name).name


def status_now(place: Place, run: str) -> StatusAnswer:
    """Return how a run stands at this moment."""
    folder = runs_folder(place.home) / run
    alive = is_alive(place.home, run)  # first: what ends in between is told by its files
    job = read_job(place.home, run)
    summary = _summary(place.home, folder)
    doing, error = (job.doing, job.error) if job else ("", "")
    state = _state(job, alive, summary)
    if state is State.STOPPED and job and not job.ended:
        doing, error = "died", last_words(place.home, run) or "its process is gone"
    return StatusAnswer(run=run, folder=str(folder), state=state, doing=doing, error=error, summary=summary)


def _summary(home: Path, folder: Path) -> Summary | None:
    from kernelwright.core.errors import JournalCorrupt, NotFound

    if not folder.is_dir():
        return None
    try:
        return open_run(home, folder.name)[0].summary()
    except (NotFound, JournalCorrupt):  # it is being created at this moment
        return None


def _state(job: Job | None, alive: bool, summary: Summary | None) -> State:
    if alive:
        return State.STARTING if summary is None else State.RUNNING
    if summary is not None and summary.ended is not None:
        return State.ENDED
    return State.STOPPED if job else State.OPEN


TOOLS = (
    Tool(start_run, StartRun, StatusAnswer, is_reading=False),
    Tool(status, StatusOf, StatusAnswer),
    Tool(resume_run, RunNamed, StatusAnswer, is_reading=False),
    Tool(stop_run, RunNamed, StatusAnswer, is_reading=False),
)
