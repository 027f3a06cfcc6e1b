"""The two kinds of runner: forked with one artefact, or the trusted launcher of plans on a GPU. Killed, never asked."""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

import torch

from kernelwright.core import plugins
from kernelwright.core.errors import ServiceDied
from kernelwright.core.frames import pack
from kernelwright.core.messages.runner import LOT_BYTES, SPAWNED, DeviceJob, Job, Leave, Run, Spawn, Time
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import Arena, Slab
from kernelwright.judge.children import Lost, Runner, Service

TIMES_BYTES = 1 << 20
SPARE_BYTES, FOOTPRINTS = 8 << 30, 4
FOLDER_BYTES, MOST_ENTRIES = 512 << 20, 16384
"""What a runner's folder may hold where it lies on the judge's disk: what was compiled before, and as much again."""
BLOCK_BYTES = 512
LEAVE_SECONDS = 10.0
"""How long a launcher may take to let go of its job; one that takes longer is killed."""
SPARES = 3
"""Launchers kept ready: a context takes 0.8 s on an H200, the stages between two of them a quarter of that."""


def frozen_folder(artefact: Path, index: int) -> Path:
    """Return where what runners of an artefact compile for a GPU is kept; see `judge/warming.py`."""
    major, minor = torch.cuda.get_device_capability(index)
    return artefact.parent / f"compiled-sm_{major}{minor}"


def _hand_out(frozen: Path, folder: Path) -> None:
    """Give a runner its own copy, which it may add to."""
    shutil.copytree(frozen, folder)
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        place.chmod(0o777)  # the runner is another user; the folder around it is closed to everybody else


def bytes_in(folder: str) -> int | None:
    """Return how much a folder holds on disk; None for one that is closed to us, or has more entries than any may."""
    held, entries, waiting = 0, 0, [folder]
    while waiting:
        try:
            found = list(islice(os.scandir(waiting.pop()), MOST_ENTRIES + 1))
        except FileNotFoundError:
            continue
        except OSError:
            return None
        for entry in found:
            with suppress(OSError):  # it went while it was looked at
                held += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
                waiting += [entry.path] if entry.is_dir(follow_symlinks=False) else []
        entries += len(found)
        if entries > MOST_ENTRIES:
            return None
    return held


@cache
def returns_outputs(backend: str) -> bool:
    """Tell whether a language's host code returns its outputs; native code and plans write where they are told."""
    module = plugins.load("backends", backend)
    return bool(module.TIER == "B" and module.EXTENSION == ".py")


def memory_budget(arena: Arena) -> int:
    """Return how much a runner may allocate: several times its buffers, and room for what a kernel may keep beside."""
    if arena.index is not None:
        return 0
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(SPARE_BYTES, physical // 2) + FOOTPRINTS * (arena.inputs.nbytes + arena.outputs.nbytes)


class ForkedRunner(Runner):
    """A runner born in the nursery: tier B on the CPU, one artefact."""

    def __init__(
        self,
        nursery: Service,
        artefact: Path,
        backend: str,
        arena: Arena,
        home: Path,
        memory_bytes: int | None = None,
    ) -> None:
        super().__init__(nursery, home)
        self.returns_outputs = returns_outputs(backend)
        self.is_on_device = arena.index is not None
        self.memory_bytes = memory_budget(arena) if memory_bytes is None else memory_bytes
        order = Spawn(folder=self.folder.name, memory_bytes=self.memory_bytes)
        if arena.index is not None and (frozen := frozen_folder(artefact, arena.index)).exists():
            _hand_out(frozen, Path(self.folder.name, plugins.load("backends", backend).COMPILED))
        artefact_fd = os.open(artefact, os.O_RDONLY | os.O_CLOEXEC)
        inputs_fd = arena.inputs.read_only_descriptor()
        lots, self.lots = os.pipe()
        handed = [self.theirs.fileno(), artefact_fd, inputs_fd, arena.outputs.descriptor, self.log.fileno()]
        try:
            born = nursery.ask(order, [*handed, lots], SPAWNED)
        finally:
            self.theirs.close()
            for descriptor in (artefact_fd, inputs_fd, lots):
                os.close(descriptor)
        if not born.pid:
            raise ServiceDied("nursery", f"a runner died before it was shut in: {self.last_words()}")
        self.pid, nursery.sandbox = born.pid, born.sandbox
        job = Job(
            backend=backend,
            cases=arena.cases,
            calls=arena.calls,
            device=arena.index,
            input_bytes=arena.inputs.nbytes,
            output_bytes=arena.outputs.nbytes,
        )
        self._send(job)

    def batch(self, calls: Sequence[int], timeout_s: float) -> float:
        """Execute calls in this very order, which lies in the kernel's hands: host code reads its own memory."""
        os.write(self.lots, b"".join(number.to_bytes(LOT_BYTES, "little") for number in calls))
        return self.carry_out(Run(drawn=len(calls)), timeout_s)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self.lots)

    def look(self) -> None:
        """End it if its folder is too full; where one in memory is mounted over it, nothing is to be seen here."""
        held = bytes_in(self.folder.name)
        if held is None or held > FOLDER_BYTES:
            self.kill()
            found = "could not be read to its end" if held is None else f"held {held >> 20} MiB"
            allowed = f"{FOLDER_BYTES >> 20} MiB in {MOST_ENTRIES} files are allowed"
            raise Lost(Status.OUT_OF_MEMORY, f"the runner's folder {found}; {allowed}")

    def collect(self, timeout_s: float) -> float:
        """Have returned tensors copied; what returns none is not woken again, or it would go on working unseen."""
        return super().collect(timeout_s) if self.returns_outputs else 0.0


