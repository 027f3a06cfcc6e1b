"""C++ candidates that try to fool the judge: each earns the status that names what it did.

They are the rmsnorm seed with one dishonest statement at the entry of `kernel_fn`.
"""

from pathlib import Path

import pytest

import kernelwright
from kernelwright.core.candidate import Candidate
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.service import JudgeClient
from tests.cpu.conftest import cpp

SEED = (Path(kernelwright.__file__).parent / "seeds" / "rmsnorm" / "cpp.cpp").read_text()
HEADERS = "\n".join(
    f"#include <{name}>" for name in ("cmath", "csignal", "cstdlib", "fcntl.h", "thread", "unistd.h")
)
ENTRY = 'extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {'
OWN_CASE = "x->shape[0] == 256 && x->shape[1] == 256 && x->dtype == KW_FP32"


def cheat(statement: str, name: str = "kernel_fn") -> Candidate:
    """Return the seed with a statement before everything else; the honest entry may be renamed and called."""
    assert ENTRY in SEED
    source = SEED.replace("#include <cmath>", HEADERS)
    if name != "kernel_fn":
        source = source.replace(ENTRY, ENTRY.replace('extern "C" int kernel_fn', f"static int {name}"))
        return cpp(source + f"\n{ENTRY}\n{statement}\n}}\n")
    return cpp(source.replace(ENTRY, f"{ENTRY}\n    {statement}"))


CHEATS = {
    # Computes while it is checked and warmed up, then returns at once in most timed rounds.
    "skips timed rounds": (
        f"static long calls = 0; if ({OWN_CASE} && ++calls > 600 && calls % 3) return KW_OK;",
        {Status.NOT_WRITTEN},
    ),
    # Says done at once and lets a thread finish the work after the clock has stopped.
    "finishes in a thread": (
        "static kw_tensor a, b, c; a = *x; b = *weight; c = *out; std::thread([eps] { usleep(3000);"
        " honest(&a, &b, eps, &c); }).detach(); return KW_OK;",
        {Status.NOT_WRITTEN, Status.WRONG},
    ),
    "raises a signal without a name": ("if (x) raise(40);", {Status.CRASHED}),
    "kills its parent": ("if (x) { kill(getppid(), SIGKILL); usleep(200000); }", {Status.CRASHED}),
    "kills its own group": ("if (x) kill(0, SIGKILL);", {Status.CRASHED}),
    "prints a verdict and exits": ('if (x) { write(1, "PASS\\n", 5); std::_Exit(0); }', {Status.CRASHED}),
    # Aborts if one of the judge's memory files can be shrunk, which would kill their readers; honest otherwise.
    "shrinks the judge's memory": (
        "for (int fd = 3; fd < 64; ++fd) if (fcntl(fd, F_GET_SEALS) >= 0 && lseek(fd, 0, SEEK_END) > 0"
        " && ftruncate(fd, 0) == 0) std::abort();",
        {Status.ACCEPTED},
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_earns_the_status_that_names_it(name: str, judge: JudgeClient, problem: Problem) -> None:
    statement, earned = CHEATS[name]
    candidate = cheat(statement, "honest" if "honest(" in statement else "kernel_fn")
    profile = Profile.QUICK if earned == {Status.ACCEPTED} else Profile.KEEP
    found = judge.evaluate(problem, candidate, profile)
    assert found.status in earned, found.failure


def test_the_judge_works_on_after_a_candidate_killed_the_nursery(
    judge: JudgeClient, problem: Problem
) -> None:
    statement, _ = CHEATS["kills its parent"]
    assert judge.evaluate(problem, cheat(statement), Profile.QUICK).status is Status.CRASHED
    assert judge.evaluate(problem, cpp(SEED), Profile.QUICK).status is Status.ACCEPTED
