"""Two judges for each file of tests, one without static guards and audit, and what the specimens look for."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.engine.service import JudgeClient
from tests.cheats.specimen import Specimen
from tests.cheats.trial import PLANTED, SERVER

PWNED = Path("/tmp/kernelwright-pwned")
"""What a specimen leaves that got a command executed."""
RESIDUE = tuple(Path(place, "kernelwright-residue") for place in ("/dev/shm", "/tmp", "/var/tmp"))


@dataclass
class Bar:
    """The judges; builds are shared, so that the second judgement of a specimen costs no second build."""

    settings: JudgeSettings

    @cached_property
    def guarded(self) -> JudgeClient:
        """Return the judge everybody meets."""
        return JudgeClient(self.settings, lambda _: None)

    @cached_property
    def unguarded(self) -> JudgeClient:
        """Return the judge without static guards and without the audit of machine code: everything runs."""
        return self._with({"guards_off": True, "audit_off": True})

    @cached_property
    def auditing(self) -> JudgeClient:
        """Return the judge without static guards, for what nothing but the audit can tell from an honest kernel."""
        return self._with({"guards_off": True})

    def second(self, specimen: Specimen) -> JudgeClient:
        """Return the judge of a specimen's second judgement."""
        return self.auditing if specimen.needs_audit else self.unguarded

    def _with(self, changes: dict[str, bool]) -> JudgeClient:
        return JudgeClient(self.settings.model_copy(update=changes), lambda _: None)

    def close(self) -> None:
        """End those that were started."""
        for name in ("guarded", "unguarded", "auditing"):
            if name in vars(self):
                getattr(self, name).close()


@pytest.fixture(scope="module")
def bar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bar]:
    home = tmp_path_factory.mktemp("judge")
    bar = Bar(
        JudgeSettings(
            threads=2,
            max_pairs=8,
            alpha=0.001,
            hidden_shapes=4,
            gate_pairs=0,
            cache_folder=str(home / "cache"),
            blob_folder=str(home / "blobs"),
        )
    )
    yield bar
    bar.close()


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
