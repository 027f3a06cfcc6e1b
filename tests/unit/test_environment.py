"""Nothing of the parent's environment reaches a child but a short list of names, and never a key."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.cli import doctor
from kernelwright.core.environment import KEPT, child_environment, tool_environment
from kernelwright.hardware import counters

ROOT, HOME = Path("/pkg/src"), Path("/tmp/own")
SECRET = "s3cr3t-value"
PLANTED = [
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "HF_TOKEN",
    "GITHUB_TOKEN",
    "KERNELWRIGHT_HOME",
    "KERNELWRIGHT_JOURNAL_URL",
    "PGPASSWORD",
    "SSH_AUTH_SOCK",
    "HTTPS_PROXY",
]
HIJACKS = [
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "LD_PRELOAD",
    "LD_AUDIT",
    "HOME",
    "TMPDIR",
    "BASH_ENV",
]
OWN = {
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "HOME",
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "PATH",
    "LANG",
}


def plant(names: set[str]) -> dict[str, str]:
    return dict.fromkeys(names, SECRET)


def child(parent: dict[str, str], threads: int = 2) -> dict[str, str]:
    return child_environment(parent, ROOT, HOME, threads)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_key_never_reaches_a_child(name):
    environment = child({"PATH": "/bin", name: SECRET})
    assert name not in environment
    assert SECRET not in "".join(environment.values())


@pytest.mark.parametrize("name", HIJACKS)
def test_parent_cannot_steer_the_child_through_a_variable(name):
    assert SECRET not in child({name: SECRET}).values()


@given(st.sets(st.sampled_from((*KEPT, *PLANTED, *HIJACKS, "path", "PATH_", "X"))).map(plant))
def test_only_the_kept_names_pass(parent):
    environment = child(parent)
    assert environment.keys() <= OWN | set(KEPT)
    assert {name for name, value in environment.items() if value == SECRET} == parent.keys() & set(KEPT)


def test_kept_names_hold_no_place_for_a_secret():
    suspicious = [name for name in KEPT if any(part in name for part in ("KEY", "TOKEN", "SECRET", "PASS"))]
    assert suspicious == []


def test_toolchain_names_pass_unchanged():
    parent = {name: f"value of {name}" for name in KEPT}
    environment = child(parent)
    assert {name: environment[name] for name in KEPT} == parent


def test_python_path_is_exactly_the_package_root():
    for parent in ({}, {"PYTHONPATH": "/evil"}, {"PYTHONPATH": ""}):
        assert child(parent)["PYTHONPATH"] == "/pkg/src"


def test_child_has_its_own_home_a_safe_path_and_its_threads():
    environment = child({}, threads=7)
    assert environment["HOME"] == environment["TMPDIR"] == "/tmp/own"
    assert environment["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    assert environment["OMP_NUM_THREADS"] == "7"
    assert all(isinstance(value, str) for value in environment.values())


FAULTS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(96 << 20)
    ctypes.memset(block, 1, 96 << 20)
    libc.free(block)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


def test_a_child_gets_large_memory_it_gave_back_without_page_faults():
    command = [sys.executable, "-c", FAULTS]
    said = subprocess.run(command, env=child({}), capture_output=True, text=True, check=True).stdout
    first, *later = map(int, said.split())
    assert first > 40, "it was touched"
    assert max(later) < first / 10, said


def test_parent_is_left_alone():
    parent = {"PATH": "/bin", "OPENAI_API_KEY": SECRET}
    child(parent)["PATH"] = "/changed"
    assert parent == {"PATH": "/bin", "OPENAI_API_KEY": SECRET}


def test_a_tool_that_is_asked_something_is_told_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tool = tmp_path / "g++"
    tool.write_text("#!/bin/sh\necho release; env\n")
    tool.chmod(0o755)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = counters._output([str(tool)])
    assert "release" in said and SECRET not in said
    tool.write_text('#!/bin/sh\necho "release $OPENAI_API_KEY."\n')
    assert doctor._compiler("g++").detail == f"release . ({tool})"
    assert set(tool_environment({"OPENAI_API_KEY": SECRET, "CUDA_HOME": "/c"})) == {
        "PATH",
        "LANG",
        "CUDA_HOME",
    }
