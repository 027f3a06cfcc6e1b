"""The sandbox: what stands between a candidate and the machine, layer by layer, each as far as the system grants it.

1. `Ground.prepare` runs once, before anything heavy is imported: namespaces, and a root with nothing in it but the
   interpreter, the libraries, the toolchain and the package, all read-only.
2. `own_folder` gives one process its folder: memory with a size, mounted where nobody else can see it.
3. `close_door` comes last: limits, another user, no rights, death with the parent, Landlock, seccomp.
What is in force is returned by name and recorded with every verdict. A layer the system refuses is left out, and its
name with it; nothing fails to start for want of one.
"""

import os
import pwd
import resource
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import kernelwright
from kernelwright.core.environment import PLUGIN_FOLDERS, close_off
from kernelwright.worker import landlock, libc, namespaces, seccomp
from kernelwright.worker.namespaces import BOX, NEW_IPC, NEW_MOUNTS, NEW_NAME, NEW_NETWORK

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store")
SETTINGS = tuple(
    f"/etc/{name}"
    for name in ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "passwd", "group")
)
PROCESSORS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
OF_PROC = tuple(f"/proc/{name}" for name in ("self", "cpuinfo", "meminfo", "stat", "sys/vm"))
"""What may be read of a /proc that shows other processes too."""
KEPT_FOR_DRIVERS = frozenset(
    {*SYSTEM, "/etc", "/dev", "/proc", "/sys", "/run", "/var", "/opt", "/nix", "/gnu"}
)
"""Folders of a root that stay as they are for a GPU's driver and its libraries."""
COVERED_TOO = (
    *("/var/tmp", "/var/home", "/var/crash", "/var/run/secrets", "/run/secrets", "/run/user", "/run/lock"),
    "/dev/shm",
)
"""Folders inside of those that hold what is no driver's: secrets, homes, places everybody may write to."""
BESIDE_PROGRAMS = ("lib", "lib64", "libexec", "include", "nvvm", "targets")
"""Folders a compiler expects beside its own."""

FIRST_USER, LAST_USER, NOBODY = 0x4000_0000, 0x5FFF_FFFF, 65534
"""Users nobody has: one for each runner, so that what is counted by user is counted by runner."""
STACK_BYTES = 160 << 20
"""Addresses a thread reserves: a stack and an arena of the allocator."""
TASKS = 256
OOM_FIRST = "1000"


@dataclass(frozen=True)
class Needs:
    """How much one process may use."""

    folder: str
    """Its own folder on disk, used where none can be mounted."""
    folder_bytes: int
    memory_bytes: int
    """On top of what it has mapped already; 0 for no limit: a GPU's driver maps more addresses than there are bytes."""
    cpu_seconds: int
    file_bytes: int
    open_files: int
    user: int = NOBODY
    """Whom to run as, if we may choose."""
    threads: int = 1


@dataclass(frozen=True)
class Ground:
    """What was reached once, for all processes that follow."""

    layers: tuple[str, ...]
    shown: tuple[str, ...]
    """Paths that can be read and executed."""
    without: frozenset[str]
    """Layers left out on purpose."""
    rooted: bool = False
    """Whether the root is ours."""
    own_user: bool = False
    """Whether this took a user namespace."""
    users: int = 0
    """How many other users it can run processes as."""

    @staticmethod
    def prepare(stage: str, without: Iterable[str] = (), *, own_user: bool = False) -> "Ground":
        """Enter namespaces and put up the new root on `stage`, a folder nothing else is needed of."""
        left_out, shown, layers = frozenset(without), shown_paths(os.environ), []
        rooted, entered = False, None
        if "mounts" not in left_out:
            entered = namespaces.enter(NEW_MOUNTS | NEW_NETWORK | NEW_IPC | NEW_NAME)
        if entered is not None:
            layers = ["network", "ipc"]
            with suppress(OSError):
                namespaces.new_root((*shown, *PROCESSORS, *DEVICES), stage)
                rooted, layers = True, ["mounts", *layers]
        users = 0 if "user" in left_out else _spare_users()
        return Ground(tuple(layers), shown, left_out, rooted, own_user or bool(entered), users)

    def user(self, number: int) -> int:
        """Return the user for the n-th process, a different one for each where there are enough."""
        spread = (os.getpid() & 0xFFFF) * 0x2000 + number % 0x2000
        return FIRST_USER + spread % self.users if self.users > 1 else NOBODY


