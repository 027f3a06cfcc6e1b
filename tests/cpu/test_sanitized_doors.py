"""The sanitizers of `ship` see the C++ behind the door of a Python file, and no source hides from them."""

from pathlib import Path

import pytest

from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Stage, Status
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.stages import Failure, run_stage
from tests.cheats.specimen import HERE, author_candidate
from tests.cpu.conftest import cpp
from tests.cpu.test_python_backend import GOOD, NATIVE
from tests.cpu.test_stages import HONEST

pytestmark = pytest.mark.usefixtures("one_thread")

DOOR = Path(HERE, "honest_zoo", "rmsnorm_python_door.py").read_text()
ROW = "    for (int64_t row = 0; row < rows; ++row) {\n"
NORM = "static int norm("


def put(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1
    return source.replace(old, new)


def sanitized(room: Judge, problem: Problem, backend: str, source: str) -> tuple[int, Failure | None]:
    candidate = cpp(source) if backend == "cpp" else author_candidate("rmsnorm", backend, source)
    result, failure = run_stage(Stage.SANITIZER, room.bench(problem, candidate))
    assert failure is not None or not result.reason  # neither refused nor skipped
    return result.checked, failure


FAULTS = {
    "writes one element behind its output": (
        "if (row == 0) static_cast<volatile char*>(out->data)[rows * cols * sizeof(T)] = 0;",
        "heap-buffer-overflow",
    ),
    "reads beside memory of its own": (
        "{ char* own = new char[cols + 1]; volatile char seen = own[cols + 1]; (void)seen; delete[] own; }",
        "heap-buffer-overflow",
    ),
    "overflows an integer": (
        "volatile int big = 2147483647; volatile int more = big + 1; (void)more;",
        "signed integer overflow",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_behind_the_door_that_no_guard_page_sees_is_found(
    name: str, room: Judge, problem: Problem
) -> None:
    statement, words = FAULTS[name]
    _, failure = sanitized(room, problem, "python", put(DOOR, ROW, f"{ROW}        {statement}\n"))
    assert failure is not None
    assert (failure.status, words in failure.reason) == (Status.SANITIZER, True), failure.reason


_, _, rest = NATIVE.partition("import torch\n")
NATIVE_NORM, _, _ = rest.partition("\n\ndef kernel_fn")
LONG_ROWS = "    if x.numel() and x.shape[1] > 64:\n        norm(x, weight, eps, out)\n    elif x.numel():\n"
HONEST_DOORS = {
    "one door": DOOR,
    "a word in a comment": put(DOOR, "#include <cmath>", "#include <cmath>  // nothing here is no_sanitize"),
    "an exception of its own": put(
        DOOR, ROW, f"{ROW}        try {{ if (row == 0) throw 1; }} catch (int) {{}}\n"
    ),
    "a door beside Triton": put(
        put(GOOD, "    if x.numel():\n", LONG_ROWS), "\n\ndef kernel_fn", f"{NATIVE_NORM}\n\ndef kernel_fn"
    ),
}


@pytest.mark.parametrize("name", HONEST_DOORS)
def test_an_honest_door_is_looked_into_and_passes(name: str, room: Judge, problem: Problem) -> None:
    checked, failure = sanitized(room, problem, "python", HONEST_DOORS[name])
    assert (failure, checked >= 8) == (None, True)


def test_triton_without_native_code_is_skipped(room: Judge, problem: Problem) -> None:
    candidate = author_candidate("rmsnorm", "python", GOOD)
    result, failure = run_stage(Stage.SANITIZER, room.bench(problem, candidate))
    assert (failure, result.checked, "interpreter" in result.reason) == (None, 0, True)


OPT_OUTS = {
    "in plain words": '__attribute__((no_sanitize("address")))',
    "by its old name": "__attribute__((no_address_safety_analysis))",
    "by a pasted token": '__attribute__((GLUE(no_sanit, ize)("address")))',
    "over two lines": '__attribute__((no_sanit\\\nize("address")))',
}


@pytest.mark.parametrize("backend", ["cpp", "python"])
@pytest.mark.parametrize("name", OPT_OUTS)
def test_a_source_that_asks_not_to_be_watched_is_refused(
    name: str, backend: str, room: Judge, problem: Problem
) -> None:
    source = HONEST if backend == "cpp" else DOOR.replace('SOURCE = """', 'SOURCE = r"""')
    asking = f"\n#define GLUE(a, b) a##b\n{OPT_OUTS[name]} {NORM}"
    _, failure = sanitized(room, problem, backend, put(source, NORM, asking))
    assert failure is not None
    assert (failure.status, "the source asks for 'no_" in failure.reason) == (Status.SANITIZER, True), failure
