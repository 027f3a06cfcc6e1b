"""The system calls a candidate's process may not make: a filter the kernel applies, assembled here.

Denied calls fail with EPERM, as if the machine lacked the right; a foreign instruction set is death. The filter costs a
timed call nothing: the kernel remembers which calls are allowed whatever their arguments.
"""

import ctypes
import errno
import platform
import signal
import struct
from dataclasses import dataclass

from kernelwright.worker import libc

ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
"""Column in the tables below, and the name the kernel's audit gives the instruction set."""
X32 = 0x4000_0000
"""Bit of system call numbers in the x32 dialect, which would slip past a filter on numbers."""

Table = dict[str, tuple[int | None, int | None]]


def _table(text: str) -> Table:
    """Return system calls by name with their numbers in both columns; a dash where there is none."""
    rows = [entry.split() for entry in text.split(";")]
    return {
        name: (int(first) if first != "-" else None, int(second) if second != "-" else None)
        for name, first, second in rows
    }


FORBIDDEN = _table("""
    ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; kcmp 312 272;
    process_madvise 440 440; process_mrelease 448 448; pidfd_open 434 434; pidfd_getfd 438 438;
    migrate_pages 256 238; move_pages 279 239;
    kexec_load 246 104; kexec_file_load 320 294; bpf 321 280; perf_event_open 298 241; userfaultfd 323 282;
    lookup_dcookie 212 18; io_uring_setup 425 425; io_uring_enter 426 426; io_uring_register 427 427;
    add_key 248 217; request_key 249 218; keyctl 250 219; syslog 103 116; open_by_handle_at 304 265;
    name_to_handle_at 303 264; fanotify_init 300 262; acct 163 89; swapon 167 224; swapoff 168 225;
    reboot 169 142; settimeofday 164 170; clock_settime 227 112; adjtimex 159 171; clock_adjtime 305 266;
    sethostname 170 161; setdomainname 171 162; quotactl 179 60; quotactl_fd 443 443; vhangup 153 58;
    personality 135 92; iopl 172 -; ioperm 173 -; modify_ldt 154 -; uselib 134 -
""")
"""Denied to whatever runs something of a candidate's: other processes, and what the kernel lends to root."""

ADMINISTRATION = _table("""
    mount 165 40; umount2 166 39; pivot_root 155 41; chroot 161 51; open_tree 428 428; move_mount 429 429;
    fsopen 430 430; fsconfig 431 431; fsmount 432 432; fspick 433 433; mount_setattr 442 442; setns 308 268;
    unshare 272 97; mknod 133 -; mknodat 259 33; init_module 175 105; finit_module 313 273;
    delete_module 176 106
""")
"""Denied to builder and runners; a GPU driver's own helper may need some of it."""

ALONE = _table("""
    fork 57 -; vfork 58 -; execve 59 221; execveat 322 281; tkill 200 130; rt_sigqueueinfo 129 138;
    rt_tgsigqueueinfo 297 240; pidfd_send_signal 424 424; setsid 112 157; setpgid 109 154;
    shmget 29 194; shmat 30 196; semget 64 190; semop 65 193; semtimedop 220 192; msgget 68 186;
    msgsnd 69 189; msgrcv 70 188; mq_open 240 180; memfd_create 319 279; memfd_secret 447 447;
    setpriority 141 140; ioprio_set 251 30; sched_setscheduler 144 119; sched_setparam 142 118;
    sched_setattr 314 274; setitimer 38 103; alarm 37 -; timer_create 222 107; timerfd_create 283 85
""")
"""Denied to a runner of a CPU kernel, which needs threads and nothing else: other processes, memory that outlives it
or that no limit counts, the other arm's share of the machine, and timers: one that runs out while the runner stands
still is served before anything it is asked for."""
COMPILING = ("fork", "vfork", "execve")
"""What a runner that compiles is allowed of these."""

CHECKED = _table("""
    clone 56 220; clone3 435 435; socket 41 198; prctl 157 167; kill 62 129; tgkill 234 131;
    prlimit64 302 261; sched_setaffinity 203 122; rt_sigaction 13 134
""")
"""Calls that depend on their first argument."""
SECCOMP = _table("seccomp 317 277")

ALLOW, KILL, REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
NEW_NAMESPACES, NEW_THREAD = 0x7E02_0000, 0x0001_0000
AF_UNIX = 1
SET_FILTER, ALL_THREADS, KEEP_SPECULATION = 1, 1, 4