def shown_paths(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what interpreter, package, libraries and compilers consist of; never a home or what contains one."""
    homes = [os.path.realpath(environment.get("HOME", "/"))]
    python = (
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        *sys.path,
        str(Path(kernelwright.__file__).parent),
    )
    programs = [Path(entry) for entry in environment.get("PATH", "").split(":") if entry]
    beside = [str(entry.parent / name) for entry in programs for name in BESIDE_PROGRAMS]
    named = [*environment.get("LD_LIBRARY_PATH", "").split(":"), environment.get("CUDA_HOME", "")]
    named += environment.get(PLUGIN_FOLDERS, "").split(":")
    linked = [
        line.strip()
        for file in sorted(Path("/etc/ld.so.conf.d").glob("*.conf"))
        for line in file.read_text(errors="replace").splitlines()
        if line.startswith("/")
    ]
    with suppress(KeyError):
        homes.append(os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir))
    wanted = (*SYSTEM, *SETTINGS, *python, *map(str, programs), *beside, *named, *linked)
    shown: list[str] = []
    for path in sorted(set(wanted)):
        real = os.path.realpath(path)
        # What a folder shows already need not be shown again: every runner pays for the length of this list.
        known = any(_holds(other, path) for other in shown) or any(_holds(real, home) for home in homes)
        if path.startswith("/") and Path(path).exists() and not known:
            shown.append(path)
    return tuple(shown)


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _spare_users() -> int:
    """Return how many users other than ours a process may be given and still read what it needs."""
    if os.geteuid() != 0:
        return 0
    lines = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    wide = any(int(inner) == 0 and int(count) > LAST_USER for inner, _, count in lines)
    for user, count in ((FIRST_USER, LAST_USER - FIRST_USER), (NOBODY, 1)):
        if (count == 1 or wide) and _can_work_as(user):
            return count
    return 0


def _can_work_as(user: int) -> bool:
    """Try it in a process of its own: it must be able to read the package, and we to signal it."""
    pid = os.fork()
    if not pid:
        try:
            _become(user)
            places = [sys.prefix, os.__file__, kernelwright.__file__, *filter(os.path.isdir, sys.path)]
            os._exit(0 if all(os.access(place, os.R_OK) for place in places) else 1)
        finally:
            os._exit(1)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        os.kill(pid, 0)
    except PermissionError:
        os.waitpid(pid, 0)
        return False
    return os.waitpid(pid, 0)[1] == 0


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def own_folder(ground: Ground, needs: Needs, *, warded: bool) -> list[str]:
    """Give this process a folder of its own, make it home and working folder, and return what was reached."""
    # The files of a process closed to others belong to the superuser, who may not be here; closed again at the door.
    libc.prctl(libc.PR_SET_DUMPABLE, 1)
    with suppress(OSError):
        # If the machine runs out of memory, this process is the one to go.
        Path("/proc/self/oom_score_adj").write_text(OOM_FIRST)
    user = needs.user if ground.users else os.geteuid()
    layers, home = [], "/proc/self/cwd"
    if ground.rooted:
        namespaces.unshare(NEW_MOUNTS | NEW_IPC)
        namespaces.mount_box(needs.folder_bytes, user, user if ground.users else os.getegid())
        home = BOX
        if warded:
            with suppress(OSError):
                namespaces.mount_proc(writable=ground.own_user)
                layers.append("proc")
    elif ground.users:
        os.chown(needs.folder, user, user)
    os.chdir(BOX if ground.rooted else needs.folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = home
    os.environ["USER"] = "runner"  # this user has no entry in the system's list, and torch asks for its name
    # Inductor and Triton, imported before the fork, remember the nursery's folders.
    os.environ["TRITON_HOME"] = home
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    tempfile.tempdir = None  # whoever asked before got another folder
    return layers


def cover_files(ground: Ground, needs: Needs) -> list[str]:
    """Hide all files from a process that needs devices but the system's, what is shown and its folder.

    Where the root cannot be ours because a driver wants /proc, /sys and /dev as they are, empty folders are laid over
    everything that is none of the system's. A system that refuses leaves the files where they are, and no layer.
    """
    shown = {path for each in (*ground.shown, needs.folder) for path in (each, os.path.realpath(each))}
    tops = [entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False)]
    # By their real names: a link to a covered place would lay a second cover over what the first shows.
    every = dict.fromkeys(os.path.realpath(path) for path in (*tops, *COVERED_TOO))
    places = [
        path for path in every if path not in KEPT_FOR_DRIVERS and path not in shown and Path(path).is_dir()
    ]
    mask = os.umask(0o022)  # whoever this becomes must find its way through what is made here
    try:
        namespaces.own_mounts()
        for place in places:
            namespaces.cover(place, shown)
    except OSError:
        return []
    finally:
        os.umask(mask)
        os.chdir(needs.folder)  # by its name: what lies under a cover has none
    return ["files"]


def close_door(ground: Ground, needs: Needs, rules: seccomp.Rules, reached: Iterable[str]) -> str:
    """Take everything this process does not need from it, for good; return the names of all layers in force."""
    layers = [*ground.layers, *reached]
    _limit(ground, needs)
    if _lose_rights(ground, needs):
        layers.append("user")
    close_off()
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    if "landlock" not in ground.without:
        proc = ("/proc",) if "proc" in layers else OF_PROC
        if version := landlock.restrict((*ground.shown, *PROCESSORS, *proc), (".", *DEVICES)):
            layers.append(f"landlock-{version}")
    if "seccomp" not in ground.without and seccomp.install(rules):
        layers.append("seccomp")
    return "+".join([*layers, "limits"])


def _limit(ground: Ground, needs: Needs) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    memory = mapped + needs.memory_bytes + needs.threads * STACK_BYTES
    tasks = TASKS + 4 * (os.cpu_count() or 1)
    if ground.users <= 1 and not ground.own_user:
        # The system counts by user, and this one has other processes.
        tasks += _tasks_of(needs.user if ground.users else os.geteuid())
    limits = [
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NPROC, tasks, tasks),
        (resource.RLIMIT_CPU, needs.cpu_seconds, needs.cpu_seconds + 1),
        (resource.RLIMIT_FSIZE, needs.file_bytes, needs.file_bytes),
        (resource.RLIMIT_NOFILE, needs.open_files, needs.open_files),
    ]
    if needs.memory_bytes:
        limits.append((resource.RLIMIT_AS, memory, memory))
    for kind, soft, hard in limits:
        most = resource.getrlimit(kind)[1]
        capped = [value if most == resource.RLIM_INFINITY else min(value, most) for value in (soft, hard)]
        resource.setrlimit(kind, (capped[0], capped[1]))


def _tasks_of(user: int) -> int:
    """Return how many threads a user has now."""
    tasks = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            if int(lines["Uid"].split()[0]) == user:
                tasks += int(lines["Threads"])
    return tasks


def _lose_rights(ground: Ground, needs: Needs) -> bool:
    """Become a user of one's own, and nobody's superuser; tell whether it is one's own."""
    if "user" in ground.without:
        return False
    if ground.users:
        _become(needs.user)
        return True
    if ground.own_user:
        with suppress(OSError):
            namespaces.become_own_user()
            namespaces.drop_capabilities()
            return True
    with suppress(OSError):
        namespaces.drop_capabilities()
    return False


def shut_in_launcher() -> str:
    """Shut in a launcher: trusted code that loads a candidate's device code, and needs the driver as it is."""
    os.setsid()
    return _shut_in_driver()


def shut_in_profiled(*, watched: bool) -> str:
    """Shut in a launcher that is profiled, in the session it was started in; return the layers in force.

    A profiler around it (`watched`) reads its memory and talks to it over sockets: then there are only limits. A system
    that refuses does not stop the profile: why is said instead.
    """
    try:
        if not watched:
            return _shut_in_driver()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    except OSError as error:
        return f"none: {error}"
    return "limits"


def _shut_in_driver() -> str:
    """Take from this process what a GPU's driver does not need; return the layers in force."""
    layers = []
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        namespaces.unshare(NEW_NETWORK)
        layers.append("network")
    close_off()
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    if seccomp.install(seccomp.Rules(administers=True, starts_processes=True, local_sockets=True)):
        layers.append("seccomp")
    return "+".join([*layers, "limits"])


def sweep(known: Iterable[int]) -> None:
    """Kill and reap every process that came to this one when its own parent died, and what they leave in turn."""
    spared = set(known)
    while orphans := [pid for pid in _children() if pid not in spared]:
        for pid in orphans:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> list[int]:
    own, found = os.getpid(), []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in the second field may hold anything; the parent stands behind its closing bracket.
            if int(entry.read_text().rpartition(")")[2].split()[1]) == own:
                found.append(int(entry.parent.name))
    return found
