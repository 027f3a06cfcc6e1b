"""What a native artefact wants from outside: read from its ELF tables, nothing is executed.

Every symbol it does not define must be bound by its version to the C, C++, maths, OpenMP or compiler library. Whatever
is left open would be found in the framework that lives in the same process; what opens libraries, starts processes or
talks to the network is refused by name, static guards or not; `imports` is the narrower list of what may be used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.core.verdict import Status
from kernelwright.judge.elf import Wanted

LIBRARIES = (
    *("libc.so.", "libm.so.", "libmvec.so.", "libstdc++.so.", "libgcc_s.so.", "libgomp.so.", "libomp.so."),
    *("ld-linux", "libdl.so.", "libpthread.so."),
)
"""The last three are part of the C library under names of their own."""
UNBOUND = frozenset(
    (
        *("__cxa_finalize", "__gmon_start__", "__pthread_key_create"),
        *("_ITM_registerTMCloneTable", "_ITM_deregisterTMCloneTable"),
    )
)
"""Weak symbols the compiler itself leaves open. An author's own would be filled from the framework."""
OPENERS = frozenset(("dlopen", "dlmopen", "dlsym", "dlvsym", "dlinfo", "__libc_dlopen_mode", "__libc_dlsym"))
FORBIDDEN = frozenset(
    (
        *("fork", "vfork", "_Fork", "clone", "clone3", "syscall", "system", "popen"),
        *("posix_spawn", "posix_spawnp", "execl", "execle", "execlp", "execv", "execve"),
        *("execvp", "execvpe", "execveat", "fexecve"),
        *("ptrace", "process_vm_readv", "process_vm_writev", "mount", "umount2", "unshare", "setns"),
        *("socket", "socketpair", "connect", "bind", "listen", "accept", "accept4"),
        *("getaddrinfo", "gethostbyname", "send", "sendto", "sendmsg", "sendmmsg"),
        *("recv", "recvfrom", "recvmsg", "recvmmsg"),
    )
)
"""What starts processes, reaches into other ones or talks to the network."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with an artefact."""

    status: Status
    reason: str


def finding(libraries: Sequence[str], wanted: Sequence[Wanted]) -> Finding | None:
    """Return why an artefact is refused for what it names and wants, or None."""
    for library in libraries:
        if not library.startswith(LIBRARIES):
            return Finding(Status.DELEGATION, f"linked with {library}")
    for symbol in wanted:
        if symbol.name in OPENERS:
            return Finding(Status.DELEGATION, f"uses {symbol.name}, which opens other libraries")
        if symbol.name in FORBIDDEN:
            return Finding(Status.REFUSED, f"uses {symbol.name}, which no kernel needs")
        if not symbol.library and not (symbol.is_weak and symbol.name in UNBOUND):
            return Finding(Status.DELEGATION, f"leaves {symbol.name} to be found in another library")
    return None
