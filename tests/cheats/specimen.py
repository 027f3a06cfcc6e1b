"""A specimen: one file that tries to fool the judge, and what it must earn; read from the header of the file itself."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.case import Case, DType
from kernelwright.core.device import Device
from kernelwright.core.plan_language import PlanFault, first_values
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Outcome, Profile, Status

HERE = Path(__file__).parent
FIELDS = ("id", "op", "backend", "expected", "profile", "runs")
OPTIONAL = (
    *("audited", "needs_audit", "axes", "other_axes", "scalars"),
    *("judged", "unguarded", "behind", "most_gain", "slow"),
)
FIELD = re.compile(rf"({'|'.join((*FIELDS, *OPTIONAL))}): (.+)")
HONEST = re.compile(r"^//@honest (\w+)$", re.MULTILINE)
HONEST_PYTHON = re.compile(r"^# @honest (\w+)$", re.MULTILINE)
PART = re.compile(r"^//@part (\w+)$", re.MULTILINE)
ENTRY = 'extern "C" int kernel_fn('
LANGUAGES = (".cpp", ".cu", ".py")

AXES: dict[str, dict[str, int]] = {
    "rmsnorm": {"rows": 64, "cols": 256},
    "layernorm": {"rows": 64, "cols": 256},
    "softmax": {"rows": 64, "cols": 256},
    "reduce": {"rows": 64, "cols": 256},
    "cross_entropy": {"rows": 64, "vocab": 1000},
    "matmul": {"m": 64, "n": 96, "k": 128},
    "rope": {"batch": 1, "heads": 2, "seq": 64, "head_dim": 64},
    "attention": {"batch": 1, "heads": 2, "kv_heads": 2, "seq": 32, "kv_seq": 32, "head_dim": 32},
}
"""The problem's own size of each op: small, so that all specimens are judged in minutes."""


@dataclass(frozen=True)
class Specimen:
    """What the header of a file says, and the source behind it."""

    path: Path
    id: str
    """Row of the catalogue."""
    op: str
    backend: str
    expected: frozenset[Status | Outcome]
    """Statuses it may earn; outcomes, if a comparison with the honest kernel is what it tries to win."""
    audited: frozenset[Status | Outcome]
    """Statuses the guards of its source or the audit of its machine code earn it; `expected` is what the walls behind
    them do."""
    needs_audit: str
    """Why nothing but the audit can tell it from an honest kernel; empty for all others."""
    profile: Profile
    """The cheapest profile that catches it."""
    runs: str
    """`cpu`, `gpu`, or `static`: refused before anything of it runs, so no GPU is needed."""
    axes: dict[str, int]
    other_axes: dict[str, int]
    """A second size of its problem; empty for all but those that play one off against the other."""
    scalars: dict[str, bool | int | float]
    judged: str
    """`verdict`, or `comparison`: right answers, a forged time."""
    unguarded: str
    """How it is judged with guards and audit off, if not the same way."""
    behind: str
    """The stage that must stop it with guards and audit off; empty where any may."""
    most_gain: float
    """What it may claim to be faster by in a comparison, whatever is proven: how noisy its times are allows no less."""
    slow: bool
    sentence: str

    @property
    def earns(self) -> frozenset[Status | Outcome]:
        """Return what it may earn with all guards on."""
        return self.audited or self.expected

    @property
    def is_native(self) -> bool:
        """Tell whether its machine code is host code, which the audit reads."""
        return self.backend == "cpp"

    @property
    def is_compared(self) -> bool:
        """Tell whether one of its judgements is a comparison with the honest kernel."""
        return "comparison" in (self.judged, self.unguarded)

    @property
    def name(self) -> str:
        """Return the file's name without its ending."""
        return self.path.stem

    def source(self) -> str:
        """Return the candidate's source, the honest kernel and shared parts put where the file asks for them."""
        text = HONEST_PYTHON.sub(_python_built_in, HONEST.sub(_built_in, self.path.read_text()))
        return PART.sub(_part, text)

    def candidate(self) -> Candidate:
        """Return it as an author's candidate."""
        return author_candidate(self.op, self.backend, self.source())

    def honest(self) -> Candidate:
        """Return the honest kernel it is compared with."""
        if self.backend == "python" and self.runs == "cpu":  # Triton is not timed there
            return author_candidate(
                self.op, self.backend, (HERE / "honest" / f"{self.op}_door.py").read_text()
            )
        return author_candidate(self.op, self.backend, honest_source(self.op, self.backend))

    def problem(self, device: Device) -> Problem:
        """Return the problem it is judged on."""
        sizes = [axes for axes in (self.axes, self.other_axes) if axes]
        cases = [problem_of(self.op, device, axes, self.scalars).cases[0] for axes in sizes]
        return Problem(op=self.op, cases=tuple(cases), device=device)


