"""The command line as a user meets it: fast help, no torch, one-line errors with a remedy, documented exit codes."""

import json
import os
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelwright.cli.screen import ExitCode
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.events import Noted, RunEnded, RunStarted
from kernelwright.store.journal import Journal

DEVICE = Device(kind=DeviceKind.CPU, name="test", arch="x86_64", units=2, memory_bytes=1)


def kernelwright(*words: str, home: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KERNELWRIGHT_HOME": str(home)}
    command = [sys.executable, "-m", "kernelwright", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=cwd or home, check=False
    )


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "20260101-000000-aaaaaa"
    folder.mkdir(parents=True)
    with Journal.create(folder, folder.name, lambda: datetime(2026, 1, 1, tzinfo=UTC)) as journal:
        journal.append([RunStarted(config={"model": "m.py:build"}, versions={}, device=DEVICE)])
        journal.append([Noted(text="hello"), RunEnded(reason="done")])
    return folder


@pytest.mark.parametrize(
    "words", [["--help"], ["show", "last"], ["journal", "verify"], ["journal", "events"]]
)
def test_thinking_verbs_leave_torch_out(words: list[str], run_folder: Path) -> None:
    home = run_folder.parents[1]
    code = (
        "import sys, kernelwright.cli.main as m\n"
        f"sys.argv = ['kernelwright', *{words!r}]\n"
        "try: m.main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'triton', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KERNELWRIGHT_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


def test_show_json_tells_the_summary(run_folder: Path) -> None:
    done = kernelwright("show", "--json", home=run_folder.parents[1])
    answer = json.loads(done.stdout)
    assert (answer["summary"]["events"], answer["summary"]["ended"]) == (3, "done")


def test_a_moved_run_folder_still_reads(run_folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    run_folder.rename(moved)
    done = kernelwright("show", str(moved), home=tmp_path)
    assert done.returncode == ExitCode.OK
    assert "3 events" in done.stdout


def test_verify_accepts_a_sound_journal(run_folder: Path) -> None:
    done = kernelwright("journal", "verify", home=run_folder.parents[1])
    assert (done.returncode, "3 events, chain sound" in done.stdout) == (ExitCode.OK, True)


def test_verify_names_the_changed_event(run_folder: Path) -> None:
    with sqlite3.connect(run_folder / "journal.db") as database:
        database.execute("update events set body = replace(body, 'hello', 'hallo') where seq = 1")
    done = kernelwright("journal", "verify", "--json", home=run_folder.parents[1])
    answer = json.loads(done.stdout)
    assert done.returncode == ExitCode.NEGATIVE
    assert (answer["sound"], answer["seq"], answer["fault"]) == (False, 1, "changed")


def one_line_error(done: subprocess.CompletedProcess[str], code: ExitCode, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().count("\n") == 0, done.stderr
    for word in words:
        assert word in done.stderr


def test_a_missing_run_is_a_one_line_error(tmp_path: Path) -> None:
    one_line_error(kernelwright("show", "nosuchrun", home=tmp_path), ExitCode.MISTAKE, "nosuchrun")


def test_a_journal_that_is_no_database_is_a_one_line_error(run_folder: Path) -> None:
    for extra in run_folder.glob("journal.db*"):
        extra.unlink()
    (run_folder / "journal.db").write_bytes(b"not a database at all, just bytes" * 200)
    one_line_error(kernelwright("show", home=run_folder.parents[1]), ExitCode.MISTAKE, "journal", "Restore")


def test_a_newer_schema_asks_for_an_upgrade(run_folder: Path) -> None:
    with sqlite3.connect(run_folder / "journal.db") as database:
        database.execute("update runs set schema_version = 99")
    one_line_error(kernelwright("show", home=run_folder.parents[1]), ExitCode.MISTAKE, "99", "Upgrade")


def test_malformed_toml_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "kernelwright.toml").write_text("threads = = 2\n")
    done = kernelwright("optimize", "m.py:build", home=tmp_path)
    one_line_error(done, ExitCode.MISTAKE, "kernelwright.toml", "line 1")


def test_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "kernelwright.toml").write_text("thread = 2\n")
    done = kernelwright("optimize", "m.py:build", home=tmp_path)
    one_line_error(done, ExitCode.MISTAKE, "'thread'", "Did you mean 'threads'?")


def test_an_unknown_backend_lists_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def build(): ...\n")
    done = kernelwright("optimize", "m.py:build", "--backend", "cppp", home=tmp_path)
    one_line_error(done, ExitCode.MISTAKE, "Unknown backend 'cppp'", "Did you mean 'cpp'?", "triton")


def test_no_model_says_how_to_give_one(tmp_path: Path) -> None:
    one_line_error(
        kernelwright("optimize", home=tmp_path), ExitCode.MISTAKE, "kernelwright optimize model.py:build"
    )


def test_a_home_that_cannot_be_written_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder is needed")
    done = kernelwright("optimize", "m.py:build", "--home", str(tmp_path / "file" / "home"), home=tmp_path)
    one_line_error(done, ExitCode.MISTAKE, "Cannot write", "--home")


def test_an_unknown_verb_is_a_usage_error(tmp_path: Path) -> None:
    done = kernelwright("optimise", home=tmp_path)
    assert (done.returncode, "optimise" in done.stderr) == (ExitCode.USAGE, True)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = kernelwright("--debug", "show", "nosuchrun", home=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.MISTAKE, True)


@pytest.mark.parametrize("verb", ["ops", "backends", "version", "doctor"])
def test_every_listing_verb_prints_one_json_object(verb: str, tmp_path: Path) -> None:
    done = kernelwright(verb, "--json", home=tmp_path)
    assert done.returncode == ExitCode.OK, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


def test_output_to_a_pipe_has_no_colours(tmp_path: Path) -> None:
    done = kernelwright("doctor", home=tmp_path)
    assert "\x1b[" not in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("m.py:build", "--op", "softmax"), "--op: the model 'm.py:build' is given too. Give one of them."),
        (("m.py:build", "--shape", "8,8"), "--shape: no kernel is named. Pass --op too"),
        (("--op", "softmax", "--shape", "8,8,8"), "--shape: '8x8x8 fp32' has 3 extents, not 2"),
        (("--op", "softmax", "--strategy", "msct"), "Unknown strategy 'msct'. Did you mean 'mcts'?"),
        (("--op", "softmax", "--budget", "tomorrow"), "'tomorrow' is no time; write 90s, 10m, 1h30m or 8h"),
    ],
)
def test_a_search_that_cannot_begin_says_why_before_anything_is_measured(
    tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    done = kernelwright("optimize", *words, home=tmp_path)
    assert done.returncode in (ExitCode.USAGE, ExitCode.MISTAKE)
    assert line in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("runs/*"))
