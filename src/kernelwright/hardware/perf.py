"""Counters of a process on a CPU, read from outside: the kernel's perf events, and its accounts where it refuses those.

1. Events are opened on a process that has one thread yet, and are inherited: whatever it starts later is counted too.
2. The descriptors stay with the opener. What is counted can neither write nor stop its counts.
3. An event the processor or the virtual machine does not have is left out, and the kernel's reason is kept. Where the
   kernel refuses them all, what /proc tells everybody of a process stands in for the software events.
4. Counts only ever grow: what a stretch of work took is the difference of two readings.
"""

import ctypes
import errno
import mmap
import os
import platform
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from kernelwright.core.counters import NoCounters

TASK_CLOCK, PAGE_FAULTS = "task-clock", "page-faults"
CONTEXT_SWITCHES, MIGRATIONS = "context-switches", "cpu-migrations"
CYCLES, INSTRUCTIONS, CACHE_MISSES, BRANCH_MISSES = "cycles", "instructions", "cache-misses", "branch-misses"
RUN_DELAY = "run-delay"
"""Not an event but an account: nanoseconds in which threads could have run and had no core."""
THREADS_BUSY = "threads_busy"
IPC = "instructions_per_cycle"
MISSES_PER_1000 = "misses_per_1000_instructions"
MISSED_BYTES = "missed_bytes"
MISSED_RATE = "missed_bytes_per_s"
FAULT_NS, FAULTS_PCT = "fault_ns", "faults_pct"

SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}
ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
"""`perf_event_attr` in its first published size, which every kernel takes."""
INHERITED, WITHOUT_KERNEL, WITHOUT_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
TIMES = 1 | 2
"""Read format: how long an event was wanted, and how long it had a counter."""
READING = struct.Struct("=QQQ")
LINE_BYTES = 64
PROBE_BYTES, PROBES = 4 << 20, 5


class Kind(IntEnum):
    """Whose event it is, in the kernel's numbers."""

    HARDWARE = 0
    """The processor's."""
    SOFTWARE = 1
    """The kernel's own."""


@dataclass(frozen=True)
class Event:
    """One thing that is counted."""

    name: str
    kind: Kind
    number: int
    in_kernel: bool = False
    """Whether it happens in the kernel only: without the right to look there it would always be zero."""


EVENTS = (
    Event(TASK_CLOCK, Kind.SOFTWARE, 1),
    Event(PAGE_FAULTS, Kind.SOFTWARE, 2),
    Event(CONTEXT_SWITCHES, Kind.SOFTWARE, 3, in_kernel=True),
    Event(MIGRATIONS, Kind.SOFTWARE, 4, in_kernel=True),
    Event(CYCLES, Kind.HARDWARE, 0),
    Event(INSTRUCTIONS, Kind.HARDWARE, 1),
    # The last level on Intel and Arm; the second on AMD, whose third level is no core's own: an upper bound there.
    Event(CACHE_MISSES, Kind.HARDWARE, 3),
    Event(BRANCH_MISSES, Kind.HARDWARE, 5),
)
"""What is wanted; few enough for the counters of every processor, so that mostly none has to share."""
HARDWARE = tuple(event.name for event in EVENTS if event.kind is Kind.HARDWARE)


class Count(NamedTuple):
    """What an event has come to."""

    value: int
    wanted_ns: int
    counted_ns: int
    """Less than wanted where events share a counter."""


@dataclass(frozen=True)
class Reading:
    """All counts at one moment."""

    events: Mapping[str, Count]
    accounts: Mapping[str, int]
    """What /proc says."""

    def since(self, earlier: "Reading") -> dict[str, float]:
        """Return what was counted since an earlier reading; an event without a counter in between is left out."""
        found = {
            name: float(max(0, value - earlier.accounts[name]))
            for name, value in self.accounts.items()
            if name in earlier.accounts
        }
        for name, count in self.events.items():
            before = earlier.events[name]
            wanted, counted = count.wanted_ns - before.wanted_ns, count.counted_ns - before.counted_ns
            if counted:
                found[name] = (count.value - before.value) * wanted / counted
            else:
                # A process that stood still counts nothing; one that ran without a counter is not known.
                found |= {} if wanted else {name: 0.0}
        return found


