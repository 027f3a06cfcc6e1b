"""Whether there is still a device to judge on: asked when something died, before a candidate is blamed for it.

Words of the dead decide nothing here. A process of our own is born where the candidate's was, with nothing of the
candidate in it, and on a GPU another one makes a context: if that fails, no candidate can be judged, honest or not.
"""

import socket
import tempfile
from contextlib import closing
from pathlib import Path

from kernelwright.core.device import Device
from kernelwright.core.errors import DeviceLost, ServiceDied
from kernelwright.core.messages.runner import REAPED, SPAWNED, Reap, Spawn
from kernelwright.hardware.detect import absence
from kernelwright.judge.children import Service

BIRTH_SECONDS = 90.0
"""How long a fresh nursery may take for its first child: imports of a GPU's compilers take ten on a busy host."""
RUNNER_FILES, LAUNCHER_FILES = 5, 2
"""Descriptors each is born with beside its control socket; nothing reads them before a job comes."""


def require_device(
    device: Device,
    nursery: Service,
    home: Path,
    birth_seconds: float = BIRTH_SECONDS,
    *,
    is_launched: bool = False,
) -> None:
    """Raise `DeviceLost` unless a process of the kind that died can be born in a fresh nursery and a GPU works."""
    words = absence(device) or _stillborn(device, nursery, home, birth_seconds, is_launched=is_launched)
    if words:
        raise DeviceLost(f"{device.kind.value}:{device.index} ({device.name})", words)


def _stillborn(
    device: Device, nursery: Service, home: Path, birth_seconds: float, *, is_launched: bool
) -> str:
    """Return why nothing can be born in a nursery, empty if something was; it is killed before it gets a job."""
    kind, files = ("launcher", LAUNCHER_FILES) if is_launched else ("runner", RUNNER_FILES)
    ours, theirs = socket.socketpair()
    nursery.channel.settimeout(birth_seconds)
    try:
        with (
            closing(ours),
            closing(theirs),
            tempfile.TemporaryFile(dir=home) as file,
            tempfile.TemporaryDirectory(dir=home, ignore_cleanup_errors=True) as folder,
        ):
            order = Spawn.model_validate({"folder": folder, "kind": kind, "device": device.index})
            born = nursery.ask(order, [theirs.fileno(), *[file.fileno()] * files], SPAWNED)
            if born.pid:
                nursery.ask(Reap(pid=born.pid), [], REAPED)
                return ""
            file.seek(0)
            said = file.read().decode(errors="replace").strip().rpartition("\n")[2]
            return f"no process can be started on it: {said}"
    except ServiceDied as died:
        if isinstance(died.__cause__, TimeoutError):
            return f"a process started on it says nothing for {birth_seconds:g} s"
        return f"no process can be started on it: {died.detail}"
    finally:
        nursery.channel.settimeout(None)