@dataclass(frozen=True)
class Rules:
    """What one kind of process may do beyond computing."""

    administers: bool = False
    """Mounts, devices and modules: only the GPU runner, whose driver may have to start a helper of its own."""
    starts_processes: bool = False
    """Compilers do; a runner has threads only."""
    compiles: bool = False
    """A runner whose kernels are compiled when they are first called. What it starts stays in its process group, which
    stands still whenever the clock does."""
    local_sockets: bool = False
    """New sockets of the machine itself; never of a network."""
    own_pid: int | None = None
    """The one process it may signal, limit or move to another core; None where none but its own can be seen."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("steps", ctypes.c_char_p))


STEP = struct.Struct("=HBBI")
Steps = list[tuple[int, int, int, int]]


def _return(value: int) -> Steps:
    return [(RETURN, 0, 0, value)]


def _if(test: int, value: int, then: int) -> Steps:
    """Return `then` from the filter if the test holds, else go on."""
    return [(test, 0, 1, value), *_return(then)]


def _only(*values: int) -> Steps:
    """Allow a call whose first argument is one of the values."""
    steps: Steps = [(LOAD, 0, 0, FIRST_ARGUMENT)]
    for value in values:
        steps += _if(EQUAL, value & 0xFFFF_FFFF, ALLOW)
    return steps + _return(REFUSE | errno.EPERM)


def _checks(rules: Rules) -> dict[str, Steps]:
    """Return the rest of the filter for calls that depend on their first argument."""
    refuse = REFUSE | errno.EPERM
    argument: Steps = [(LOAD, 0, 0, FIRST_ARGUMENT)]
    clone = argument + _if(ANY_BIT, NEW_NAMESPACES, refuse)
    clone += (
        _return(ALLOW)
        if rules.starts_processes or rules.compiles
        else _if(ANY_BIT, NEW_THREAD, ALLOW) + _return(refuse)
    )
    checks = {
        "clone": clone,
        # Its flags lie in memory, out of a filter's sight; told there is no such call, the C library takes clone.
        "clone3": _return(REFUSE | errno.ENOSYS),
        "socket": _only(AF_UNIX) if rules.local_sockets else _return(refuse),
    }
    if not rules.starts_processes:
        # It dies with its parent and stays closed to others: neither may be taken back.
        checks["prctl"] = (
            argument
            + _if(EQUAL, libc.PR_SET_PDEATHSIG, refuse)
            + _if(EQUAL, libc.PR_SET_DUMPABLE, refuse)
            + _return(ALLOW)
        )
        # It is stopped when the clock stops; a handler would be woken with it to finish the work unseen.
        checks["rt_sigaction"] = argument + _if(EQUAL, signal.SIGCONT, refuse) + _return(ALLOW)
    if (own := rules.own_pid) is not None:
        checks |= {"kill": _only(0, own, -own), "tgkill": _only(own)}
        checks |= {"prlimit64": _only(0, own), "sched_setaffinity": _only(0, own)}
    return checks


def program(rules: Rules, machine: str) -> Steps:
    """Return the filter of a kind of process for an instruction set."""
    column, architecture = ARCHITECTURES[machine]
    steps: Steps = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), *_return(KILL)]
    steps += [(LOAD, 0, 0, NUMBER), *(_if(AT_LEAST, X32, KILL) if machine == "x86_64" else [])]
    denied = dict(FORBIDDEN)
    if not rules.administers:
        denied |= ADMINISTRATION
    if not rules.starts_processes:
        denied |= {name: row for name, row in ALONE.items() if not (rules.compiles and name in COMPILING)}
    for numbers in denied.values():
        if (number := numbers[column]) is not None:
            steps += _if(EQUAL, number, REFUSE | errno.EPERM)
    for name, check in _checks(rules).items():
        number = CHECKED[name][column]
        assert number is not None, "every checked call exists on both"
        steps += [(EQUAL, 0, len(check), number), *check]
    return steps + _return(ALLOW)


def install(rules: Rules) -> bool:
    """Put the filter on every thread of this process, for good; tell whether the system has such a thing."""
    if (machine := platform.machine()) not in ARCHITECTURES:
        return False
    steps = program(rules, machine)
    filter_ = _Program(len(steps), b"".join(STEP.pack(*step) for step in steps))
    number = SECCOMP["seccomp"][ARCHITECTURES[machine][0]]
    assert number is not None
    # Older kernels would otherwise turn store speculation off with the filter, which slows what is timed.
    for flags in (ALL_THREADS | KEEP_SPECULATION, ALL_THREADS):
        try:
            return libc.syscall(number, SET_FILTER, flags, ctypes.byref(filter_)) == 0
        except OSError:
            continue
    return False
