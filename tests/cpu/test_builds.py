"""The cache of artefacts: what is the same build, and what is another."""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest

from kernelwright.backends._cuda_compile import nvrtc_version
from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.case import DType
from kernelwright.core.errors import ScratchFull
from kernelwright.core.messages.builder import StartBuilder
from kernelwright.core.messages.judge import JudgeSettings, Prepare
from kernelwright.core.plan import KernelUnit, kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.service import JudgeClient
from kernelwright.judge.builds import AHEAD, Builds
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.foundry import Foundry
from kernelwright.ops import softmax
from kernelwright.worker.foundry import NICE
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


def test_of_64_waiting_candidates_only_a_few_are_queued_and_the_rest_is_built_when_its_turn_comes(
    room: Judge, problem: Problem
) -> None:
    waiting = [cpp(SMALL + f"// {number}\n") for number in range(64)]
    made, most, gate = room.builds, AHEAD * room.builds.jobs, Event()
    busy = [made.background.submit(gate.wait) for _ in range(made.jobs)]

    def queued() -> set[str]:
        return {owner for owner, _ in made.coming.values()}

    try:
        for _ in range(2):
            for candidate in waiting:
                room.prepare(Prepare(problem=problem, candidate=candidate))
            assert queued() == {one.hash for one in waiting[:most]}
        made.drop(waiting[0])
        room.prepare(Prepare(problem=problem, candidate=waiting[most]))
        assert queued() == {one.hash for one in waiting[1 : most + 1]}, "there is room again"
        result, _ = made.get(waiting[63], waiting[63].choices[0].values)
        assert result.status is Status.ACCEPTED, "though all that builds ahead is busy"
    finally:
        made.drop()
        gate.set()
        wait(busy)
    assert made.room() == most


def test_kernels_compiled_ahead_are_bounded_too_and_those_of_whose_turn_it_is_are_not(tmp_path: Path) -> None:
    candidate, unit = of_softmax("cuda", GUARDED["cuda"])
    units = [unit.model_copy(update={"constants": {**unit.constants, "N": number}}) for number in range(64)]
    gate = Event()
    with builds(tmp_path) as made:
        try:
            made.background.submit(gate.wait)
            made.get_ahead(candidate, units, "sm_90", made.room())
            assert (len(made.coming), made.room()) == (AHEAD, 0)
            made.get_ahead(candidate, units, "sm_90")
            assert len(made.coming) == 64
        finally:
            made.drop()
            gate.set()


@contextmanager
def small_disk(place: Path, nbytes: int) -> Iterator[Path]:
    """Yield a folder on a disk of its own that holds so many bytes."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("nobody here may mount a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, left: int) -> Path:
    """Write a file that leaves so many bytes of a disk."""
    found = disk / "filler"
    with found.open("wb") as file:
        file.write(bytes(shutil.disk_usage(disk).free - left))
    return found


@pytest.mark.parametrize("left", [0, 8192])
def test_a_source_that_a_full_disk_kept_from_being_built_is_built_once_there_is_room(
    left: int, tmp_path: Path
) -> None:
    candidate = cpp(SMALL)
    with small_disk(tmp_path / "disk", 32 << 20) as disk, builds(disk) as made:
        assert made.foundry.sandbox
        filler = fill(disk, left)
        with pytest.raises(ScratchFull, match="kernelwright resume"):
            made.get(candidate, candidate.choices[0].values)
        assert stored(disk) == set(), "nothing is remembered of it"
        filler.unlink()
        result, artefact = made.get(candidate, candidate.choices[0].values)
        assert (result.status, artefact is not None) == (Status.ACCEPTED, True)


def test_a_full_cache_is_no_fault_of_a_source_either(tmp_path: Path) -> None:
    candidate = cpp(SMALL)
    with builds(tmp_path) as made, small_disk(tmp_path / "disk", 32 << 20) as disk:
        made.folder = disk / "cache"
        made.folder.mkdir()
        filler = fill(disk, 8192)
        with pytest.raises(ScratchFull):
            made.get(candidate, candidate.choices[0].values)
        assert list(made.folder.iterdir()) == []
        filler.unlink()
        assert made.get(candidate, candidate.choices[0].values)[0].status is Status.ACCEPTED


def test_a_limit_on_our_own_files_is_no_fault_of_a_source(tmp_path: Path) -> None:
    candidate = cpp(SMALL)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, before[1]))
    try:
        with builds(tmp_path) as made, pytest.raises(ScratchFull):
            made.get(candidate, candidate.choices[0].values)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stored(tmp_path) == set()


def test_a_source_that_fills_its_own_folder_has_failed_by_itself(tmp_path: Path) -> None:
    bomb = cpp(SMALL + 'asm(".data\\n.zero 0x14000000\\n.text\\n");\n')
    with builds(tmp_path) as made:
        result, artefact = made.get(bomb, bomb.choices[0].values)
    assert (result.status, artefact) == (Status.BUILD_FAILED, None), result.log
    assert len(stored(tmp_path)) == 1


def compilers_of(first: int) -> Iterator[Path]:
    """Yield the folders in /proc of the compilers born of a process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = stat.read_text().rpartition(")")
            parent = int(rest.split()[1])
            while parent > 1 and parent != first:
                parent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == first and name.endswith("(cc1plus"):
                yield stat.parent


def test_builders_step_back_for_whoever_times_on_the_same_cores(tmp_path: Path) -> None:
    candidate = cpp(honest_source("softmax"))
    nice, groups = set(), set()
    with builds(tmp_path) as made:
        made.begin(candidate)
        ((_, coming),) = made.coming.values()
        while not coming.done():
            for found in compilers_of(made.foundry._service.process.pid):
                with suppress(OSError):
                    nice.add(os.getpriority(os.PRIO_PROCESS, int(found.name)) - os.nice(0))
                    groups.add((found / "autogroup").read_text().split()[-1])
    assert nice == {NICE}
    assert groups <= {str(NICE)}, "where sessions are groups to the scheduler"


def test_a_judge_whose_disk_is_full_gives_no_verdict_and_gives_it_once_there_is_room(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = cpp(honest_source("rmsnorm"))
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        settings = JudgeSettings(
            threads=1,
            max_pairs=2,
            alpha=0.001,
            hidden_shapes=0,
            cache_folder=str(tmp_path / "cache"),
            blob_folder=str(tmp_path / "blobs"),
        )
        judge = JudgeClient(settings, lambda _: None)
        try:
            before = judge.child.process.pid
            judge.screen(problem, candidate, ())
            filler = fill(disk, 0)
            with pytest.raises(ScratchFull):
                judge.evaluate(problem, candidate, Profile.QUICK)
            filler.unlink()
            found = judge.evaluate(problem, candidate, Profile.QUICK)
            assert (found.status, judge.child.process.pid) == (Status.ACCEPTED, before)
        finally:
            judge.close()
