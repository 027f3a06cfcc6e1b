"""Wiring: from settings to a run with a journal, a device and a judge; and the same again for a resumed one."""

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from kernelwright.core import plugins
from kernelwright.core.account import Against, Ranking, refuse_out_of_reach
from kernelwright.core.config import RunConfig, recorded
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import (
    BadConfig,
    BadInput,
    CannotReplay,
    KernelwrightError,
    NothingToOptimize,
)
from kernelwright.core.events import Body, ProblemFound, RunStarted
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.messages.model import ModelProfiled, ProfileModel
from kernelwright.core.model_spec import AUTO_DEVICE, refuse_foreign
from kernelwright.core.tree import Tree
from kernelwright.engine.crew import can_draft, crew_of
from kernelwright.engine.foreign_runs import FoundRun
from kernelwright.engine.inbox import collect, has_mail
from kernelwright.engine.judging import device_for, problem_at
from kernelwright.engine.knowing import knowledge_given, shelve
from kernelwright.engine.loop import optimize
from kernelwright.engine.offering import languages, offered, refuse_unusable, refuse_unwatched
from kernelwright.engine.profile import profiled, ranked
from kernelwright.engine.program import write_program
from kernelwright.engine.regions import at_home, regions_folder, write_regions
from kernelwright.engine.run import Member, Recording, Run
from kernelwright.engine.same_bench import refuse_other_device, refuse_other_rules
from kernelwright.engine.seeds import SOURCES, Seeds, given_of, is_hurried
from kernelwright.engine.service import JudgeClient, Show
from kernelwright.engine.sittings import sit_down, sittings, spent
from kernelwright.hardware.calibrate import ceilings, known_ceilings
from kernelwright.hardware.detect import devices, torch_device, usable_cores
from kernelwright.hardware.twins import in_its_place
from kernelwright.report.write import write_reports
from kernelwright.store.blobs import Blobs
from kernelwright.store.disk import disk_errors, make_folder
from kernelwright.store.journal import Journal, JournalWriter
from kernelwright.store.locate import new_run_id, runs_folder

Watch = Callable[[Run, Sequence[Body]], None]
"""Told of every append once it is in the tree."""
VERSIONED = ("kernelwright", "torch", "triton", "numpy", "pydantic")


def unwatched(run: Run, bodies: Sequence[Body]) -> None:
    """Watch nothing."""


def versions() -> dict[str, str]:
    """Return the versions a result depends on."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _shown(config: RunConfig) -> dict[str, object]:
    """Return the settings as the journal may hold them: without the password of a database."""
    shown = config.model_dump(mode="json")
    if config.journal_url and (password := urlsplit(config.journal_url).password):
        shown["journal_url"] = config.journal_url.replace(f":{password}@", ":***@")
    return shown


def inductor_cache(home: Path) -> Path:
    """Return where torch.compile keeps what it compiled for the user's models, from one process to the next."""
    return home / "cache" / "inductor"


def measured(config: RunConfig, home: Path, threads: int, show: Show) -> tuple[ModelProfiled, Ranking]:
    """Return where the model's time goes; a target that the device's floors exclude is refused here."""
    assert config.model is not None
    request = ProfileModel(
        spec=config.model,
        options=config.model_options(),
        threads=threads,
        with_compiled=config.against is Against.COMPILED,
        cache_folder=str(inductor_cache(home)),
    )
    show(f"profiling {config.model}")
    found = profiled(request, show)
    if not any(region.case is not None for region in found.regions):
        raise NothingToOptimize(config.model, plugins.names("ops"))
    order = ranked(found, home, config.against, show)
    if config.target_speedup is not None:
        refuse_out_of_reach(config.model, config.target_speedup, order)
    return found, order


def _opening(
    config: RunConfig, home: Path, threads: int, show: Show, *, drafts: bool
) -> tuple[Device, tuple[str, ...], list[Body]]:
    """Return the device, the languages to try and the events a run begins with: the ranking and the problems."""
    if config.op is not None:
        device = device_for(config)
        names = languages(config, device)
        problem = problem_at(config.op, config.shape, device)
        return device, names, [ProblemFound(problem=problem.model_copy(update={"share": 1.0}))]
    found, order = measured(config, home, threads, show)
    device = torch_device(found.device)
    if config.device == AUTO_DEVICE and device.kind is not DeviceKind.CPU:
        show(f"the model runs on {device.title}; --device cpu leaves it where it was built")
    names = languages(config, device)
    problems, told = offered(
        order, device, names, config.top, found.eager.total_us,
        drafts=drafts, regions_in=regions_folder(home),
    )  # fmt: skip
    return device, names, [told, *(ProblemFound(problem=problem) for problem in problems)]


