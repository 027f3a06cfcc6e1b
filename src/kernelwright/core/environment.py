"""The environment of a child process, built from scratch: nothing of ours leaks in, no key ever does.

And the way back is closed too: `close_off` is what every process of ours calls before a candidate runs beside it.
"""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL

PLUGIN_FOLDERS = "KERNELWRIGHT_PLUGINS"
"""Folders of the user's own drawers, parted like PATH: every process of a run must find the same languages."""
KEPT = (
    *("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME"),
    PLUGIN_FOLDERS,
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)
"""What a toolchain or a driver may need; no other variable reaches a worker, the judge or the reference."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4

MALLOC = {
    # Fresh large outputs otherwise come from mmap and pay a page fault per 4 kB: eager looked 5x slower than it is
    # (docs/measured.md#malloc). A threshold would do up to 32 MB, the largest glibc takes.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


def child_environment(
    parent: Mapping[str, str], package_root: Path, home: Path, threads: int
) -> dict[str, str]:
    """Return the whole environment of a child: a few kept names, our own package, its own home."""
    return {
        **tool_environment(parent),
        **MALLOC,
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": str(package_root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(threads),
        # Spinning threads of one arm steal the cores of the other; passive waiting cut the bias between two
        # processes running the same code from 12.9 % to 2.5 % (docs/measured.md#passive).
        "OMP_WAIT_POLICY": "passive",
    }


def tool_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a tool that is asked something, such as its version: the few kept names alone."""
    kept = {name: parent[name] for name in KEPT if name in parent}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **kept}


def close_off(*, die_with_parent: bool = True) -> None:
    """Close this process's memory, environment and descriptors to other processes of the same user.

    With `die_with_parent` it is killed when the thread that started it ends, however that comes about.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, ctypes.c_long(0), 0, 0, 0)
    if die_with_parent:
        end_with_parent()


def end_with_parent() -> None:
    """Have this process killed when the thread that started it ends; the program it turns into is, too."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, ctypes.c_long(SIGKILL), 0, 0, 0)
