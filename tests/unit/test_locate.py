"""A run is found by path, id, unique beginning or `last`; anything else is answered with what there is."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.core.errors import BadConfig, NotFound, UnknownName
from kernelwright.store.locate import config_file, find_run, home, new_run_id, run_ids, runs_folder

OLD, MIDDLE, NEW = "20261114-031500-ab12cd", "20261115-031500-00ff00", "20261115-031501-000000"


@pytest.fixture
def a_home(tmp_path: Path) -> Path:
    for name in (MIDDLE, NEW, OLD, "zebra"):
        (runs_folder(tmp_path) / name).mkdir(parents=True)
    return tmp_path


def test_home_is_the_variable_or_a_folder_of_the_user() -> None:
    assert home({"KERNELWRIGHT_HOME": "/data/kw", "HOME": "/home/ada"}) == Path("/data/kw")
    assert home({"KERNELWRIGHT_HOME": "", "HOME": "/home/ada"}) == Path("/home/ada/.kernelwright")


def test_a_run_id_names_its_second_in_utc() -> None:
    there = timezone(timedelta(hours=2))
    assert (
        new_run_id(datetime(2026, 11, 15, 5, 15, tzinfo=there), b"\xab\x12\xcd") == "20261115-031500-ab12cd"
    )
    with pytest.raises(ValueError, match="3 random bytes"):
        new_run_id(datetime(2026, 11, 15, tzinfo=UTC), b"\xab")


@given(
    st.datetimes(min_value=datetime(1000, 1, 1)),
    st.datetimes(min_value=datetime(1000, 1, 1)),
    st.binary(min_size=3),
)
def test_run_ids_sort_by_time(one: datetime, other: datetime, random: bytes) -> None:
    early, late = sorted((one.replace(tzinfo=UTC, microsecond=0), other.replace(tzinfo=UTC, microsecond=0)))
    assert new_run_id(early, b"\0\0\0") <= new_run_id(late, random)


@pytest.mark.parametrize(
    ("name", "found"),
    [(OLD, OLD), ("20261114", OLD), ("20261115-031501", NEW), ("zeb", "zebra"), ("last", NEW)],
)
def test_a_run_is_found_by_what_names_it(a_home: Path, name: str, found: str) -> None:
    assert find_run(a_home, name) == runs_folder(a_home) / found


def test_a_path_names_a_run_anywhere(a_home: Path, tmp_path: Path) -> None:
    (tmp_path / "copied").mkdir()
    assert find_run(a_home, str(tmp_path / "copied")) == tmp_path / "copied"
    with pytest.raises(NotFound, match="Run folder"):
        find_run(a_home, str(tmp_path / "gone"))


@pytest.mark.parametrize("name", ["2027", "", "zebras"])
def test_an_unknown_run_is_answered_with_the_known_ones(a_home: Path, name: str) -> None:
    with pytest.raises(UnknownName, match=f"Known: {OLD}, {MIDDLE}, {NEW}, zebra"):
        find_run(a_home, name)


def test_a_beginning_that_fits_two_runs_is_refused_with_both(a_home: Path) -> None:
    with pytest.raises(BadConfig, match=f"'20261115' may be any of {MIDDLE}, {NEW}"):
        find_run(a_home, "20261115")


def test_there_is_no_last_run_before_the_first(tmp_path: Path) -> None:
    assert run_ids(tmp_path) == []
    with pytest.raises(NotFound, match="kernelwright optimize"):
        find_run(tmp_path, "last")


def test_the_configuration_file_is_that_of_the_working_folder(tmp_path: Path) -> None:
    assert config_file(tmp_path) is None
    (tmp_path / "kernelwright.toml").write_text("")
    assert config_file(tmp_path) == tmp_path / "kernelwright.toml"
    (tmp_path / "below").mkdir()
    assert config_file(tmp_path / "below") is None
