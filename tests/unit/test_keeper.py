"""A launcher that is kept between stages, without a GPU: a real process that is given one job after the other."""

import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import BaseModel

from kernelwright.core.case import DType
from kernelwright.core.frames import Reply, Word
from kernelwright.core.messages.runner import DeviceJob, Reap, Reaped, Run, Spawn, Spawned
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import Lost
from kernelwright.judge.runners import Keeper, LaunchedRunner
from kernelwright.ops import softmax
from kernelwright.worker import device

CASE = softmax.case({"rows": 2, "cols": 8}, DType.FP32)
PATIENCE_S = 20.0


class Stub:
    """Stands in for what needs a GPU: leaves the number of its job in the outputs, and falls where it is told to."""

    jobs = 0

    def __init__(self, job: DeviceJob, inputs: list[int], outputs: int, times: int) -> None:
        del inputs, times
        Stub.jobs += 1
        self.job = job
        os.pwrite(outputs, bytes([Stub.jobs]), 0)

    def run(self, order: Run) -> Reply:
        if self.job.folder == "falls":
            raise RuntimeError("an illegal access")
        return Reply(Word.DONE, 0, order.number)

    def close(self) -> None:
        if self.job.folder == "holds on":
            raise RuntimeError("it cannot be unmapped")


class Nursery:
    """Forks launchers and reaps them."""

    def __init__(self) -> None:
        self.spares: list[LaunchedRunner] = []
        self.sandbox, self.living, self.born = "", set[int](), 0

    def ask(self, order: BaseModel, descriptors: list[int], _: object) -> Spawned | Reaped:
        if isinstance(order, Spawn):
            return self._spawned(descriptors)
        assert isinstance(order, Reap)
        os.killpg(order.pid, signal.SIGKILL)
        self.living.remove(order.pid)
        return Reaped(exit_code=os.waitstatus_to_exitcode(os.waitpid(order.pid, 0)[1]))

    def _spawned(self, descriptors: list[int]) -> Spawned:
        self.born += 1
        ready, said = os.pipe()
        if not (pid := os.fork()):
            with suppress(BaseException):
                os.setsid()
                os.write(said, b"!")
                control, times, _ = descriptors
                device.serve(control, times, 0)
            os._exit(0)
        os.read(ready, 1)  # it is a group of its own
        os.close(ready)
        os.close(said)
        self.living.add(pid)
        return Spawned(pid=pid)


@pytest.fixture
def nursery(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(device, "Launcher", Stub)
    monkeypatch.setattr("kernelwright.judge.runners.SPARES", 0)
    made = Nursery()
    yield made
    for pid in made.living:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def served(keeper: Keeper, nursery: Any, home: Path, folder: str = "") -> tuple[int, int]:
    """Have a job served, and return the process that did and what it left in the outputs."""
    with Arena([CASE], [0], random.Random(0)) as arena:
        job = DeviceJob(
            index=0,
            folder=folder,
            cases=arena.cases,
            calls=arena.calls,
            plans=(None,),
            input_bytes=(arena.inputs.nbytes,),
            output_bytes=arena.outputs.nbytes,
        )
        with keeper.lend(nursery, job, arena, home) as runner:
            runner.ready(PATIENCE_S)
            runner.run(0, 1, PATIENCE_S)
        return runner.pid, arena.outputs.memory[0]


def test_one_launcher_serves_job_after_job_on_the_buffers_of_each(nursery: Any, tmp_path: Path) -> None:
    keeper = Keeper()
    found = [served(keeper, nursery, tmp_path) for _ in range(3)]
    assert [left for _, left in found] == [1, 2, 3]
    assert len({pid for pid, _ in found}) == nursery.born == 1
    keeper.close()
    assert not nursery.living
    keeper.close()


def test_who_falls_is_not_kept(nursery: Any, tmp_path: Path) -> None:
    keeper = Keeper()
    served(keeper, nursery, tmp_path)
    with pytest.raises(Lost, match="the kernel raised"):
        served(keeper, nursery, tmp_path, "falls")
    assert not nursery.living and keeper.kept is None
    assert served(keeper, nursery, tmp_path)[1] == 1, "a fresh process"
    keeper.close()


def test_who_cannot_let_go_is_not_kept_and_that_is_told(nursery: Any, tmp_path: Path) -> None:
    told: list[str] = []
    keeper = Keeper(told.append)
    served(keeper, nursery, tmp_path, "holds on")
    assert not nursery.living and keeper.kept is None
    assert ["did not let go" in words for words in told] == [True]


def test_who_ends_between_two_jobs_is_replaced_and_nobody_is_blamed(nursery: Any, tmp_path: Path) -> None:
    told: list[str] = []
    keeper = Keeper(told.append)
    (first, _), kept = served(keeper, nursery, tmp_path), keeper.kept
    os.killpg(first, signal.SIGKILL)
    assert kept is not None
    while kept.channel.recv(1, socket.MSG_PEEK):  # until its end of the channel is gone
        pass
    second, left = served(keeper, nursery, tmp_path)
    assert (second != first, left, len(told)) == (True, 1, 1)
    keeper.close()
    assert not nursery.living


def test_a_second_launcher_beside_the_one_that_is_lent_is_not_kept_too() -> None:
    keeper = Keeper()
    first, second = (SimpleNamespace(exit_code=None, carry_out=lambda *_: 0.0) for _ in range(2))
    assert keeper.takes_back(first)  # type: ignore[arg-type]
    assert not keeper.takes_back(second)  # type: ignore[arg-type]
