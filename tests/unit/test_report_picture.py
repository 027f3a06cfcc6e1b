"""`progress.png`, and the reports of a machine that cannot draw it."""

import struct

from kernelwright.core.events import RunStarted
from kernelwright.report.png import is_drawable, picture
from tests.unit.report_runs import Telling, shipped_run

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(SIGNATURE)
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_picture_is_the_same_for_the_same_run_and_another_for_another(make):
    assert is_drawable()
    run = shipped_run(make)
    first = picture(run.report())
    assert first == picture(run.report())
    slower = Telling(make).started().found()
    slower.challenger(slower.baseline(), (100.0, 150.0), kept=False)
    assert first != picture(slower.report())


def test_run_without_problems_has_a_smaller_picture_with_its_headline(make):
    empty, full = size(picture(Telling(make).started().report())), size(picture(shipped_run(make).report()))
    assert empty[0] == full[0] == 1200
    assert empty[1] < full[1]


def test_name_that_looks_like_a_formula_is_no_formula(make):
    report = shipped_run(make).report()
    odd = report.model_copy(update={"headline": r"$\frac{1}$ runs \undefined_macro{ $"})
    assert size(picture(odd)) == size(picture(report))


def test_machine_without_matplotlib_writes_the_rest_and_leaves_no_old_picture(make, fresh_python, tmp_path):
    (tmp_path / "progress.png").write_bytes(b"of an earlier state")
    started = RunStarted(config={"model": "net.py:build"}, versions={}, device=make.device())
    code = """
sys.modules["matplotlib"] = None  # what Python itself does for a package that must not be found
from pathlib import Path
from kernelwright.core.events import BODY
from kernelwright.core.tree import fold
from kernelwright.report.write import write_reports
files = write_reports(Path(given["folder"]), fold([BODY.validate_json(given["started"])]))
heavy = [name for name in ("torch", "triton", "numpy") if name in sys.modules]
answer = {"files": [path.name for path in files], "heavy": heavy}
"""
    answer = fresh_python(code, {"folder": str(tmp_path), "started": started.model_dump_json()})
    assert answer == {"files": ["results.tsv", "report.md", "report.html"], "heavy": []}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(answer["files"])
    assert "progress.png" not in (tmp_path / "report.md").read_text()
