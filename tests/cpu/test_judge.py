"""The judge's verdicts on candidates that are wrong in one way each."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernelwright
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Evaluation, Outcome, Profile, Stage, Status
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from tests.cpu.conftest import cpp

SEED = (Path(kernelwright.__file__).parent / "seeds" / "rmsnorm" / "cpp.cpp").read_text()


def changed(old: str, new: str) -> Candidate:
    """Return the seed with one change; the text must be there."""
    assert old in SEED
    return cpp(SEED.replace(old, new))


ENTRY = 'extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {'
FIRST_LINE = ENTRY + "\n    if (x->dtype != out->dtype"

TAIL = "for (; i < cols; ++i)\n            target"


def at_entry(statement: str) -> Candidate:
    """Return the seed with a statement put before everything else."""
    source = SEED.replace("#include <cmath>", "#include <cmath>\n#include <cstdlib>")
    assert FIRST_LINE in source
    return cpp(source.replace(FIRST_LINE, FIRST_LINE.replace("{\n", "{\n    " + statement + "\n")))


WRONG_ONES = {
    "forgets eps": (changed(" + eps)", ")"), Status.WRONG),
    "drops the weight": (changed(" * scale * load(w + i)", " * scale"), Status.WRONG),
    "skips the last column": (changed(TAIL, TAIL.replace("i < cols", "i + 1 < cols")), Status.NOT_WRITTEN),
    "writes one too many": (changed(TAIL, TAIL.replace("i < cols", "i <= cols")), Status.OUT_OF_BOUNDS),
    "writes its input": (at_entry("if (x->shape[0]) std::memset(x->data, 0, 4);"), Status.OUT_OF_BOUNDS),
    "writes nothing": (at_entry("if (x) return KW_OK;"), Status.NOT_WRITTEN),
    "declines everything": (at_entry("if (x) return KW_UNSUPPORTED_SHAPE;"), Status.UNSUPPORTED),
    "exits with code 0": (at_entry("if (x) std::_Exit(0);"), Status.REFUSED),
    "aborts": (at_entry("if (x) std::abort();"), Status.CRASHED),
    "does not compile": (cpp(SEED + "\nint broken = ;\n"), Status.BUILD_FAILED),
    "has no kernel": (cpp("int main() { return 0; }"), Status.REFUSED),
}


def verdict(
    judge: JudgeClient, problem: Problem, candidate: Candidate, profile: Profile = Profile.KEEP
) -> Evaluation:
    return judge.evaluate(problem, candidate, profile)


@pytest.mark.parametrize("name", WRONG_ONES)
def test_a_wrong_candidate_earns_its_status(name: str, judge: JudgeClient, problem: Problem) -> None:
    candidate, status = WRONG_ONES[name]
    found = verdict(judge, problem, candidate)
    assert (found.status, found.timing) == (status, None), found.failure
    assert found.failure is not None
    assert found.failure.reason


def test_a_compiler_error_names_the_candidates_own_line(judge: JudgeClient, problem: Problem) -> None:
    lines = SEED.count("\n") + 2
    found = verdict(judge, problem, cpp(SEED + "\nint broken = ;\n"))
    assert found.failure is not None
    assert f"kernel.cpp:{lines}:" in found.failure.reason


def test_an_answer_that_changes_between_calls_is_not_deterministic(
    judge: JudgeClient, problem: Problem
) -> None:
    # One element moves by one rounding on every other call: inside the error budget, but other bits.
    nudge = "static int calls = 0; float* y = static_cast<float*>(out->data);"
    nudge += " if (x->shape[0] == 256 && x->shape[1] == 256 && ++calls % 2 && std::isfinite(y[0]))"
    nudge += " y[0] = std::nextafter(y[0], 0.0f);"
    call = "rows_norm<float>(x, weight, static_cast<float>(eps), out);"
    assert call in SEED
    source = SEED.replace(call, f"{{ {call} {nudge} }}")
    found = verdict(judge, problem, cpp(source))
    assert found.status is Status.NOT_DETERMINISTIC, found.failure


def test_an_author_may_not_pass_off_the_framework_as_a_kernel(judge: JudgeClient, problem: Problem) -> None:
    baseline = seed("rmsnorm", "eager", Origin.BASELINE)
    assert baseline is not None
    found = verdict(judge, problem, baseline.model_copy(update={"origin": Origin.AUTHOR}))
    assert (found.status, found.stages[-1].stage) == (Status.DELEGATION, Stage.GUARDS)


@pytest.fixture(scope="module")
def unguarded(judge: JudgeClient) -> Iterator[JudgeClient]:
    """Return a judge that lets candidates use what is not on the list: what stands behind it is tried."""
    client = JudgeClient(judge.settings.model_copy(update={"guards_off": True}), lambda _: None)
    yield client
    client.close()


def test_a_candidate_that_exits_with_code_0_has_crashed(unguarded: JudgeClient, problem: Problem) -> None:
    found = verdict(unguarded, problem, WRONG_ONES["exits with code 0"][0], Profile.QUICK)
    assert (found.status, found.timing) == (Status.CRASHED, None), found.failure


def test_a_candidate_sees_no_key_of_the_engine(unguarded: JudgeClient, problem: Problem) -> None:
    # Crashes if it finds the planted variable, passes the quick profile if it does not.
    spy = at_entry('if (std::getenv("OPENAI_API_KEY")) std::abort();')
    found = verdict(unguarded, problem, spy, Profile.QUICK)
    assert (found.status, "OPENAI_API_KEY" in os.environ) == (Status.ACCEPTED, True)


def test_the_seed_is_accepted_timed_and_not_faster_than_itself(judge: JudgeClient, problem: Problem) -> None:
    candidate = cpp(SEED)
    found = verdict(judge, problem, candidate)
    assert found.status is Status.ACCEPTED
    assert found.timing is not None
    assert found.timing.cases[0].median_us > 0
    assert len(found.artefact_hashes) == 1
    began = time.monotonic()
    again = judge.compare(problem, candidate, candidate)
    assert again.outcome is not Outcome.FASTER
    assert 0 < again.seconds <= time.monotonic() - began


def test_a_kernel_that_does_the_work_twice_is_not_kept(judge: JudgeClient, problem: Problem) -> None:
    call = "rows_norm<float>(x, weight, static_cast<float>(eps), out);"
    slow = cpp(SEED.replace(call, call + " " + call))
    found = judge.compare(problem, cpp(SEED), slow)
    assert (found.outcome is not Outcome.FASTER, found.ratio < 1) == (True, True)
    assert [len(found.readings[name]) for name in found.telemetry] == [found.pairs] * len(found.telemetry)
    assert "load" in found.readings


@pytest.fixture(autouse=True, scope="module")
def planted_key() -> None:
    os.environ["OPENAI_API_KEY"] = "sk-planted"
