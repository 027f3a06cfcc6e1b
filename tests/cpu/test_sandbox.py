"""What a candidate tries to do to the machine, and that nothing comes of it.

One C++ file knows every attack; the input says which one and on what, the output what became of it. Attacks that do no
lasting harm are also run in a nursery without any layer, where they must succeed: a check that always passes is none.
"""

import ctypes
import os
import platform
import random
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kernelwright.core.candidate import Candidate
from kernelwright.core.case import DType
from kernelwright.core.environment import close_off
from kernelwright.core.messages.builder import BuildRequest
from kernelwright.core.messages.judge import Evaluate, JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.service import JudgeClient
from kernelwright.judge.arena import Arena, Slab
from kernelwright.judge.builds import Builds
from kernelwright.judge.children import Lost, Service
from kernelwright.judge.foundry import Foundry
from kernelwright.judge.runners import MOST_ENTRIES, ForkedRunner, bytes_in
from kernelwright.ops import rmsnorm
from kernelwright.worker import landlock, seccomp
from kernelwright.worker.builder import _copy_out
from tests.cpu.conftest import cpp

CASE = rmsnorm.case({"rows": 64, "cols": 256}, DType.FP32)
SEED = (Path(rmsnorm.__file__).parents[1] / "seeds" / "rmsnorm" / "cpp.cpp").read_text()
ENTRY = 'extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {'
BARE = ("mounts", "pids", "user", "landlock", "seccomp")
CONTAINER = ("mounts", "pids")
"""What is left where no namespace is granted, as in most containers."""
ON_DEVICE = ("pids", "mounts", "landlock", "device")
"""What a GPU's driver does not start under."""
REFUSED = 0.0

