"""Where NVIDIA's compute-sanitizer is: `ship` has it look into every plan, so a run asks for it before it begins."""

import shutil
from pathlib import Path

PLACES = ("/usr/local/cuda/bin/compute-sanitizer",)


def program() -> str | None:
    """Return where compute-sanitizer is; None if it is not installed."""
    return shutil.which("compute-sanitizer") or next((path for path in PLACES if Path(path).exists()), None)