def honest_source(op: str, backend: str = "cpp") -> str:
    """Return the plain kernel of an op in a language: what specimens are built on and compared with."""
    return (HERE / "honest" / f"{op}{plugins.load('backends', backend).EXTENSION}").read_text()


def _built_in(found: re.Match[str]) -> str:
    """Return the honest C++ kernel as a static function `honest_fn`."""
    text = honest_source(found[1])
    assert text.count(ENTRY) == 1
    return text.replace(ENTRY, "static int honest_fn(")


def _python_built_in(found: re.Match[str]) -> str:
    """Return the honest Triton file with its entry renamed to `honest_fn`."""
    text = honest_source(found[1], "python")
    assert text.count("def kernel_fn(") == 1
    return text.replace("def kernel_fn(", "def honest_fn(")


def _part(found: re.Match[str]) -> str:
    """Return what several specimens share."""
    (path,) = (HERE / "parts").glob(f"{found[1]}.*")
    return path.read_text()


def author_candidate(op: str, backend: str, source: str) -> Candidate:
    """Return a candidate anybody could have written, its parameters at their first values."""
    try:
        values = first_values(source)
    except PlanFault:
        values = {}
    return Candidate(
        op=op,
        backend=backend,
        source=source,
        choices=(ParamChoice(values=values),),
        origin=Origin.AUTHOR,
        author=Author(name="specimen"),
    )


def problem_of(
    op: str,
    device: Device,
    axes: dict[str, int] | None = None,
    scalars: dict[str, bool | int | float] | None = None,
) -> Problem:
    """Return the small problem of an op."""
    case: Case = plugins.load("ops", op).case(axes or AXES[op], DType.FP32, scalars)
    return Problem(op=op, cases=(case,), device=device)


def read(path: Path) -> Specimen:
    """Return the specimen in a file; a header that lacks a field is a mistake of ours."""
    fields: dict[str, str] = {}
    sentence: list[str] = []
    comment = "# " if path.suffix == ".py" else "// "
    for line in path.read_text().splitlines():
        if not line.startswith(comment):
            break
        text = line.removeprefix(comment).strip()
        if found := FIELD.fullmatch(text):
            fields[found[1]] = found[2]
        else:
            sentence.append(text)
    missing = [name for name in FIELDS if name not in fields]
    if missing or not sentence:
        raise ValueError(f"{path.name}: the header lacks {', '.join(missing) or 'its sentence'}")
    op = fields["op"]
    return Specimen(
        path=path,
        id=fields["id"],
        op=op,
        backend=fields["backend"],
        expected=frozenset(_word(word) for word in fields["expected"].split()),
        audited=frozenset(_word(word) for word in fields.get("audited", "").split()),
        needs_audit=fields.get("needs_audit", ""),
        profile=Profile(fields["profile"]),
        runs=fields["runs"],
        axes=_numbers(fields.get("axes", "")) or AXES[op],
        other_axes=_numbers(fields.get("other_axes", "")),
        scalars=_numbers(fields.get("scalars", "")),
        judged=fields.get("judged", "verdict"),
        unguarded=fields.get("unguarded", fields.get("judged", "verdict")),
        behind=fields.get("behind", ""),
        most_gain=float(fields.get("most_gain", "inf")),
        slow=fields.get("slow") == "yes",
        sentence=" ".join(sentence),
    )


def _numbers(text: str) -> dict[str, Any]:
    """Return `rows=4 cols=64` as a mapping. `Any`: extents are integers, scalars anything a literal spells."""
    parts = [part.partition("=") for part in text.split()]
    return {name: ast.literal_eval(value) for name, _, value in parts}


def _word(word: str) -> Status | Outcome:
    return Outcome(word) if word in tuple(Outcome) else Status(word)


@cache
def all_specimens() -> tuple[Specimen, ...]:
    """Return every specimen, by name."""
    return tuple(read(path) for path in sorted((HERE / "specimens").iterdir()) if path.suffix in LANGUAGES)


def specimens(runs: str, prefixes: Sequence[str] = ("",)) -> list[Specimen]:
    """Return the specimens that run somewhere and whose id starts with one of the prefixes."""
    return [item for item in all_specimens() if item.runs == runs and item.id.startswith(tuple(prefixes))]