ATTACKS = r"""
#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <string>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kernelwright.h"

static void* sleeper(void*) { for (;;) pause(); }

static double read_file(const char* path) {
    char byte;
    int fd = open(path, O_RDONLY);
    return fd >= 0 && read(fd, &byte, 1) == 1;
}
static double write_file(const char* path) { return open(path, O_WRONLY | O_CREAT, 0600) >= 0; }
static double connect_to(const char* port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return 0;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(atoi(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
}
static double run_program(const char* path) {
    char* const words[] = {const_cast<char*>("true"), nullptr};
    execve(path, words, nullptr);
    return 0;
}
static double run_own_file(const char*) {
    int fd = open("own.sh", O_WRONLY | O_CREAT, 0600);
    if (fd < 0 || write(fd, "#!/bin/sh\n", 10) != 10 || close(fd) || chmod("own.sh", 0700)) return -1;
    return run_program("own.sh");
}
static double trace(const char* pid) { return ptrace(PTRACE_SEIZE, atoi(pid), 0, 0) == 0; }
static double peek(const char* pid) {
    static char target[16];
    iovec here{target, sizeof target}, there{target, sizeof target};
    ssize_t got = process_vm_readv(atoi(pid), &here, 1, &there, 1, 0);
    return got >= 0 || errno == EFAULT;  // past the permission check
}
static double signal_to(const char* pid) { return kill(atoi(pid), 0) == 0; }
static double kill_all(const char*) { return kill(-1, SIGKILL) == 0; }
static double outlive(const char*) {
    int ends[2];
    pid_t got = 0;
    if (pipe(ends)) return -1;
    pid_t child = fork();
    if (child < 0) return 0;
    if (child == 0) {
        setsid();
        pid_t last = fork();
        if (last == 0) { last = getpid(); if (write(ends[1], &last, sizeof last) < 0) _exit(1); sleeper(nullptr); }
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    return read(ends[0], &got, sizeof got) == sizeof got;
}
static double fork_bomb(const char*) {
    for (int made = 0; made < 3000; ++made) {
        pid_t child = fork();
        if (child < 0) return made;
        if (child == 0) sleeper(nullptr);
    }
    return 3000;
}
static double thread_bomb(const char*) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    for (int made = 0; made < 3000; ++made) {
        pthread_t thread;
        if (pthread_create(&thread, &small, sleeper, nullptr)) return made;
    }
    return 3000;
}
static double memory_bomb(const char*) { for (;;) memset(new char[16 << 20], 1, 1); }
static double touched_bomb(const char*) { for (;;) memset(malloc(16 << 20), 1, 16 << 20); }
static double disk_bomb(const char* deep) {
    static char block[1 << 20];
    int written = 0;
    if (*deep) mkdir("deep", 0700), chdir("deep");
    for (int file = 0; file < 128; ++file) {
        int fd = open(std::to_string(file).c_str(), O_WRONLY | O_CREAT, 0600);
        for (int part = 0; fd >= 0 && part < 16; ++part)
            if (write(fd, block, sizeof block) == sizeof block) ++written; else return written;
        close(fd);
        usleep(20000);
    }
    return written;
}
static double closed_folder(const char*) {
    mkdir("shut", 0);
    usleep(600000);
    return 1;
}
static double descriptors(const char*) {
    int open_ones = 0;
    for (int fd = 0; fd < 1024; ++fd) open_ones += fcntl(fd, F_GETFD) >= 0;
    return open_ones;
}
static double leave_memory(const char*) {
    int id = shmget(0x4b57, 4096, IPC_CREAT | 0600);
    return id >= 0 && shmctl(id, IPC_RMID, nullptr) == 0;
}
static double new_user(const char*) { return syscall(SYS_unshare, 0x10000000) == 0; }
static double survive_parent(const char*) { return prctl(PR_SET_PDEATHSIG, 0) == 0; }
static double wind_up(const char*) {
    itimerval soon = {};
    soon.it_value.tv_sec = 100;
    return setitimer(ITIMER_REAL, &soon, nullptr) == 0;
}
static double other_dialect(const char*) { return syscall(0x40000000 | 39) > 0; }
static double parent(const char*) { return getppid(); }
static double hang(const char*) { for (;;) sleep(1); }

using Attack = double (*)(const char*);
static const Attack attacks[] = {read_file, write_file, connect_to, run_program, run_own_file, trace, peek, signal_to,
    kill_all, outlive, fork_bomb, thread_bomb, memory_bomb, touched_bomb, disk_bomb, closed_folder, descriptors,
    leave_memory, new_user, survive_parent, wind_up, other_dialect, parent, hang};

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor*, double, const kw_tensor* out) {
    const float* said = static_cast<const float*>(x->data);
    std::string text;
    for (int i = 1; said[i] != 0; ++i) text += static_cast<char>(said[i]);
    float* answer = static_cast<float*>(out->data);
    errno = 0;
    answer[0] = attacks[static_cast<int>(said[0])](text.c_str());
    answer[1] = errno;
    return KW_OK;
}
"""
NAMES = [
    name.strip() for name in ATTACKS.split("attacks[] = {")[1].split("}")[0].replace("\n", " ").split(",")
]


@dataclass(frozen=True)
class Yard:
    """Where runners are born, with or without layers."""

    home: Path
    artefact: Path
    nurseries: dict[tuple[str, ...], Service]

    def nursery(self, without: tuple[str, ...] = ()) -> Service:
        if without not in self.nurseries:
            self.nurseries[without] = Service(
                "nursery", "kernelwright.worker.nursery", self.home, 2, *without
            )
        return self.nurseries[without]

    def attack(
        self,
        name: str,
        on: str = "",
        without: tuple[str, ...] = (),
        memory: int | None = None,
        patience: float = 15,
    ) -> tuple[float, int]:
        """Return what a runner says became of an attack, and its errno; nothing of it lives afterwards."""
        said = torch.zeros(64, 256)
        said.view(-1)[: len(on) + 1] = torch.tensor([float(NAMES.index(name)), *map(float, on.encode())])
        with Arena([CASE], [0], random.Random(0)) as arena:
            arena.write_inputs(0, {"x": said, "weight": torch.ones(256)})
            with ForkedRunner(
                self.nursery(without), self.artefact, "cpp", arena, self.home, memory
            ) as runner:
                runner.ready(30)
                runner.run(0, 1, patience)
                answer = arena.view(0, CASE.outputs[0]).view(-1)[:2].tolist()
        return answer[0], int(answer[1])


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    home = Path(tempfile.mkdtemp(prefix="kernelwright-yard-"))
    candidate = cpp(ATTACKS)
    result, artefact = Builds(home / "cache", home, 1).get(candidate, candidate.choices[0].values)
    assert artefact is not None, result.log
    made = Yard(home, artefact, {})
    yield made
    for nursery in made.nurseries.values():
        nursery.close()
    shutil.rmtree(home)


