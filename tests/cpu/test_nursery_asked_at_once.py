"""Several threads ask one nursery: each gets the answer to its own question."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from kernelwright.core.messages.runner import REAPED, SPAWNED, Reap, Spawn
from kernelwright.judge.children import Service
from kernelwright.judge.presence import RUNNER_FILES

THREADS, BIRTHS = 8, 6


def test_runners_that_are_born_and_end_at_once_are_not_taken_for_each_other(tmp_path: Path) -> None:
    nursery = Service("nursery", "kernelwright.worker.nursery", tmp_path, 1)

    def lives(number: int) -> list[int]:
        """Have runners born and reaped; one that is reaped by another's name would not be there to be reaped."""
        folder, found = tmp_path / str(number), []
        folder.mkdir()
        for _ in range(BIRTHS):
            ours, theirs = socket.socketpair()
            with closing(ours), closing(theirs), (tmp_path / "nothing").open("a+b") as file:
                descriptors = [theirs.fileno(), *[file.fileno()] * RUNNER_FILES]
                pid = nursery.ask(Spawn(folder=str(folder)), descriptors, SPAWNED).pid
                assert Path(f"/proc/{pid}").exists()
                nursery.ask(Reap(pid=pid), [], REAPED)
                assert not Path(f"/proc/{pid}").exists()
                found.append(pid)
        return found

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            pids = [pid for own in pool.map(lives, range(THREADS)) for pid in own]
    finally:
        nursery.close()
    assert len(pids) == THREADS * BIRTHS
    assert all(pids)