class LaunchedRunner(Runner):
    """The trusted launcher on a GPU, forked without a context: plans of tier A, and baselines."""

    def __init__(self, nursery: Service, index: int, home: Path) -> None:
        super().__init__(nursery, home)
        self.index = index
        self.is_on_device = True
        self.keeper: Keeper | None = None
        self.times = Slab("times", TIMES_BYTES)
        handed = [self.theirs.fileno(), self.times.descriptor, self.log.fileno()]
        order = Spawn(folder=self.folder.name, kind="launcher", memory_bytes=0, device=index)
        try:
            born = nursery.ask(order, handed, SPAWNED)
        finally:
            self.theirs.close()
        if not born.pid:
            raise ServiceDied("nursery", f"a launcher died before it could serve: {self.last_words()}")
        self.pid, nursery.sandbox = born.pid, born.sandbox

    def begin(self, job: DeviceJob, arena: Arena) -> None:
        """Give it a job."""
        frame, inputs = pack(job), arena.inputs.descriptors()
        self.signal(signal.SIGCONT)
        try:
            sent = socket.send_fds(self.channel, [frame], [*inputs, arena.outputs.descriptor])
            self.channel.sendall(frame[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._lost() from error
        finally:
            for descriptor in inputs:
                os.close(descriptor)

    def time(self, order: Time) -> None:
        """Have an arm loaded, captured, replayed; `timed` waits for it."""
        self._settle()
        self.number += 1
        self.signal(signal.SIGCONT)
        self._send(order.model_copy(update={"number": self.number}))

    def timed(self, order: Time, timeout_s: float) -> list[float]:
        """Return the seconds of each replay of an order once it is carried out."""
        self._expect_done(self._receive(timeout_s))
        if not order.replays:
            return []
        seconds: list[float] = self.times.bytes_view(0, 8 * order.replays).view(torch.float64).tolist()
        return seconds

    def __exit__(self, *error: object) -> None:
        if self.keeper and not any(error) and self.keeper.takes_back(self):
            return
        super().__exit__()
        self.times.close()


class Keeper:
    """Keeps the launcher that serves the checks of one candidate, stage after stage: making a context takes longer.

    It holds nothing between two stages, loads every kernel anew, and never serves another candidate.
    """

    def __init__(self, show: Callable[[str], None] = lambda _: None) -> None:
        self.kept: LaunchedRunner | None = None
        self.show = show

    def lend(self, nursery: Service, job: DeviceJob, arena: Arena, home: Path) -> LaunchedRunner:
        """Return the launcher at work on a job."""
        runner, self.kept = self.kept, None
        if runner is not None:
            try:
                runner.begin(job, arena)
                return runner
            except Lost as lost:  # between two jobs nothing of the candidate runs: it is not to blame
                self._part_with(runner, lost)
        runner = launched(nursery, job, arena, home)
        runner.keeper = self
        return runner

    def takes_back(self, runner: LaunchedRunner) -> bool:
        """Tell whether a launcher that is done can serve again: it lives, and has let go of its job."""
        if self.kept is not None or runner.exit_code is not None:
            return False
        try:
            runner.carry_out(Leave(), LEAVE_SECONDS)
        except Lost as lost:
            self.show(f"a launcher did not let go of its job: {lost.reason}")
            return False
        self.kept = runner
        return True

    def _part_with(self, runner: LaunchedRunner, lost: Lost) -> None:
        self.show(f"a launcher ended between two jobs: {lost.reason}")
        runner.keeper = None
        runner.__exit__()

    def close(self) -> None:
        """Kill what is kept."""
        runner, self.kept = self.kept, None
        if runner is not None:
            runner.keeper = None
            with suppress(ServiceDied):  # and it with its nursery
                runner.__exit__()


def launched(
    nursery: Service, job: DeviceJob, arena: Arena, home: Path, *, ahead: bool = True
) -> LaunchedRunner:
    """Return a launcher at work on its job, a spare one if there is one; `ahead` starts the next spares."""
    runner = nursery.spares.popleft() if nursery.spares else LaunchedRunner(nursery, job.index, home)
    runner.begin(job, arena)
    while ahead and len(nursery.spares) < SPARES:
        nursery.spares.append(LaunchedRunner(nursery, job.index, home))
    return runner
