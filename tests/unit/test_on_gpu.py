"""The parts measured on a GPU: each is a script that exists, goes on from committed rows, and keeps to its time."""

import json
import time
from pathlib import Path

import pytest
from benchmarks import on_gpu
from benchmarks.on_gpu import PARTS, ROOT, Part

ADDS_A_ROW = """
import json, sys
path = sys.argv[sys.argv.index("--out") + 1]
rows = json.load(open(path)) + [int(sys.argv[1])]
json.dump(rows, open(path, "w"))
sys.exit(2)
"""


@pytest.mark.parametrize("name", PARTS)
def test_a_part_names_a_script_that_takes_a_file_of_rows(name: str) -> None:
    first, second, *_ = PARTS[name].words
    script = ROOT / (f"{second.replace('.', '/')}.py" if first == "-m" else first)
    assert "--out" in script.read_text()


def test_a_part_goes_on_from_the_committed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed, into = tmp_path / "committed", tmp_path / "into"
    committed.mkdir()
    into.mkdir()
    (committed / "rows.json").write_text("[1]")
    monkeypatch.setattr(on_gpu, "RESULTS", committed)
    monkeypatch.setitem(PARTS, "x", Part("rows.json", ("-c", ADDS_A_ROW, "{s}")))
    assert on_gpu.run("x", into, time.monotonic() + 100.5) == 2
    assert json.loads((into / "rows.json").read_text()) == [1, 60]
    assert json.loads((committed / "rows.json").read_text()) == [1]
    assert on_gpu.run("x", into, time.monotonic() + 90.5) == 2
    assert json.loads((into / "rows.json").read_text()) == [1, 60, 50]


def test_a_part_for_which_no_time_is_left_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTS, "x", Part("rows.json", ("-c", "raise SystemExit(0)")))
    assert on_gpu.run("x", tmp_path, time.monotonic() + 60) is None
    assert list(tmp_path.iterdir()) == []