class Watch:
    """The counters of one process and everything it starts from now on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.opened: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        """By event the number of the error."""
        for event in EVENTS:
            try:
                self.opened[event.name] = opened(event, pid)
            except OSError as error:
                self.refused[event.name] = error.errno or errno.EINVAL

    def read(self) -> Reading:
        """Return all counts now."""
        counts = {
            name: Count(*READING.unpack(os.read(descriptor, READING.size)))
            for name, descriptor in self.opened.items()
        }
        known = accounts(self.pid)
        return Reading(counts, {name: value for name, value in known.items() if name not in counts})

    def close(self) -> None:
        """Give the counters back."""
        for descriptor in self.opened.values():
            os.close(descriptor)
        self.opened.clear()


def opened(event: Event, pid: int) -> int:
    """Return a descriptor that counts an event of a process; without its kernel half where that is not permitted."""
    try:
        return _open(event, pid, INHERITED)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM) or event.in_kernel:
            raise
    return _open(event, pid, INHERITED | WITHOUT_KERNEL | WITHOUT_HYPERVISOR)


def _open(event: Event, pid: int, flags: int) -> int:
    number = SYSTEM_CALL.get(platform.machine())
    if number is None or platform.system() != "Linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = ATTRIBUTES.pack(event.kind, ATTRIBUTES.size, event.number, 0, 0, TIMES, flags, 0, 0, 0)
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    close_on_exec = 8
    words = (pid, -1, -1, close_on_exec)
    descriptor: int = system_call(ctypes.c_long(number), attributes, *(ctypes.c_long(word) for word in words))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def accounts(pid: int) -> dict[str, int]:
    """Return what the kernel tells everybody of a process: running, waiting, switches, faults, as far as it does."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        # The name comes in brackets and may hold anything; what follows has fixed places.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[PAGE_FAULTS] = int(fields[7]) + int(fields[9])
    with suppress(OSError, ValueError):
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        told = [[int(word) for word in (thread / "schedstat").read_text().split()] for thread in threads]
        names = (TASK_CLOCK, RUN_DELAY, CONTEXT_SWITCHES)
        found |= {name: sum(one[place] for one in told) for place, name in enumerate(names)}
    return found


def lack_of(refused: Mapping[str, int]) -> tuple[NoCounters, str]:
    """Return why hardware events are missing, as a word and as one line with the remedy; nothing if none is."""
    missing = [name for name in HARDWARE if name in refused]
    if not refused:
        return NoCounters.NONE, ""
    codes = {errno.errorcode.get(code, str(code)): code for code in refused.values()}
    if {errno.EACCES, errno.EPERM} & set(codes.values()):
        level = _paranoia()
        return NoCounters.NOT_PERMITTED, (
            f"the kernel does not let this user count events of another process (perf_event_open: "
            f"{', '.join(sorted(codes))}; kernel.perf_event_paranoid is {level}). Run as root or give Python "
            "CAP_PERFMON (a container: --cap-add PERFMON and a seccomp profile that allows perf_event_open)."
        )
    words = (
        f"the kernel does not offer {', '.join(missing or refused)} here (perf_event_open: "
        f"{', '.join(sorted(codes))}), as in most virtual machines. The roofline position stands in; for more, count "
        "on bare metal or give the machine a virtual PMU."
    )
    return NoCounters.NOT_SUPPORTED if len(missing) == len(HARDWARE) else NoCounters.NONE, words


def _paranoia() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/perf_event_paranoid").read_text().strip()
    return "unknown"


def derived(counts: Mapping[str, float], call_ns: float, fault_ns: float) -> dict[str, float]:
    """Return what follows from the counts of a call, its time and what touching a fresh page costs here."""
    found: dict[str, float] = {}
    if TASK_CLOCK in counts:
        # Who waits for a core that others have is busy all the same.
        found[THREADS_BUSY] = (counts[TASK_CLOCK] + counts.get(RUN_DELAY, 0.0)) / call_ns
        if PAGE_FAULTS in counts and counts[TASK_CLOCK]:
            found[FAULT_NS] = fault_ns
            found[FAULTS_PCT] = min(100.0, 100 * counts[PAGE_FAULTS] * fault_ns / counts[TASK_CLOCK])
    if counts.get(CYCLES) and INSTRUCTIONS in counts:
        found[IPC] = counts[INSTRUCTIONS] / counts[CYCLES]
    if counts.get(INSTRUCTIONS) and CACHE_MISSES in counts:
        found[MISSES_PER_1000] = 1000 * counts[CACHE_MISSES] / counts[INSTRUCTIONS]
    if CACHE_MISSES in counts:
        found[MISSED_BYTES] = LINE_BYTES * counts[CACHE_MISSES]
        found[MISSED_RATE] = found[MISSED_BYTES] / call_ns * 1e9
    return found


def fresh_page_ns() -> float:
    """Return what touching a fresh page for the first time costs on this machine, beyond writing to it."""
    first, second = list[int](), list[int]()
    for _ in range(PROBES):
        with mmap.mmap(-1, PROBE_BYTES) as region:
            with suppress(OSError):
                region.madvise(mmap.MADV_NOHUGEPAGE)
            start = ctypes.c_char.from_buffer(region)
            for times in (first, second):
                began = time.perf_counter_ns()
                ctypes.memset(ctypes.addressof(start), 1, PROBE_BYTES)
                times.append(time.perf_counter_ns() - began)
            del start
    # The least of each: a preempted pass made the difference negative on a busy machine.
    return max(0, min(first) - min(second)) / (PROBE_BYTES // mmap.PAGESIZE)
