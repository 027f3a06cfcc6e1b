"""What runners compiled is taken from their folders, and from nowhere else."""

from pathlib import Path

from kernelwright.judge.warming import _freeze


def test_what_was_compiled_is_frozen(tmp_path: Path) -> None:
    (tmp_path / "runner" / "compiled" / "deep").mkdir(parents=True)
    (tmp_path / "runner" / "compiled" / "deep" / "kernel").write_text("code")
    _freeze([tmp_path / "runner" / "compiled"], tmp_path / "frozen")
    assert (tmp_path / "frozen" / "deep" / "kernel").read_text() == "code"


def test_a_folder_that_is_a_link_brings_nobody_the_files_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "key").write_text("secret")
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner" / "compiled").symlink_to(tmp_path / "home")
    _freeze([tmp_path / "runner" / "compiled"], tmp_path / "frozen")
    assert not (tmp_path / "frozen").exists()