def level(yard: Yard, without: tuple[str, ...] = ()) -> list[str]:
    yard.attack("parent", without=without)
    return yard.nursery(without).sandbox.split("+")


def need(yard: Yard, layer: str, without: tuple[str, ...] = ()) -> None:
    if not any(name.startswith(layer) for name in level(yard, without)):
        pytest.skip(f"this system grants no {layer}")


def tree_of(pid: int) -> set[int]:
    """Return every living process below one, by /proc."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(entry.parent.name)] = int(fields[1])
    found, added = {pid}, {pid}
    while added:
        added = {child for child, parent in parents.items() if parent in added} - found
        found |= added
    return found - {pid}


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def secret() -> Iterator[list[Path]]:
    """Plant a file in the home of this user, beside the repository, and in the folder for temporary files."""
    planted = []
    folders = {Path.home(), Path(__file__).resolve().parents[3], Path(tempfile.gettempdir())}
    for folder in (each for each in sorted(folders) if os.access(each, os.W_OK)):
        path = folder / f".kernelwright-planted-{os.getpid()}"
        path.write_text("sk-planted")
        path.chmod(0o644)
        planted.append(path)
    assert planted
    yield planted
    for path in planted:
        path.unlink()


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("without", [(), CONTAINER], ids=["all layers", "no namespaces"])
def test_no_planted_file_can_be_read(without: tuple[str, ...], yard: Yard, secret: list[Path]) -> None:
    if without:
        need(yard, "landlock", without)
    for path in secret:
        assert yard.attack("read_file", str(path), without)[0] == REFUSED, path
        assert yard.attack("read_file", str(path), BARE)[0] == 1


def test_a_file_of_the_package_can_be_read(yard: Yard) -> None:
    assert yard.attack("read_file", rmsnorm.__file__)[0] == 1


@pytest.mark.parametrize("without", [(), CONTAINER], ids=["all layers", "no namespaces"])
def test_other_processes_cannot_be_read(without: tuple[str, ...], yard: Yard) -> None:
    if without:
        need(yard, "landlock", without)
    for place in ("environ", "mem", "maps", "cmdline"):
        path = f"/proc/{os.getpid()}/{place}"
        assert yard.attack("read_file", path, without)[0] == REFUSED, path
    assert yard.attack("read_file", f"/proc/{os.getpid()}/environ", BARE)[0] == 1


@pytest.mark.parametrize("without", [(), CONTAINER], ids=["all layers", "no namespaces"])
@pytest.mark.parametrize("attack", ["trace", "peek", "signal_to"])
def test_the_judge_cannot_be_traced_peeked_at_or_signalled(
    attack: str, without: tuple[str, ...], yard: Yard
) -> None:
    assert yard.attack(attack, str(os.getpid()), without)[0] == REFUSED
    if attack != "trace":  # a traced judge would stop with its tracer's death
        assert yard.attack(attack, str(os.getpid()), BARE)[0] == 1


def test_a_runner_does_not_know_its_parent(yard: Yard) -> None:
    need(yard, "pids")
    assert yard.attack("parent") == (0, 0)
    assert yard.attack("parent", without=BARE)[0] > 1


@pytest.mark.parametrize("without", [(), CONTAINER], ids=["all layers", "no namespaces"])
def test_killing_everybody_kills_nobody(without: tuple[str, ...], yard: Yard) -> None:
    need(yard, "seccomp", without)  # no control: without a layer it would kill this test
    bystander = subprocess.Popen(["sleep", "60"])
    before = len(tree_of(os.getpid()))
    assert yard.attack("kill_all", without=without)[0] == REFUSED
    assert (bystander.poll(), len(tree_of(os.getpid()))) == (None, before)
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize("without", [(), CONTAINER], ids=["all layers", "no namespaces"])
def test_nothing_can_be_written_outside_its_folder(
    without: tuple[str, ...], yard: Yard, tmp_path: Path
) -> None:
    if without:
        need(yard, "landlock", without)
    tmp_path.chmod(0o777)
    with tempfile.TemporaryDirectory(dir=yard.home, prefix="runner-") as other:
        for folder in (str(tmp_path), str(yard.home), str(yard.artefact.parent), other, "/dev/shm", "/etc"):
            target = Path(folder, "left-behind")
            before = target.exists()
            yard.attack("write_file", str(target), without)
            assert target.exists() == before, folder
        assert yard.attack("write_file", f"{other}/left-behind", BARE)[0] == 1
        assert Path(other, "left-behind").exists()


def test_its_own_folder_can_be_written(yard: Yard) -> None:
    assert yard.attack("write_file", "note")[0] == 1


@pytest.mark.parametrize("without", [(), CONTAINER], ids=["all layers", "no namespaces"])
def test_no_port_of_the_machine_can_be_reached(without: tuple[str, ...], yard: Yard, port: int) -> None:
    assert yard.attack("connect_to", str(port), without)[0] == REFUSED
    assert yard.attack("connect_to", str(port), BARE)[0] == 1


@pytest.mark.parametrize("attack", ["run_program", "run_own_file"])
def test_no_program_can_be_started(attack: str, yard: Yard) -> None:
    need(yard, "seccomp")
    assert yard.attack(attack, shutil.which("true") or "/bin/true")[0] == REFUSED
    with pytest.raises(Lost):  # it became another program, which answers nothing
        yard.attack(attack, shutil.which("true") or "/bin/true", BARE)


@pytest.mark.parametrize("attack", ["leave_memory", "survive_parent"])
def test_nothing_is_left_for_the_next_runner(attack: str, yard: Yard) -> None:
    need(yard, "seccomp")
    assert yard.attack(attack)[0] == REFUSED
    assert yard.attack(attack, without=BARE)[0] == 1


def test_no_timer_can_run_out_while_a_runner_stands_still(yard: Yard) -> None:
    need(yard, "seccomp")
    assert yard.attack("wind_up")[0] == REFUSED
    assert yard.attack("wind_up", without=BARE)[0] == 1


def test_no_new_namespace_gives_rights_back(yard: Yard) -> None:
    need(yard, "seccomp")
    assert yard.attack("new_user")[0] == REFUSED


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has a second dialect")
def test_a_foreign_dialect_of_system_calls_is_death(yard: Yard) -> None:
    need(yard, "seccomp")
    with pytest.raises(Lost, match="SIGSYS"):
        yard.attack("other_dialect")


def test_a_runner_holds_five_descriptors(yard: Yard) -> None:
    # Null input, log twice, control socket, the pipe of drawn calls. The slabs are mapped and closed.
    assert yard.attack("descriptors")[0] == 5


@pytest.mark.parametrize(
    "without",
    [(), ("seccomp",), ("seccomp", "pids"), BARE],
    ids=["all layers", "no seccomp", "no seccomp, no pids", "none"],
)
def test_nothing_outlives_a_runner(without: tuple[str, ...], yard: Yard) -> None:
    level(yard, without)
    before = len(tree_of(os.getpid()))
    made, _ = yard.attack("outlive", without=without)
    assert made == ("seccomp" in without)
    assert within(1, lambda: len(tree_of(os.getpid())) <= before)


@pytest.mark.parametrize("without", [(), ("seccomp",)], ids=["all layers", "no seccomp"])
def test_a_fork_bomb_stops_early(without: tuple[str, ...], yard: Yard) -> None:
    need(yard, "user", without)
    before = len(tree_of(os.getpid()))
    made, _ = yard.attack("fork_bomb", without=without)
    assert made <= (0 if not without else 256 + 4 * (os.cpu_count() or 1))
    assert within(1, lambda: len(tree_of(os.getpid())) <= before)


def test_a_thread_bomb_stops_early(yard: Yard) -> None:
    need(yard, "user")
    made, _ = yard.attack("thread_bomb")
    assert 64 < made <= 256 + 4 * (os.cpu_count() or 1)


@pytest.mark.parametrize("attack", ["memory_bomb", "touched_bomb"])
def test_a_memory_bomb_is_out_of_memory(attack: str, yard: Yard) -> None:
    with pytest.raises(Lost) as lost:
        yard.attack(attack, memory=400 << 20)
    assert lost.value.status is Status.OUT_OF_MEMORY, lost.value.reason


def test_a_disk_bomb_fills_its_own_folder_only(yard: Yard) -> None:
    need(yard, "mounts")
    written, _ = yard.attack("disk_bomb")
    assert 200 < written <= 256


@pytest.mark.parametrize("deep", ["", "deep"])
def test_a_disk_bomb_is_ended_where_its_folder_lies_on_the_disk(deep: str, yard: Yard) -> None:
    with pytest.raises(Lost) as lost:
        yard.attack("disk_bomb", deep, without=BARE)
    assert lost.value.status is Status.OUT_OF_MEMORY, lost.value.reason
    found = re.search(r"held (\d+) MiB", lost.value.reason)
    assert found, lost.value.reason
    assert 512 <= int(found[1]) < 2048, "two gigabytes are what it wants"
    assert not list(yard.home.glob("runner-*")), "what it wrote is gone"


@pytest.mark.skipif(os.geteuid() == 0, reason="a superuser reads every folder")
def test_who_closes_its_folder_is_ended(yard: Yard) -> None:
    with pytest.raises(Lost, match="could not be read"):
        yard.attack("closed_folder", without=BARE)


def test_a_folder_of_too_many_files_is_not_counted_to_its_end(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a").write_bytes(b"x" * 100_000)
    (inside / "elsewhere").symlink_to("/usr")
    assert 100_000 <= (bytes_in(str(tmp_path)) or 0) < 200_000
    for number in range(MOST_ENTRIES):
        (inside / str(number)).touch()
    assert bytes_in(str(tmp_path)) is None


def test_the_recorded_level_names_the_layers_in_force(yard: Yard) -> None:
    with Arena([CASE], [0], random.Random(0)) as arena:
        arena.write_inputs(0, {"x": torch.zeros(64, 256), "weight": torch.ones(256)})
        with ForkedRunner(yard.nursery(), yard.artefact, "cpp", arena, yard.home) as runner:
            runner.ready(30)
            names = yard.nursery().sandbox.split("+")
            place = Path("/proc") / str(runner.pid)
            status = dict(
                line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line
            )
            limits = (place / "limits").read_text()
            spaces = {}
            if os.geteuid() == 0:
                for kind in ("mnt", "net", "ipc", "pid"):
                    spaces[kind] = (place / "ns" / kind).readlink() != Path(
                        f"/proc/self/ns/{kind}"
                    ).readlink()
    assert (status["NoNewPrivs"], int(status["CapEff"], 16)) == ("1", 0)
    assert ("seccomp" in names) == (status["Seccomp"] == "2")
    assert ("pids" in names) == (len(status["NSpid"].split()) > 1)
    if spaces:
        assert ("user" in names) == (status["Uid"].split()[0] != "0")
        assert [spaces[kind] for kind in ("mnt", "net", "ipc", "pid")] == [
            name in names for name in ("mounts", "network", "ipc", "pids")
        ]
    version = landlock.version()
    assert [name for name in names if name.startswith("landlock")] == (
        [f"landlock-{version}"] if version else []
    )
    assert "Max core file size        0 " in limits
    assert "Max open files            256 " in limits


def test_a_plain_container_still_gets_what_needs_no_right(yard: Yard) -> None:
    names = level(yard, CONTAINER)
    assert ("seccomp" in names, "mounts" in names, names[-1]) == (True, False, "limits")


def test_the_filter_knows_the_numbers_of_this_system() -> None:
    headers = {
        0: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        1: Path("/usr/include/asm-generic/unistd.h"),
    }
    tables = (seccomp.FORBIDDEN, seccomp.ADMINISTRATION, seccomp.ALONE, seccomp.CHECKED, seccomp.SECCOMP)
    for column, header in headers.items():
        if not header.exists():
            pytest.skip(f"{header} is not installed")
        words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_")]
        known = {word[1].removeprefix("__NR_"): word[2] for word in words if len(word) > 2}
        for table in tables:
            for name, numbers in table.items():
                if name in known:
                    assert str(numbers[column]) == known[name], name


ALLOWED, REFUSING, DEADLY = seccomp.ALLOW, seccomp.REFUSE | 1, seccomp.KILL


def filtered(
    rules: seccomp.Rules, machine: str, call: str | int, argument: int = 0, architecture: int = 0
) -> int:
    """Return what the filter answers to a system call, as the kernel would run it."""
    column, own = seccomp.ARCHITECTURES[machine]
    tables = seccomp.FORBIDDEN | seccomp.ADMINISTRATION | seccomp.ALONE | seccomp.CHECKED
    number = tables[call][column] if isinstance(call, str) else call
    fields = {0: number, 4: architecture or own, 16: argument & 0xFFFF_FFFF}
    steps, place, loaded = seccomp.program(rules, machine), 0, 0
    while True:
        code, yes, no, value = steps[place]
        place += 1
        if code == seccomp.LOAD:
            loaded = fields[value] or 0
        elif code == seccomp.RETURN:
            return value
        else:
            tests = {
                seccomp.EQUAL: loaded == value,
                seccomp.AT_LEAST: loaded >= value,
                seccomp.ANY_BIT: bool(loaded & value),
            }
            place += yes if tests[code] else no


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_the_filter_answers_alike_on_every_instruction_set(machine: str) -> None:
    alone, builds = seccomp.Rules(), seccomp.Rules(starts_processes=True)
    gpu = seccomp.Rules(administers=True, starts_processes=True, local_sockets=True)
    thread, process, space = 0x0035_0F00 | 0x0001_0000, 17, 0x1000_0000 | 17
    asked = {
        "ptrace": (REFUSING, REFUSING, REFUSING),
        "mount": (REFUSING, REFUSING, ALLOWED),
        "execve": (REFUSING, ALLOWED, ALLOWED),
        "clone3": (seccomp.REFUSE | 38,) * 3,
        ("clone", thread): (ALLOWED,) * 3,
        ("clone", process): (REFUSING, ALLOWED, ALLOWED),
        ("clone", space): (REFUSING,) * 3,
        ("socket", 1): (REFUSING, REFUSING, ALLOWED),
        ("socket", 2): (REFUSING,) * 3,
        ("prctl", 1): (REFUSING, ALLOWED, ALLOWED),
        ("prctl", 15): (ALLOWED,) * 3,
        ("rt_sigaction", 18): (REFUSING, ALLOWED, ALLOWED),
        ("rt_sigaction", 11): (ALLOWED,) * 3,
        ("kill", 1234): (ALLOWED,) * 3,
    }
    for call, wanted in asked.items():
        name, argument = call if isinstance(call, tuple) else (call, 0)
        found = tuple(filtered(rules, machine, name, argument) for rules in (alone, builds, gpu))
        assert found == wanted, call
    watched = seccomp.Rules(own_pid=77)
    targets = {0: ALLOWED, 77: ALLOWED, -77: ALLOWED, -1: REFUSING, 78: REFUSING}
    assert {pid: filtered(watched, machine, "kill", pid) for pid in targets} == targets
    assert filtered(alone, machine, 0, architecture=0x4000_0003) == DEADLY
    assert filtered(alone, machine, 0) == ALLOWED


def evaluated(judge: JudgeClient, problem: Problem, statement: str) -> tuple[Status, str]:
    source = SEED.replace(ENTRY, f"{ENTRY}\n    {statement}").replace(
        "#include <cmath>", "#include <cmath>\n#include <cstdlib>\n#include <fcntl.h>\n#include <unistd.h>"
    )
    found = judge.evaluate(problem, cpp(source), Profile.QUICK)
    return found.status, found.failure.reason if found.failure else ""


def test_an_unlimited_allocation_is_out_of_memory_in_the_verdict(
    judge: JudgeClient, problem: Problem
) -> None:
    status, reason = evaluated(
        judge, problem, "static char* volatile kept; for (;;) kept = new char[1ul << 30];"
    )
    assert (status, "want of memory" in reason) == (Status.OUT_OF_MEMORY, True)


@pytest.fixture
def lenient(judge: JudgeClient) -> Iterator[JudgeClient]:
    """Return a judge whose guards are off: what a kernel may ask of the C library is decided by the sandbox alone."""
    client = JudgeClient(judge.settings.model_copy(update={"guards_off": True}), lambda _: None)
    yield client
    client.close()


def test_a_spy_through_the_judge_finds_nothing(
    lenient: JudgeClient, problem: Problem, secret: list[Path]
) -> None:
    # It aborts if one of the files can be opened; refused everywhere, it is an honest kernel.
    judge_pid = lenient.child.process.pid
    places = [*map(str, secret), f"/proc/{judge_pid}/environ", f"/proc/{judge_pid}/mem", "/etc/shadow"]
    looks = " ".join(f'if (open("{place}", O_RDONLY) >= 0) std::abort();' for place in places)
    assert evaluated(lenient, problem, looks) == (Status.ACCEPTED, "")
    own = f'if (open("{rmsnorm.__file__}", O_RDONLY) >= 0) std::abort();'
    assert evaluated(lenient, problem, own)[0] is Status.CRASHED


@pytest.mark.parametrize("closed", [True, False], ids=["closed off", "as it was"])
def test_a_closed_off_process_keeps_its_memory_files_to_itself(closed: bool) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            become_plain()
            if closed:
                close_off(die_with_parent=False)
            else:
                ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # changing users closes a process too
            os.close(Slab("mine", 4096).read_only_descriptor())
            os.write(writing, b"ready")
            time.sleep(60)
        finally:
            os._exit(1)
    assert os.read(reading, 5) == b"ready"
    spy = os.fork()
    if not spy:
        try:
            become_plain()
            Path(f"/proc/{child}/environ").read_bytes()
            os._exit(0)
        except PermissionError:
            os._exit(13)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(spy, 0)[1])
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert code == (13 if closed else 0)


def become_plain() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def test_the_verdict_names_the_layers(judge: JudgeClient, problem: Problem, yard: Yard) -> None:
    found = judge.evaluate(problem, cpp(SEED), Profile.QUICK)
    assert found.environment["sandbox"].split("+") == level(yard)


def test_a_build_reads_its_toolchain_only(tmp_path: Path, secret: list[Path]) -> None:
    source = f'#include "{secret[0]}"\n' + SEED
    tmp_path.chmod(0o755)
    request = BuildRequest(backend="cpp", source=source, folder=str(tmp_path))
    foundry = Foundry(tmp_path)
    (result,) = foundry.build(request).results
    assert (result.status, "planted-" in result.log, "sk-planted" in result.log) == (
        Status.BUILD_FAILED,
        True,
        False,
    )
    asm = f'asm(".section .rodata\\n.incbin \\"{secret[0]}\\"");\n'
    (other := tmp_path / "other").mkdir()
    (result,) = foundry.build(BuildRequest(backend="cpp", source=asm + SEED, folder=str(other))).results
    foundry.close()
    assert result.status is Status.BUILD_FAILED


def test_only_plain_files_leave_a_build(tmp_path: Path) -> None:
    box, out = tmp_path / "box", tmp_path / "out"
    box.mkdir()
    out.mkdir()
    (box / "kernel.so").write_bytes(b"artefact")
    (box / "link.so").symlink_to("/etc/passwd")
    (tmp_path / "theirs").write_bytes(b"theirs")
    os.link(tmp_path / "theirs", box / "hard.so")
    os.mkfifo(box / "pipe.so")
    (box / "folder.so").mkdir()
    descriptor = os.open(box, os.O_RDONLY)
    _copy_out(descriptor, out)
    os.close(descriptor)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {"kernel.so": b"artefact"}
    assert stat.S_ISREG((out / "kernel.so").lstat().st_mode)


def judged_until_killed(candidate: Candidate, problem: Problem, home: Path, sign: str) -> bool:
    """SIGKILL a judge once a process with `sign` in its status works for it; tell whether all are gone."""
    settings = JudgeSettings(
        threads=2,
        max_pairs=16,
        alpha=0.001,
        hidden_shapes=1,
        guards_off=True,  # no kernel names its process; this one does, to be found
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
    )
    client = JudgeClient(settings, lambda _: None)
    pid = client.child.process.pid
    client.child.send(Evaluate(problem=problem, candidate=candidate, profile=Profile.QUICK))

    def at_work() -> set[int]:
        workers = [one for one in tree_of(pid) if "kernelwright.worker" in _file(one, "cmdline")]
        return {one for worker in workers for one in tree_of(worker) if sign in _file(one, "status")}

    try:
        assert within(30, lambda: bool(at_work())), "nothing was started"
        below, working = tree_of(pid), at_work()
        client.child.process.kill()
        # The reference may be in the middle of importing torch and notices only then that nobody asks any more.
        return within(1, lambda: not any(_alive(one) for one in working)) and within(
            8, lambda: not any(_alive(one) for one in below)
        )
    finally:
        client.close()


def _alive(pid: int) -> bool:
    return _file(pid, "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"])


def _file(pid: int, name: str) -> str:
    """Return a file of a process, empty if it is gone or keeps it to itself."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def test_everything_dies_with_a_killed_judge(problem: Problem, tmp_path: Path) -> None:
    loop = 'prctl(PR_SET_NAME, "endless"); for (volatile long i = 0; i >= 0;) i = 1;'
    endless = cpp("#include <sys/prctl.h>\n" + SEED.replace(ENTRY, f"{ENTRY}\n    {loop}"))
    assert judged_until_killed(endless, problem, tmp_path / "runner", "Name:\tendless")