def start(config: RunConfig, home: Path, show: Show, watch: Watch = unwatched, run_id: str = "") -> Path:
    """Carry out a whole run and return its folder; who must know its id beforehand gives one."""
    with plugins.using(config.plugins):
        return _start(found_again(config), home, show, watch, run_id)


def found_again(config: RunConfig) -> RunConfig:
    """Return the settings with the folders they name as they are found from anywhere."""
    plugged = tuple(str(Path(folder).resolve()) for folder in config.plugins)
    known = tuple(str(Path(folder).resolve()) for folder in config.knowledge)
    source = str(Path(config.source).resolve()) if config.source else None
    return config.model_copy(update={"plugins": plugged, "knowledge": known, "source": source})


def _in_its_language(config: RunConfig) -> RunConfig:
    """Return the settings with the language of the file that is given, if one is."""
    if config.source is None:
        return config
    if config.op is None or not config.seeds:
        problem = "no kernel type is named" if config.op is None else "it would be left out with the seeds"
        raise BadInput("--from", problem, "Pass --op NAME, and no --no-seeds.")
    language = SOURCES.get(Path(config.source).suffix, config.backend)
    if config.backend not in ("auto", language):
        raise BadInput("--backend", f"the file is {language}, not {config.backend}", "Leave it out.")
    return config.model_copy(update={"backend": language})


def _start(config: RunConfig, home: Path, show: Show, watch: Watch, run_id: str) -> Path:
    begun = datetime.now(UTC)
    config, given = _in_its_language(config), given_of(config, Tree())
    refuse_unusable(config)  # before anything is written or measured
    crew, _ = crew_of(config), plugins.load("strategies", config.strategy)
    with disk_errors(runs_folder(home)):
        make_folder(runs_folder(home))
    threads = config.threads or usable_cores()
    device, names, opening = _opening(config, home, threads, show, drafts=can_draft(crew))
    seeds = Seeds(names, threads, given=given, hurried=is_hurried(config))
    beginning = Beginning(begun, device, seeds, tuple(opening), crew, run_id)
    return begin(config, home, beginning, show, watch)


@dataclass(frozen=True)
class Beginning:
    """What a new run begins with."""

    at: datetime
    """When it was asked for: what was measured before its journal is part of it."""
    device: Device
    seeds: Seeds
    events: tuple[Body, ...]
    """Its problems, and what is told of them."""
    crew: tuple[Member, ...] = ()
    run_id: str = ""
    """What it is to be called; empty leaves that to the clock."""
    recording: Recording | None = None
    """The run it repeats."""
    judge: JudgeClient | None = None
    """Who judges, if not a judge of its own."""
    texts: tuple[bytes, ...] = ()
    """What its events name by hash."""


def begin(config: RunConfig, home: Path, beginning: Beginning, show: Show, watch: Watch = unwatched) -> Path:
    """Carry out a new run on problems that are known, and return its folder."""
    if beginning.judge is None:
        refuse_unwatched(beginning.seeds.backends, beginning.device)
    run_id = beginning.run_id or new_run_id(datetime.now(UTC), os.urandom(3))
    folder = runs_folder(home) / run_id
    with disk_errors(folder):
        make_folder(folder)
    sit_down(folder, 0, beginning.at)
    with Journal.create(config.journal_url or folder, run_id) as journal:
        run = _run(config, beginning.device, beginning.seeds, folder, journal, Tree(), show, watch)
        run.crew, run.cache = beginning.crew, inductor_cache(home)
        started = RunStarted(config=_shown(config), versions=versions(), device=beginning.device)
        run.recording, blobs = beginning.recording, Blobs(folder / "blobs")
        for text in beginning.texts:
            blobs.put(text)
        run.record([started, *(_at_home(body, home) for body in beginning.events)])
        if beginning.recording is None:  # what was given then is among the events
            run.record([knowledge_given(run, home)])
        run.spent.seconds = (datetime.now(UTC) - beginning.at).total_seconds()
        with _reported_if_it_fails(run, journal):
            _carry_out(run, home, show, beginning.judge)
    return folder


