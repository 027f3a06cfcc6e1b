"""The zoo as a whole: what it covers, that its honest kernels pass, and that its GPU specimens compile."""

import re
from functools import cache
from pathlib import Path

import pytest

from kernelwright.core import plugins
from kernelwright.core.case import Case, DType
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.verdict import Profile, Stage, Status
from kernelwright.hardware.detect import cpu_device
from tests.cheats.conftest import Bar
from tests.cheats.specimen import (
    AXES,
    HERE,
    Specimen,
    all_specimens,
    author_candidate,
    honest_source,
    problem_of,
    specimens,
)
from tests.devices import H200

ROOT = HERE.parents[1]
ROW = re.compile(r"^\| ([A-Z]{2}\d+) \| ([^|]+) \|(?: ([^|]+) \|)?$", re.MULTILINE)
AT_LEAST = 90
SECTION_0 = (
    *("DL1_plain_delegation", "TF7_caches_by_pointer", "TF1_side_stream", "RF17_constant_loss"),
    *("TF4_patches_the_timers", "RF13_prints_pass_and_exits"),
)
"""The six that left PASS in the log of a harness whose five stages they never met."""
MOST_GAIN = 3.0
"""More than this is no noise, however short a call is."""
NEED_THE_AUDIT = {
    *("HA2_reads_a_key_when_nobody_watches", "ET7_sleeps_until_it_is_shipped"),
    "DL3_through_the_python_door",
}
"""Those that only the audit stops; each says why in its header."""
STATIC = [pytest.param(item, id=item.name) for item in specimens("static")]
ON_GPU = [pytest.param(item, id=item.name) for item in specimens("gpu")]


@cache
def rows_of(name: str) -> dict[str, tuple[str, str]]:
    """Return a table of this folder by id."""
    return {
        found[1]: (found[2].strip(), (found[3] or "").strip())
        for found in ROW.finditer((HERE / name).read_text())
    }


def test_every_id_of_the_catalogue_has_a_specimen_or_a_reason() -> None:
    covered = {item.id for item in all_specimens()}
    explained = set(rows_of("not_expressible.md"))
    assert (set(rows_of("catalogue.md")), covered & explained) == (covered | explained, set())


def test_at_least_ninety_ids_are_covered_by_specimens() -> None:
    assert (len(rows_of("catalogue.md")), len({item.id for item in all_specimens()}) >= AT_LEAST) == (
        130,
        True,
    )


def test_what_stands_in_for_a_specimen_exists() -> None:
    for name, (_, test) in rows_of("not_expressible.md").items():
        path, _, function = test.strip("`").partition("::")
        assert test == "-" or (ROOT / path).is_file(), name
        assert not function or f"def {function}(" in (ROOT / path).read_text(), name


def test_the_six_that_fooled_a_five_stage_harness_are_among_them() -> None:
    assert set(SECTION_0) <= {item.name for item in all_specimens()}


def test_a_specimen_is_named_for_its_id_and_never_expected_to_win() -> None:
    for item in all_specimens():
        assert item.name.startswith(f"{item.id}_"), item.name
        assert item.expected.isdisjoint({Status.ACCEPTED, "faster"}), item.name
        assert item.path.suffix == plugins.load("backends", item.backend).EXTENSION, item.name
        assert item.sentence.endswith("."), item.name


def test_a_specimen_that_is_compared_can_fail_its_test() -> None:
    # Eight heats never prove anything faster: what a specimen may gain must be bounded, or it cannot lose.
    compared = [item for item in all_specimens() if item.is_compared]
    assert len(compared) >= 20
    assert [item.name for item in compared if not 1 <= item.most_gain <= MOST_GAIN] == []


def test_what_the_audit_refuses_must_fail_behind_it_by_another_name() -> None:
    assert {item.name for item in all_specimens() if item.needs_audit} == NEED_THE_AUDIT
    native = {item.name for item in all_specimens() if item.is_native and Status.REFUSED in item.expected}
    assert native < NEED_THE_AUDIT


@pytest.mark.parametrize("op", AXES)
def test_the_honest_kernel_of_an_op_is_accepted(op: str, bar: Bar) -> None:
    found = bar.guarded.evaluate(
        problem_of(op, cpu_device()), author_candidate(op, "cpp", honest_source(op)), Profile.QUICK
    )
    assert found.status is Status.ACCEPTED, found.failure


@pytest.mark.slow
@pytest.mark.parametrize("op", AXES)
def test_the_honest_kernel_of_an_op_is_worth_keeping(op: str, bar: Bar) -> None:
    found = bar.guarded.evaluate(
        problem_of(op, cpu_device()), author_candidate(op, "cpp", honest_source(op)), Profile.KEEP
    )
    assert (found.status, found.timing is not None) == (Status.ACCEPTED, True), found.failure


@pytest.mark.usefixtures("temptations")
@pytest.mark.parametrize("specimen", STATIC)
def test_a_static_specimen_is_stopped_before_anything_of_it_runs(specimen: Specimen, bar: Bar) -> None:
    # Without the guards it gets as far as the compiler, which finds nothing of what it asks for.
    for client, more in ((bar.guarded, set()), (bar.unguarded, {Status.BUILD_FAILED})):
        found = client.evaluate(specimen.problem(H200), specimen.candidate(), Profile.QUICK)
        assert found.status in specimen.expected | more, found.failure
        assert found.stages[-1].stage in (Stage.GUARDS, Stage.BUILD)


def is_refused(specimen: Specimen) -> bool:
    """Tell whether the static guards stop it."""
    backend = plugins.load("backends", specimen.backend)
    source = specimen.source()
    return bool(backend.check(source) or (hasattr(backend, "delegates") and backend.delegates(source)))


@pytest.mark.parametrize("specimen", ON_GPU)
def test_a_gpu_specimen_is_refused_as_it_should_be_or_compiles_for_an_h200(
    specimen: Specimen, tmp_path: Path
) -> None:
    statuses = {Status.REFUSED, Status.DELEGATION}
    assert is_refused(specimen) == (specimen.expected <= statuses)
    if specimen.backend == "python":
        compile(specimen.source(), specimen.path.name, "exec")
        return
    backend, source = plugins.load("backends", specimen.backend), specimen.source()
    for dtype in DType.FP32, DType.FP16:
        case: Case = plugins.load("ops", specimen.op).case(specimen.axes, dtype)
        plan = run_plan(parse_plan(source), case, first_values(source), H200)
        for launch in plan.launches:
            built = backend.compile_unit(source, kernel_unit(launch, case), "sm_90", tmp_path)
            assert built.status is Status.ACCEPTED, built.log


def test_specimens_compared_on_a_gpu_have_an_honest_twin_that_passes_the_guards() -> None:
    compared = [item for item in specimens("gpu") if item.is_compared]
    assert {item.name for item in compared} >= {"TF1_side_stream", "TF12_holds_on_to_the_cache"}
    for item in compared:
        twin, backend = item.honest(), plugins.load("backends", item.backend)
        assert backend.check(twin.source) is None
        assert not (hasattr(backend, "delegates") and backend.delegates(twin.source))
