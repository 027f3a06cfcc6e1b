"""The cache of artefacts: what is the same build, and what is another."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelwright.backends._cuda_compile import nvrtc_version
from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.case import DType
from kernelwright.core.messages.builder import StartBuilder
from kernelwright.core.plan import KernelUnit, kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.verdict import Status
from kernelwright.judge.builds import Builds
from kernelwright.judge.foundry import Foundry
from kernelwright.ops import softmax
from tests.cheats.specimen import HERE, honest_source
from tests.cheats.test_catalogue import H200
from tests.cpu.conftest import cpp

SMALL = 'extern "C" int kernel_fn() { return 0; }\n'
OPTIONAL = ("pids", "mounts", "user", "landlock", "seccomp")
GUARDED = {
    # Right and harmless, and yet not what the guards let pass.
    "triton": (HERE / "honest_zoo" / "softmax_persistent.py").read_text() + "\nLIMIT = len('four')\n",
    "cuda": honest_source("softmax", "cuda") + '\n__device__ const char* words = "<<<1>>>(";\n',
}


@contextmanager
def builds(home: Path, without: tuple[str, ...] = (), *, guards_off: bool = False) -> Iterator[Builds]:
    """Yield builds over one cache, with all layers around its builders or without some."""
    made = Builds(home / "cache", home, 1, guards_off=guards_off)
    made.foundry = Foundry(home, without)
    try:
        yield made
    finally:
        made.close()


def stored(home: Path) -> set[str]:
    """Return the keys of everything in the cache."""
    return {path.name for path in (home / "cache").iterdir()}


def of_softmax(backend: str, source: str) -> tuple[Candidate, KernelUnit]:
    """Return a candidate and a kernel of its plan."""
    values = first_values(source)
    case = softmax.case({"rows": 4, "cols": 64}, DType.FP32)
    launch = run_plan(parse_plan(source), case, values, H200).launches[0]
    candidate = Candidate(
        op="softmax",
        backend=backend,
        source=source,
        choices=(ParamChoice(values=values),),
        origin=Origin.AUTHOR,
        author=Author(name="test"),
    )
    return candidate, kernel_unit(launch, case)


def test_an_artefact_built_behind_fewer_layers_is_not_taken_for_one_built_behind_all(tmp_path: Path) -> None:
    candidate = cpp(SMALL)
    with builds(tmp_path, OPTIONAL) as bare:
        assert bare.foundry.sandbox == "limits"
        bare.get(candidate, candidate.choices[0].values)
        first = stored(tmp_path)
    with builds(tmp_path) as full:
        if full.foundry.sandbox == "limits":
            pytest.skip("this machine grants no layer")
        result, artefact = full.get(candidate, candidate.choices[0].values)
        assert (result.status, artefact is not None) == (Status.ACCEPTED, True)
    assert (len(first), len(stored(tmp_path) - first)) == (1, 1)


def test_an_artefact_built_behind_the_same_layers_is_built_once(tmp_path: Path) -> None:
    candidate = cpp(SMALL)
    values = candidate.choices[0].values
    with builds(tmp_path) as before:
        _, artefact = before.get(candidate, values)
    assert artefact is not None
    written = artefact.stat().st_mtime_ns
    with builds(tmp_path) as after:
        _, again = after.get(candidate, values)
        assert (after.foundry.sandbox, again) == (before.foundry.sandbox, artefact)
    assert (len(stored(tmp_path)), artefact.stat().st_mtime_ns) == (1, written)


def test_a_builder_tells_its_layers_before_it_looks_at_the_source(tmp_path: Path) -> None:
    foundry = Foundry(tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    try:
        said = foundry._asked(StartBuilder(folder=str(folder)), b"")
        assert said.answer is not None
        assert foundry.sandbox.encode() in said.answer
        assert [path.name for path in folder.iterdir()] == ["box"]
    finally:
        foundry.close()


@pytest.mark.parametrize(("backend", "off_first"), [("triton", False), ("triton", True), ("cuda", False)])
def test_what_the_guards_refuse_is_built_only_where_they_are_off(
    backend: str, off_first: bool, tmp_path: Path
) -> None:
    if backend == "cuda" and nvrtc_version() is None:
        pytest.skip("cuda-core is not installed")
    candidate, unit = of_softmax(backend, GUARDED[backend])
    found = {}
    for guards_off in (off_first, not off_first):
        with builds(tmp_path, guards_off=guards_off) as made:
            found[guards_off] = made.get_units(candidate, [unit], H200.arch)[unit.hash]
    assert {off: one.status for off, one in found.items()} == {
        False: Status.REFUSED,
        True: Status.ACCEPTED,
    }, found


def test_without_a_gpu_too_the_interpreter_is_given_what_the_guards_refuse_only_where_they_are_off(
    tmp_path: Path,
) -> None:
    candidate, _ = of_softmax("triton", GUARDED["triton"])
    statuses = []
    for guards_off in (False, True):
        with builds(tmp_path, guards_off=guards_off) as made:
            statuses.append(made.get(candidate, candidate.choices[0].values)[0].status)
    assert statuses == [Status.REFUSED, Status.ACCEPTED]


def test_turning_the_guards_off_costs_languages_without_them_no_second_build(tmp_path: Path) -> None:
    candidate = cpp(SMALL)
    with builds(tmp_path) as guarded, builds(tmp_path, guards_off=True) as unguarded:
        values = candidate.choices[0].values
        assert guarded.key(candidate, values) == unguarded.key(candidate, values)


def test_what_is_begun_ahead_is_built_once_and_another_candidates_builds_are_left_alone(
    tmp_path: Path,
) -> None:
    first, second = (cpp(SMALL + f"// {number}\n") for number in range(2))
    with builds(tmp_path) as made:
        for candidate in (first, second):
            made.begin(candidate)
        made.drop(first)
        assert {owner for owner, _ in made.coming.values()} == {second.hash}
        result, artefact = made.get(second, second.choices[0].values)
        assert (result.status, made.coming) == (Status.ACCEPTED, {})
        assert artefact is not None
        before = artefact.stat().st_mtime_ns
        made.begin(second)
        assert (made.coming, artefact.stat().st_mtime_ns) == ({}, before)