def test_compilers_die_with_a_killed_judge(problem: Problem, tmp_path: Path) -> None:
    slow = "constexpr long f() { long s = 0; for (long i = 0; i < 100000000; ++i) s += i; return s; }\n"
    heavy = cpp(slow + "static_assert(f() > 0);\n" + SEED)
    assert judged_until_killed(heavy, problem, tmp_path / "builder", "Name:\tcc1plus")


def test_a_hanging_runner_leaves_nothing(yard: Yard) -> None:
    level(yard)
    before, folders = len(tree_of(os.getpid())), sorted(yard.home.iterdir())
    with pytest.raises(Lost) as lost:
        yard.attack("hang", patience=0.3)
    assert lost.value.status is Status.TIMED_OUT
    assert within(1, lambda: len(tree_of(os.getpid())) <= before)
    assert sorted(yard.home.iterdir()) == folders
    assert str(yard.home) not in Path("/proc/self/mountinfo").read_text()


def test_a_runner_on_a_gpu_finds_its_own_files_and_no_planted_one(yard: Yard, secret: list[Path]) -> None:
    need(yard, "mounts")
    if os.geteuid():
        pytest.skip("only the superuser has mounts of its own without a user of its own")
    assert "files" in level(yard, ON_DEVICE)
    shared = Path("/dev/shm") / f"kernelwright-{os.getpid()}"
    shared.write_text("planted")
    try:
        for path in (*secret, shared):
            assert yard.attack("read_file", str(path), ON_DEVICE)[0] == REFUSED, path
            assert yard.attack("read_file", str(path), BARE)[0] == 1
    finally:
        shared.unlink()
    assert yard.attack("read_file", rmsnorm.__file__, ON_DEVICE)[0] == 1
    assert yard.attack("write_file", "note", ON_DEVICE)[0] == 1


def test_what_a_compiling_runner_starts_stands_still_and_ends_with_it(yard: Yard) -> None:
    said = torch.zeros(64, 256)
    said.view(-1)[0] = float(NAMES.index("outlive"))
    nursery = yard.nursery(ON_DEVICE)
    with Arena([CASE], [0], random.Random(0)) as arena:
        arena.write_inputs(0, {"x": said, "weight": torch.ones(256)})
        with ForkedRunner(nursery, yard.artefact, "cpp", arena, yard.home) as runner:
            runner.ready(60)
            runner.run(0, 1, 15)
            assert arena.view(0, CASE.outputs[0]).view(-1)[0].item() == 1
            deadline = time.monotonic() + 5
            while set(group := states_of_group(runner.pid)) != {"T"} and time.monotonic() < deadline:
                time.sleep(0.01)
        assert (len(group), set(group)) == (2, {"T"})
        assert states_of_group(runner.pid) == []


def states_of_group(group: int) -> list[str]:
    """Return the state of every process of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(fields[0])
    return found
