"""What is kept of `make run`: the Makefile's own line, and what the journal says of the model and of every problem."""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks import make_run
from benchmarks.make_run import carried_out, measured, text_beside, words

from kernelwright.core.device import DeviceKind
from kernelwright.core.tree import fold
from kernelwright.store.journal import Journal
from tests.unit.report_runs import Telling, shipped_run


def tree_of(run: Telling):
    return fold(event.body for event in run.events)


def test_the_line_is_the_makefiles_without_its_home() -> None:
    lines = {device: words(device) for device in ("cpu", "cuda")}
    for device, model in (("cpu", "build"), ("cuda", "build_loss")):
        line = lines[device]
        assert line[:2] == ["optimize", f"examples/models/llama.py:{model}"]
        assert "--budget" in line and "--processes" in line and "--home" not in line
        assert line[-2:] == ["--device", device]
    assert words("auto") in [line[:-2] for line in lines.values()]


@pytest.mark.parametrize(("has_gpu", "device"), [("True", "cuda"), ("", "cpu")])
def test_make_runs_on_either_device_what_the_benchmark_runs(has_gpu: str, device: str) -> None:
    command = ["make", "--dry-run", "run", "READY=", f"HAS_GPU={has_gpu}"]
    told = subprocess.run(command, cwd=make_run.ROOT, capture_output=True, text=True, check=True).stdout
    assert f"kernelwright {shlex.join(words(device)[:-2])} --home" in told


def test_a_shorter_line_differs_by_the_values_it_names_and_needs_less_time() -> None:
    line, shorter = words("cpu"), words("cpu", "--budget 2m --top 1")
    assert [(one, two) for one, two in zip(line, shorter, strict=True) if one != two] == [
        ("3", "1"),
        ("4m30s", "2m"),
    ]
    assert (make_run.least_s(line), make_run.least_s(shorter)) == (400.0, 250.0)
    with pytest.raises(ValueError, match="--budge"):
        words("cpu", "--budge 2m")


def test_a_row_says_how_much_faster_the_model_is_and_what_came_of_every_problem(make) -> None:
    row = measured(tree_of(shipped_run(make)))
    assert (row["ended"], row["failed"], row["versions"]) == (
        "the winners pay end to end",
        False,
        {"torch": "2.13"},
    )
    whole = row["end_to_end"]
    assert whole["shipped"] is True
    assert whole["faster_than"] == {
        "captured": [1.2, 1.1, 1.3],
        "eager": [1.25, 1.2, 1.3],
        "compiled": [1.1, 1.05, 1.15],
    }
    (problem,) = row["problems"]
    assert (problem["baseline"], problem["winner"], problem["author"]) == ("eager", "cpp", "mover")
    assert (problem["faster"], problem["verdicts"]) == ([2.0, 1.96, 2.04], {"accepted": 2})
    assert problem["in_the_model"] == {"stays": True, "faster": [1.2, 1.1, 1.3], "reason": "pays end to end"}


def test_a_row_of_a_run_that_found_nothing_or_broke_off_says_so(make) -> None:
    run = Telling(make).started().found()
    (unbegun,) = measured(tree_of(run))["problems"]
    assert (unbegun["baseline"], unbegun["winner"], unbegun["verdicts"]) == (None, None, {})
    base = run.baseline(100.0)
    run.challenger(base, (100.0, 100.0), kept=False)
    row = measured(tree_of(run))
    assert (row["ended"], row["failed"], row["end_to_end"]) == ("not ended", True, None)
    (problem,) = row["problems"]
    assert (problem["baseline"], problem["winner"], problem["faster"]) == ("eager", None, None)
    assert problem["in_the_model"] is None


def test_a_model_that_torch_compile_did_not_take_has_no_ratio_over_it(make) -> None:
    run = Telling(make).started().found()
    best = run.challenger(run.baseline(100.0), (100.0, 50.0))
    whole = measured(tree_of(run.verified(best, compiled=None)))["end_to_end"]
    assert whole["faster_than"]["compiled"] is None


def test_what_was_printed_lies_beside_the_rows_for_each_kind_of_device(tmp_path: Path) -> None:
    rows = tmp_path / "make_run.json"
    assert text_beside(rows, DeviceKind.CPU) == tmp_path / "make_run.txt"
    assert text_beside(rows, DeviceKind.CUDA) == tmp_path / "make_run_gpu.txt"


WAITS = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit("interrupted"))
print("begun", flush=True)
time.sleep(600)
"""


def test_a_run_that_takes_too_long_is_interrupted_and_its_words_are_kept() -> None:
    assert carried_out([sys.executable, "-c", "print('done'); raise SystemExit(3)"], None) == ("done\n", 3)
    begun = time.monotonic()
    assert carried_out([sys.executable, "-c", WAITS], 2.0) == ("begun\n", None)
    assert time.monotonic() - begun < make_run.PATIENCE_S


def test_one_row_per_kind_of_device_is_kept_with_what_was_printed(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stand_in(command: list[str], budget_s: float | None) -> tuple[str, int]:
        assert (command[1:4], budget_s) == (["-m", "kernelwright", "optimize"], None)
        folder = Path(command[command.index("--home") + 1]) / "runs" / "one"
        folder.mkdir(parents=True)
        with Journal.create(folder, "one") as journal:
            journal.append([event.body for event in shipped_run(make).events])
        return "winner: cpp\n", 0

    rows = tmp_path / "make_run.json"
    rows.write_text(json.dumps({"rows": {"cpu": {"ended": "long ago"}}}))
    monkeypatch.setattr(make_run, "carried_out", stand_in)
    monkeypatch.setattr(sys, "argv", ["make_run", "--device", "cpu", "--out", str(rows)])
    assert make_run.main() == 0
    kept = json.loads(rows.read_text())["rows"]
    assert (kept["cpu"], sorted(kept)) == ({"ended": "long ago"}, ["cpu", "cuda"])
    assert kept["cuda"]["command"].startswith("kernelwright optimize examples/models/llama.py:build --top 3")
    assert (kept["cuda"]["exit_code"], kept["cuda"]["end_to_end"]["shipped"]) == (0, True)
    printed = (tmp_path / "make_run_gpu.txt").read_text().splitlines()
    assert printed[0].startswith("$ kernelwright optimize examples/models/llama.py:build")
    assert (printed[1], printed[-1][:10]) == ("winner: cpp", "real    0m")


def test_a_run_for_which_there_is_no_time_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["make_run", "--device", "cpu", "--budget-s", "399", "--out", str(rows)])
    assert make_run.main() == 2
    assert list(tmp_path.iterdir()) == []
