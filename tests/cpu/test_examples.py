"""Every example runs as a script and says something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem)
def test_the_example_runs(path: Path) -> None:
    assert "def main()" in path.read_text()
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout.strip() != "") == (0, True), done.stderr
