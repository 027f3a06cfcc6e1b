"""A journal outside the run folder, named in `kernelwright.toml`, is found by the verbs that read one."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelwright.cli.screen import ExitCode
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.events import RunEnded, RunStarted
from kernelwright.store.journal import Journal

RUN = "20260101-000000-aaaaaa"
DEVICE = Device(kind=DeviceKind.CPU, name="test", arch="x86_64", units=2, memory_bytes=1)


def kernelwright(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KERNELWRIGHT_HOME": str(home)}
    command = [sys.executable, "-m", "kernelwright", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home, check=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one run whose journal is in a database elsewhere."""
    (tmp_path / "runs" / RUN / "blobs").mkdir(parents=True)
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    (tmp_path / "kernelwright.toml").write_text(f'journal_url = "{url}"\n')
    with Journal.create(url, RUN, lambda: datetime(2026, 1, 1, tzinfo=UTC)) as journal:
        journal.append([RunStarted(config={"model": "m.py:build"}, versions={}, device=DEVICE)])
        journal.append([RunEnded(reason="ours")])
    return tmp_path


def test_show_reads_the_journal_the_settings_name(home: Path) -> None:
    done = kernelwright("show", "--json", home=home)
    assert done.returncode == ExitCode.OK, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["summary"]["run_id"], answer["summary"]["ended"]) == (RUN, "ours")
    assert answer["folder"] == str(home / "runs" / RUN)


@pytest.mark.parametrize("name", [RUN, "last"])
def test_a_run_of_another_machine_is_read_without_a_folder(name: str, home: Path) -> None:
    shutil.rmtree(home / "runs")
    done = kernelwright("show", name, "--json", home=home)
    assert done.returncode == ExitCode.OK, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["summary"]["ended"], "shared.db" in answer["folder"]) == ("ours", True)


def test_verify_and_events_read_it_too(home: Path) -> None:
    verified = kernelwright("journal", "verify", home=home)
    assert (verified.returncode, f"{RUN}: 2 events, chain sound" in verified.stdout) == (ExitCode.OK, True)
    listed = kernelwright("journal", "events", RUN[:12], "--json", home=home)
    assert [row["kind"] for row in json.loads(listed.stdout)["events"]] == ["run_started", "run_ended"]


def test_a_run_that_is_nowhere_is_still_a_one_line_error(home: Path) -> None:
    done = kernelwright("show", "nosuchrun", home=home)
    assert (done.returncode, "'nosuchrun'" in done.stderr) == (ExitCode.MISTAKE, True)
    assert done.stderr.strip().count("\n") == 0


def test_a_run_folder_with_a_journal_of_its_own_is_read_from_there(home: Path) -> None:
    folder = home / "runs" / "20260103-000000-cccccc"
    folder.mkdir()
    with Journal.create(folder, folder.name) as journal:
        journal.append([RunStarted(config={}, versions={}, device=DEVICE), RunEnded(reason="local")])
    done = kernelwright("show", "last", "--json", home=home)
    assert json.loads(done.stdout)["summary"]["ended"] == "local"


def test_debug_shows_where_another_process_failed(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "def build():\n    return undefined_here\n\n\ndef sample_inputs(seed): ...\n"
    )
    plain = kernelwright("optimize", "m.py:build", home=tmp_path)
    assert (plain.returncode, "Traceback" in plain.stderr) == (ExitCode.MISTAKE, False), plain.stderr
    told = kernelwright("--debug", "optimize", "m.py:build", home=tmp_path)
    assert told.returncode == ExitCode.MISTAKE
    other = told.stderr.partition("In the other process:")[2]
    assert "undefined_here" in other
    assert "kernelwright/model/" in other
