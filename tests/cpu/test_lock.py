"""No two processes time on one device, and nobody who died keeps it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import DeviceBusy, KernelwrightError, NotWritable
from kernelwright.hardware import lock
from kernelwright.hardware.lock import DeviceLock, lock_name, read_holder

CPU = Device(kind=DeviceKind.CPU, name="a processor", arch="x86_64", units=2, memory_bytes=1 << 30)
GPU = Device(kind=DeviceKind.CUDA, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=1 << 37)
HOLD = """
import sys, time
from pathlib import Path
from kernelwright.core.device import Device
from kernelwright.hardware.lock import DeviceLock
with DeviceLock(Device.model_validate_json(sys.argv[1]), Path(sys.argv[2]), uuid="u0"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def other_holder(device: Device, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a process that holds the lock until it is told to let go or killed."""
    command = [sys.executable, "-c", HOLD, device.model_dump_json(), str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_holder_is_refused_and_told_who_has_the_device(tmp_path: Path) -> None:
    with other_holder(GPU, tmp_path) as process:
        with pytest.raises(DeviceBusy) as refused, DeviceLock(GPU, tmp_path, wait_s=0, uuid="u0"):
            pass
        assert isinstance(refused.value, KernelwrightError)
        assert f"cuda:0 (NVIDIA H200) is in use by process {process.pid} (-c " in str(refused.value)


def test_a_second_holder_waits_and_is_told_for_whom(tmp_path: Path) -> None:
    said: list[str] = []
    with other_holder(CPU, tmp_path) as process:

        def let_go(text: str) -> None:
            said.append(text)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

        began = time.monotonic()
        with DeviceLock(CPU, tmp_path, wait_s=60, show=let_go):
            assert time.monotonic() - began < 30
    assert len(said) == 1 and f"in use by process {process.pid}" in said[0]


def test_waiting_ends_with_the_time_allowed(tmp_path: Path) -> None:
    with other_holder(CPU, tmp_path):
        began = time.monotonic()
        with pytest.raises(DeviceBusy, match="waited 0 s"), DeviceLock(CPU, tmp_path, wait_s=0.3):
            pass
        assert 0.3 <= time.monotonic() - began < 15


def test_a_killed_holder_frees_the_device_at_once(tmp_path: Path) -> None:
    with other_holder(GPU, tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        with DeviceLock(GPU, tmp_path, wait_s=10, uuid="u0") as held:
            assert time.monotonic() - began < 10
            holder = read_holder(held.path)
            assert holder is not None and holder.pid == os.getpid(), (
                "the dead holder's name was left in the file"
            )


def test_a_child_forked_by_the_holder_does_not_keep_the_device(tmp_path: Path) -> None:
    held = DeviceLock(CPU, tmp_path)
    reader, writer = os.pipe()
    with held:
        child = os.fork()
        if child == 0:  # lives on after the holder let go
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.close(reader)
        with pytest.raises(DeviceBusy), DeviceLock(CPU, tmp_path, wait_s=0):
            pass
    with DeviceLock(CPU, tmp_path, wait_s=0):
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child was to be alive"
    os.close(writer)
    os.waitpid(child, 0)


def test_a_child_that_has_not_run_yet_does_not_keep_the_device(tmp_path: Path) -> None:
    """A child stopped between its fork and its first line still has the file open."""
    with DeviceLock(CPU, tmp_path) as held:
        copy = os.dup(held._descriptor or -1)
    try:
        with DeviceLock(CPU, tmp_path, wait_s=0) as again:
            holder = read_holder(again.path)
            assert holder is not None and holder.pid == os.getpid()
    finally:
        os.close(copy)


def test_those_who_do_not_time_share_the_device_and_none_is_there_while_somebody_times(
    tmp_path: Path,
) -> None:
    first, second = (DeviceLock(CPU, tmp_path, wait_s=0) for _ in range(2))
    with first.shared(), second.shared(), pytest.raises(DeviceBusy):
        DeviceLock(CPU, tmp_path, wait_s=0).__enter__()
    with other_holder(CPU, tmp_path), pytest.raises(DeviceBusy), first.shared():
        pass


def test_who_waits_to_time_is_not_passed_by_those_who_share(tmp_path: Path) -> None:
    late = DeviceLock(CPU, tmp_path, wait_s=0)
    told, held = threading.Event(), threading.Event()

    def time_there() -> None:
        with DeviceLock(CPU, tmp_path, wait_s=20, show=lambda _: told.set()):
            held.set()

    waiting = threading.Thread(target=time_there)
    with DeviceLock(CPU, tmp_path).shared():
        waiting.start()
        assert told.wait(20)
        with pytest.raises(DeviceBusy), late.shared():
            pass
    waiting.join()
    assert held.is_set()
    with late.shared():
        pass


def test_different_devices_do_not_block_each_other(tmp_path: Path) -> None:
    with (
        DeviceLock(CPU, tmp_path, wait_s=0),
        DeviceLock(GPU, tmp_path, wait_s=0, uuid="u0"),
        DeviceLock(GPU.model_copy(update={"index": 1}), tmp_path, wait_s=0, uuid="u1"),
    ):
        assert len(list(tmp_path.glob("*.lock"))) == 3


def test_one_gpu_has_one_lock_whatever_number_it_is_given(tmp_path: Path) -> None:
    renumbered = GPU.model_copy(update={"index": 3})
    with DeviceLock(GPU, tmp_path, wait_s=0, uuid="u0"), pytest.raises(DeviceBusy):
        DeviceLock(renumbered, tmp_path, wait_s=0, uuid="u0").__enter__()
    assert lock_name(GPU, "") != lock_name(renumbered, ""), "without a UUID the number must do"


def test_a_name_never_leads_out_of_the_folder() -> None:
    assert lock_name(GPU, "../../etc/passwd") == "cuda-______etc_passwd.lock"


def test_a_lock_can_be_taken_again_after_it_was_given_back(tmp_path: Path) -> None:
    held = DeviceLock(CPU, tmp_path, wait_s=0)
    for _ in range(2):
        with held:
            holder = read_holder(held.path)
            assert holder is not None and holder.pid == os.getpid()
        assert read_holder(held.path) is None


def test_a_holder_that_does_not_say_who_it_is_is_still_respected(tmp_path: Path) -> None:
    with other_holder(CPU, tmp_path):
        (tmp_path / "cpu.lock").write_text(json.dumps({"pid": "?"})[:5])
        with pytest.raises(DeviceBusy, match="does not say who"), DeviceLock(CPU, tmp_path, wait_s=0):
            pass


def test_a_full_disk_leaves_the_holder_unnamed_and_the_lock_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    one = DeviceLock(CPU, tmp_path)
    for _ in range(2):
        with (
            one,
            pytest.raises(DeviceBusy, match="does not say who it is"),
            DeviceLock(CPU, tmp_path, wait_s=0),
        ):
            pass


def test_only_one_and_the_same_holder_is_waited_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [(number, str(number)) for number in range(1, 6) for _ in range(10)]

    def next_holder(_path: Path) -> object:
        return others.pop(0) if len(others) > 1 else others[0]

    with DeviceLock(CPU, tmp_path):
        monkeypatch.setattr(lock, "read_holder", next_holder)
        began = time.monotonic()
        with pytest.raises(DeviceBusy), DeviceLock(CPU, tmp_path, wait_s=0.3):
            pass
        monkeypatch.undo()
    assert len(others) == 1 and time.monotonic() - began > 0.3 + 30 * lock.POLL_SECONDS


def test_a_driver_that_did_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["", "u1", "u2"]
    monkeypatch.setattr(lock, "uuid_of", lambda _: answers.pop(0))
    one = DeviceLock(GPU, tmp_path)
    assert [one.path.name for _ in range(3)] == ["cuda-0.lock", "cuda-u1.lock", "cuda-u1.lock"]


def test_the_folder_is_the_users_own_and_the_same_in_every_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = lock.runtime_folder()
    assert folder.stat().st_uid == os.getuid() and folder.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/var/tmp")
    assert lock.runtime_folder() == folder


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="file"), DeviceLock(CPU, tmp_path / "file" / "locks"):
        pass


GREEDY = """
import sys, time
from pathlib import Path
from kernelwright.core.device import Device
from kernelwright.hardware.lock import DeviceLock
while True:
    with DeviceLock(Device.model_validate_json(sys.argv[1]), Path(sys.argv[2])):
        print("held", flush=True)
        time.sleep(0.2)
"""


def test_who_waits_comes_before_who_wants_it_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GREEDY, CPU.model_dump_json(), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    turns = 0
    try:
        for _ in range(5):
            assert process.stdout.readline() == "held\n"
            with DeviceLock(CPU, tmp_path, wait_s=20):
                pass
            turns += 1
        process.kill()
        rest = process.stdout.read().count("held")
    finally:
        process.kill()
        process.communicate()
    # It held the device when we began to wait, and at most once more before we got it.
    assert turns == 5
    assert rest <= 2 * turns