def resume(
    folder: Path,
    home: Path,
    show: Show,
    watch: Watch = unwatched,
    judge: JudgeClient | None = None,
    *,
    trusted: bool = False,
) -> Path:
    """Take a run up where its journal ends, and return its folder; a judge of its own judges unless one is given.

    Somebody else's run is taken up only where it is trusted, and none by other rules or on another device than its own.
    """
    begun = datetime.now(UTC)
    with Journal.open_for_writing(folder) as journal, ExitStack() as stack:
        tree = journal.tree()
        if tree.started is None:
            raise BadConfig(str(folder), "the journal has no beginning", "Start a new run.")
        config = recorded(tree.started.config)
        if config.replays:
            raise CannotReplay(config.replays, f"{folder.name} is a replay that ended", "Replay it again.")
        FoundRun(folder, home, trusted).refuse_running(config)
        refuse_foreign(config.model or "", home)
        stack.enter_context(plugins.using(config.plugins))
        tree.problems = {key: at_home(problem, home) for key, problem in tree.problems.items()}
        device, threads = tree.started.device, config.threads or usable_cores()
        given, hurried = given_of(config, tree), is_hurried(config)
        seeds = Seeds(languages(config, device), threads, given=given, hurried=hurried)
        run = _run(config, device, seeds, folder, journal, tree, show, watch)
        run.crew, run.cache = crew_of(config), inductor_cache(home)
        run.spent = spent(journal.events(), sittings(folder))
        if is_over(tree) and not has_mail(folder):
            show("the run has ended; nothing is left to do")
            return folder
        refuse_other_rules(folder.name, tree)
        if judge is None:
            refuse_other_device(folder.name, device)
            refuse_unwatched(seeds.backends, device)
        sit_down(folder, tree.events, begun)
        if is_over(tree):  # what was submitted since opens it again
            for problem in list(tree.problems.values()):
                collect(run, problem)
        if is_over(tree):
            show("the run has ended; what was submitted since holds nothing new")
            return folder
        with _reported_if_it_fails(run, journal):
            _carry_out(run, home, show, judge)
    return folder


def _at_home(body: Body, home: Path) -> Body:
    """Return an event of a beginning with its region read from this home: it may come from another run."""
    return ProblemFound(problem=at_home(body.problem, home)) if isinstance(body, ProblemFound) else body


def is_over(tree: Tree) -> bool:
    """Tell whether a run has ended with nothing to be taken up again."""
    return tree.ended is not None and not tree.ended.failed


def _run(
    config: RunConfig,
    device: Device,
    seeds: Seeds,
    folder: Path,
    journal: JournalWriter,
    tree: Tree,
    show: Show,
    watch: Watch,
) -> Run:
    def record(bodies: Sequence[Body]) -> None:
        journal.append(bodies)
        for body in bodies:
            tree.apply(body)
        watch(run, bodies)

    run = Run(config, device, seeds.threads, folder, record, tree, show, seeds)
    return run


@contextmanager
def _reported_if_it_fails(run: Run, journal: JournalWriter) -> Iterator[None]:
    """Write the reports of what was found before an error goes on; a good end is reported by whoever asked for it."""
    try:
        yield
    except KernelwrightError as error:
        with suppress(
            KernelwrightError
        ):  # a full disk has no room for reports either; the first error is told
            write_reports(run.folder, run.tree, journal.events())
            error.add_note(f"report: {run.folder}/report.html")
        raise


def _carry_out(run: Run, home: Path, show: Show, given: JudgeClient | None = None) -> None:
    config, folder = run.config, run.folder
    write_program(run, home)
    write_regions(run.tree.problems.values(), regions_folder(home))
    if given is not None:
        run.ceilings = known_ceilings(run.device, home)
        optimize(run, given)
        return
    settings = JudgeSettings(
        threads=run.threads,
        max_pairs=config.max_pairs,
        alpha=config.alpha,
        hidden_shapes=config.hidden_shapes,
        cache_folder=str(home / "cache" / "builds"),
        blob_folder=str(folder / "blobs"),
        ceilings=ceilings(run.device, home, show=show).ceilings,
    )
    run.ceilings = settings.ceilings
    judge = JudgeClient(settings, show)
    try:
        run.judges = judges_beside(run, settings)
        optimize(run, judge)
        shelve(run, home)
    finally:
        for one in (judge, *run.judges):
            one.close()


def judges_beside(run: Run, settings: JudgeSettings) -> list[JudgeClient]:
    """Return a judge for every further GPU that is equal to the run's, as far as the settings allow."""
    if run.device.kind is DeviceKind.CPU or run.config.max_devices == 1:
        return []
    others = in_its_place(run.device, devices(), os.environ)
    if run.config.max_devices is not None:
        others = others[: run.config.max_devices - 1]
    if others:
        run.show(f"{len(others) + 1} equal GPUs: verdicts are given side by side")
    return [JudgeClient(settings, run.show, seeing) for seeing in others]
