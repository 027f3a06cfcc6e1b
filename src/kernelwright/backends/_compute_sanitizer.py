"""Where NVIDIA's compute-sanitizer is: `ship` has it look into every plan, so a run asks for it before it begins."""

import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

NAME = "compute-sanitizer"
PLACES = ("/usr/local/cuda/bin/compute-sanitizer",)
PACKAGES = ("nvidia-cuda-sanitizer-api", "nvidia-cuda-sanitizer-api-cu12")
"""Those that bring it where no toolkit is installed; the first comes with `kernelwright[cuda]`."""


def program() -> str | None:
    """Return where compute-sanitizer is; None if it is not installed."""
    return shutil.which(NAME) or next((path for path in PLACES if Path(path).exists()), None) or _packaged()


def _packaged() -> str | None:
    for package in PACKAGES:
        try:
            found = distribution(package)
        except PackageNotFoundError:
            continue
        for file in found.files or ():
            if file.name == NAME:
                return str(found.locate_file(file))
    return None
