"""No test reaches another machine; GPU tests skip themselves without a GPU, those of a local llm unless asked for."""

import ipaddress
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LOCAL_LLM = "local_llm"
NAMES_HERE = {"", "localhost", "localhost.localdomain"}


class NetworkUsed(BaseException):
    """A test tried to reach another machine. No `Exception`: nobody may take it for a server that is down."""


def _is_here(host: object) -> bool:
    name = host.decode(errors="replace") if isinstance(host, bytes) else host
    if name is None or name in NAMES_HERE:
        return True
    try:
        found = ipaddress.ip_address(str(name).partition("%")[0])
    except ValueError:
        return False
    return found.is_loopback or found.is_unspecified


def _refuse_the_network(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse a connection, a datagram or a name of another machine, in whatever library it is tried."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not _is_here(host):
        raise NetworkUsed(f"{event} to {host!r}: tests stay on this machine")


def pytest_configure() -> None:
    sys.addaudithook(_refuse_the_network)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background jobs ignore it, and so would every program a test starts and interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Have dynamo know nothing of earlier tests, nor later ones of this."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Return a function that lets a home know what this machine can do: it is measured once for all test processes."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "calibrated"

    def known(home: Path) -> Path:
        from kernelwright.hardware.calibrate import cache_path, ceilings
        from kernelwright.hardware.detect import cpu_device

        ceilings(cpu_device(), shared)
        target = cache_path(cpu_device(), home)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(cache_path(cpu_device(), shared), target)
        return home

    return known


def _has_gpu() -> bool:
    smi = shutil.which("nvidia-smi")
    return smi is not None and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked_for = LOCAL_LLM in str(config.getoption("-m"))
    for item in items:
        if item.get_closest_marker(LOCAL_LLM) and not asked_for:
            item.add_marker(pytest.mark.skip(reason=f"asked for with -m {LOCAL_LLM} alone: docs/llm.md"))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU: nvidia-smi lists none"))
