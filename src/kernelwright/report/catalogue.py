"""What is in the drawers, as rows for the command line and the docs."""

from pathlib import Path

from pydantic import Field

import kernelwright
from kernelwright.core import plugins
from kernelwright.core.frozen import Frozen


class OpRow(Frozen):
    """One kernel type."""

    name: str
    """File name in `ops/`."""
    summary: str
    """What it computes."""
    dtypes: list[str]
    """Element types a candidate must serve."""
    public_cases: int = Field(ge=0)
    """Sizes authors are told of."""
    edge_cases: int = Field(ge=0)
    """Awkward sizes every candidate must get right."""
    seeds: list[str]
    """Files with a starting kernel or baseline."""


class BackendRow(Frozen):
    """One language."""

    name: str
    """File name in `backends/`."""
    summary: str
    """Language and where it runs."""
    tier: str
    """A: device code and a plan. B: host code of the candidate's own."""
    usable: bool
    """Whether this machine can build and run it."""
    detail: str
    """What was found, or what is missing."""
    remedy: str
    """How to get what is missing."""


def seed_names(op: str) -> list[str]:
    """Return the file stems of an op's seeds, and `compiled`, which is the eager file under torch.compile."""
    folder = Path(kernelwright.__file__).parent / "seeds" / op
    stems = {path.stem for path in folder.glob("*") if path.suffix in {".py", ".cu", ".cpp"}}
    return sorted(stems | ({"compiled"} if "eager" in stems else set()))


def op_rows() -> list[OpRow]:
    """Return every kernel type."""
    rows = []
    for name in plugins.names("ops"):
        op = plugins.load("ops", name)
        rows.append(
            OpRow(
                name=name,
                summary=op.SUMMARY,
                dtypes=[dtype.value for dtype in op.DTYPES],
                public_cases=len(op.public_cases()),
                edge_cases=len(op.edge_cases()),
                seeds=seed_names(name),
            )
        )
    return rows


def backend_rows() -> list[BackendRow]:
    """Return every language and whether this machine can use it."""
    rows = []
    for name in plugins.names("backends"):
        backend = plugins.load("backends", name)
        status = backend.available()
        rows.append(
            BackendRow(
                name=name,
                summary=backend.SUMMARY,
                tier=backend.TIER,
                usable=status.usable,
                detail=status.detail,
                remedy=status.remedy,
            )
        )
    return rows
