"""The offline bundle: the package and its dependencies in one folder, usable with nothing installed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE_TAG = f".{sys.implementation.cache_tag}"


@pytest.mark.slow
def test_the_bundle_runs_doctor_without_site_packages() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    done = subprocess.run(
        ["make", "bundle", f"PYTHON={version}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "build/offline:" in done.stdout
    core = ROOT / "build" / "offline" / "kernelwright" / "core"
    compiled = {path.name.split(".")[0] for path in (core / "__pycache__").glob(f"*{CACHE_TAG}.pyc")}
    assert compiled == {path.stem for path in core.glob("*.py")}, (
        "what the target's Python can read, and is there"
    )
    # -S leaves the virtual environment's packages out: what runs is the bundle alone.
    command = [sys.executable, "-S", "-m", "kernelwright", "doctor"]
    alone = subprocess.run(
        command,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "build" / "offline")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (alone.returncode, "backends" in alone.stdout) == (0, True), alone.stderr
