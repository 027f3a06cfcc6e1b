"""Two judges for each file of tests, one of them without static guards, and what the specimens look for."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.engine.service import JudgeClient

PLANTED = {
    Path("/tmp/kernelwright-planted-key"): "planted: nobody may read this\n",
    Path("/tmp/kernelwright-planted-answer"): "planted: nobody may read this either\n",
}
"""What stealing specimens look for, at names they know."""
SERVER = ("127.0.0.1", 47631)
"""Where a specimen looks for help."""
PWNED = Path("/tmp/kernelwright-pwned")
"""What a specimen leaves that got a command executed."""
RESIDUE = tuple(Path(place, "kernelwright-residue") for place in ("/dev/shm", "/tmp", "/var/tmp"))


@dataclass(frozen=True)
class Bar:
    """The two judges; builds are shared, so that the second judgement of a specimen costs no second build."""

    guarded: JudgeClient
    unguarded: JudgeClient


@pytest.fixture(scope="module")
def bar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bar]:
    home = tmp_path_factory.mktemp("judge")
    settings = JudgeSettings(
        threads=2,
        max_pairs=8,
        alpha=0.001,
        hidden_shapes=4,
        gate_pairs=0,
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
    )
    guarded = JudgeClient(settings, lambda _: None)
    unguarded = JudgeClient(settings.model_copy(update={"guards_off": True}), lambda _: None)
    yield Bar(guarded, unguarded)
    guarded.close()
    unguarded.close()


@pytest.fixture(scope="module", autouse=True)
def untouched_machine() -> Iterator[None]:
    """Nothing a specimen tried to leave behind is there, before or after."""
    for path in (PWNED, *RESIDUE):
        path.unlink(missing_ok=True)
    yield
    assert [path for path in (PWNED, *RESIDUE) if path.exists()] == []


@pytest.fixture(scope="module")
def temptations() -> Iterator[Callable[[], int]]:
    """Secrets on the disk and a server that listens; returns how many callers the server had."""
    for path, text in PLANTED.items():
        path.write_text(text)
    with socket.create_server(SERVER, reuse_port=True) as server:
        server.setblocking(False)

        def callers() -> int:
            count = 0
            with suppress(BlockingIOError):
                while True:
                    server.accept()[0].close()
                    count += 1
            return count

        yield callers
    for path in PLANTED:
        path.unlink(missing_ok=True)
