"""`manifest.json` beside drop-in kernels: which there are, their files with hashes, and what was proven of them.

Everything a winner needs is in it or in files it names, so that kernels outlive the run that found them.
"""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError, model_validator

from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.errors import BadInput
from kernelwright.core.frozen import Frozen
from kernelwright.core.plan import LaunchPlan
from kernelwright.core.verdict import Profile, Status

FORMAT = 2
"""Bumped when an older reader would misunderstand a newer file."""
NAME = "manifest.json"
FOLDER = "optimized_kernels"
"""What the folder is called inside a run's."""
HELP = "Write it anew with `kernelwright optimize`."
AGAIN = (
    "Remove the folder and write it again: `kernelwright apply RUN` does so from its run, `kernelwright tune` for a "
    "function, `kernelwright rejudge RUN` after judging it again."
)


def _inside(name: str) -> str:
    """Refuse a file name that leads out of the folder."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", name):
        raise ValueError(f"{name!r} is no plain file name inside the folder")
    return name


class StoredFile(Frozen):
    """A file of the folder and what it must hold."""

    name: Annotated[str, AfterValidator(_inside)]
    """Path inside the folder."""
    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of its content."""


class Certificate(Frozen):
    """What the judge proved of a kernel, and against what."""

    judge_version: str
    """By which rules."""
    profile: Profile
    """How much was checked."""
    status: Status
    """The verdict."""
    baseline: str = ""
    """What it was compared with, in words; empty if with nothing."""
    ratio: float | None = Field(default=None, gt=0)
    """Baseline's time over the kernel's."""
    ci_low: float | None = Field(default=None, gt=0)
    """Lower end of the 95 % interval."""
    ci_high: float | None = Field(default=None, gt=0)
    """Upper end of the 95 % interval."""
    pairs: int = Field(default=0, ge=0)
    """Fresh process pairs compared."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Versions, flags and sandbox the verdict rests on."""

    @property
    def problem(self) -> str:
        """Return why a kernel with it is not to be used, in words; empty if it was accepted under ship."""
        if (self.status, self.profile) == (Status.ACCEPTED, Profile.SHIP):
            return ""
        return f"its certificate says {self.status.value} under {self.profile.value}, not accepted under ship"


class StoredUnit(Frozen):
    """One compiled kernel."""

    key: str = Field(pattern=r"^[0-9a-f]{16}$")
    """What a launch finds it by."""
    binary: StoredFile
    facts: StoredFile
    """How to launch it."""


class Entry(Frozen):
    """One kernel for one case."""

    module: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """The drop-in module that serves it."""
    problem_hash: str
    candidate_hash: str
    backend: str
    case: Case
    values: dict[str, ParamValue] = Field(default_factory=dict)
    """Parameters chosen for the case."""
    source: StoredFile | None = None
    """The candidate's own text."""
    library: StoredFile | None = None
    """The compiled library (tier B)."""
    plan: LaunchPlan | None = None
    """What is launched (tier A)."""
    launched: tuple[str, ...] = ()
    """Per launch of the plan the key of its kernel."""
    units: tuple[StoredUnit, ...] = ()
    """The kernels the plan launches."""
    device: Device | None = None
    """Where it was certified."""
    region: StoredFile | None = None
    """For op `graph` the region's file."""
    certificate: Certificate
    """What was proven of it."""

    @model_validator(mode="after")
    def _is_whole(self) -> "Entry":
        if (self.library is None) == (self.plan is None):
            raise ValueError(f"{self.case.label} needs a library or a plan, not both or neither")
        if self.plan is not None and len(self.launched) != len(self.plan.launches):
            raise ValueError(f"{self.case.label} has {len(self.launched)} kernels for its launches")
        if lost := set(self.launched) - {unit.key for unit in self.units}:
            raise ValueError(f"{self.case.label} launches {sorted(lost)[0]}, which is not there")
        if problem := self.certificate.problem:
            raise ValueError(f"{self.case.label}: {problem}")
        return self

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """Return every file it is made of."""
        parts = [part for unit in self.units for part in (unit.binary, unit.facts)]
        return tuple(file for file in (self.source, self.library, self.region, *parts) if file is not None)


class Manifest(Frozen):
    """All kernels of a folder."""

    format: int
    """Version of this file's own form."""
    kernelwright: str
    """Version that wrote it."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Packages the kernels were made with."""
    entries: tuple[Entry, ...]
    """Every kernel with its certificate."""
    modules: tuple[StoredFile, ...]
    """The Python files beside it."""

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """Return every file of the folder but the manifest itself."""
        return (*self.modules, *(file for entry in self.entries for file in entry.files))


def parse(text: str, path: Path | str) -> Manifest:
    """Return the manifest of a text, refusing one of a newer form or with anything missing."""
    found = re.search(r'"format":\s*(\d+)', text)
    if found and int(found[1]) > FORMAT:
        remedy = "Upgrade kernelwright."
        raise BadInput(str(path), f"it has format {found[1]}, this version reads up to {FORMAT}", remedy)
    if found and int(found[1]) < FORMAT:
        raise BadInput(str(path), f"it has format {found[1]}, which leaves out the modules beside it", AGAIN)
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BadInput(str(path), f"{where}: {first['msg']}", HELP) from error
