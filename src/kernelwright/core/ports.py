"""The ports: what a drawer's file must offer. A plain module satisfies a port; there is nothing to inherit from."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from kernelwright.core.brief import Answer, Brief, Trial
from kernelwright.core.candidate import Candidate, ParamValue
from kernelwright.core.case import Case, Distribution, DType, Layout
from kernelwright.core.device import Device
from kernelwright.core.expansion import Allowance, Expansion
from kernelwright.core.foreign import Visible
from kernelwright.core.frozen import Frozen
from kernelwright.core.halt import Halt
from kernelwright.core.plan import KernelUnit
from kernelwright.core.problem import Problem
from kernelwright.core.roofline import Work
from kernelwright.core.technique import Bottleneck
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Comparison, Evaluation, NullModel, Profile, Screening, Status

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
Scalars = Mapping[str, bool | int | float]


@dataclass(frozen=True)
class View:
    """How a tensor of a case and a value of a captured graph are made from each other: by methods that move no data.

    `node` is torch.fx's; core does not know torch, hence `Any`. Steps are method names with integers: `("reshape",
    (512, 256))`. An input of the case is the node's value after the steps; an output of the case, after the steps, is
    the node's value.
    """

    node: Any
    steps: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def applied(self, tensor: Any) -> Any:
        """Return a tensor after the steps."""
        for method, numbers in self.steps:
            tensor = getattr(tensor, method)(*numbers)
        return tensor


@dataclass(frozen=True)
class Match:
    """An op found in a captured graph: the case it runs there, and where the case's tensors come from and go to."""

    case: Case
    inputs: Mapping[str, View]
    """By name of the case's input."""
    outputs: tuple[View, ...]
    """In the order of the case's outputs."""
    assumed: tuple[Any, ...] = ()
    """Nodes the region reads though the case has no tensor for them: their value is constant and was looked at."""


@dataclass(frozen=True)
class BigCase:
    """A case too big to be checked as a whole, and how a slice of it is a case of its own."""

    case: Case
    axis: str
    """Name of the axis along which it was grown: the first one of every tensor that grew with it."""
    block: int
    """Slices along it that are checked at a time."""
    muted: Mapping[str, int] = field(default_factory=dict)
    """Inputs by name, and the value that takes a slice out of an output which all slices share."""


class Op(Protocol):
    """The contract of a kernel type: one file of `ops/`, everything about it in that file."""

    SUMMARY: str
    """One line: what it computes."""
    DTYPES: tuple[DType, ...]
    """Types a candidate must serve."""
    REQUIRED_LAYOUTS: tuple[Layout, ...]
    """Ways of lying in memory a candidate must serve; of others it may decline."""
    NULL_EXCEPTIONS: Mapping[NullModel, str]
    """Null models that do not apply to it, and why; all others must fail on its cases."""
    ROUNDED_INTERMEDIATES: int
    """Intermediates the framework rounds to the type of the output; a candidate may do the same."""

    def case(self, axes: Mapping[str, int], dtype: DType, scalars: Scalars | None = None) -> Case:
        """Return the case of that size, tensors contiguous."""
        ...

    def public_cases(self) -> Sequence[Case]:
        """Return the sizes authors are told of, smallest first."""
        ...

    def edge_cases(self) -> Sequence[Case]:
        """Return the awkward sizes: primes, tile sizes plus and minus one, one, zero."""
        ...

    def sample_case(self, rng: random.Random) -> Case:
        """Return a random legal case for hidden tests."""
        ...

    def make_inputs(self, case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
        """Return fresh inputs on the CPU; weights and scalars are never ones and zeros."""
        ...

    def reference(self, inputs: Tensors, scalars: Scalars) -> tuple["Tensor", ...]:
        """Return the outputs in the precision of the inputs, float64 included."""
        ...

    def error_scale(self, inputs: Tensors, scalars: Scalars) -> tuple["Tensor", ...]:
        """Return, per output element, the magnitude its rounding error is measured against (float64 inputs)."""
        ...

    def depth(self, case: Case) -> int:
        """Return how many roundings of fp32 may pile up in an output element, in units of its error scale."""
        ...

    def exact_inputs(self, case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
        """Return inputs whose answer is known, and by how many roundings an honest answer may miss it.

        Consecutive seeds go through the kinds of such points; None if this case has none of the seed's kind. A miss of
        0 means bit-equal to the float64 result rounded once.
        """
        ...

    def special_inputs(self, case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
        """Return inputs with NaN, infinities and -0.0, each with a few words on what was planted where."""
        ...

    def other_scalars(self, case: Case) -> list[dict[str, bool | int | float]]:
        """Return changes of scalars, legal for the same inputs, under which the answer is another one."""
        ...

    def growth_cases(self, dtype: DType) -> Sequence[Case]:
        """Return cases that differ only in the length of the reduction, shortest first; none if nothing is reduced."""
        ...

    def big_case(self, dtype: DType, elements: int) -> BigCase:
        """Return a case whose largest tensor has a little more elements than that."""
        ...

    def work(self, case: Case) -> Work:
        """Return compulsory bytes and FLOPs."""
        ...

    def recognise(self, node: Any) -> Match | None:
        """Return the op that ends in this node of a captured graph, in whatever form it is written, or None.

        A hint, not a proof: what is extracted is checked against the region itself. An op without it is never found.
        """
        ...


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here, and if not, what is missing."""

    usable: bool
    detail: str
    """What was found, or what is missing."""
    remedy: str = ""
    """How to get it; empty if usable."""


class BuildResult(Frozen):
    """What a build left behind."""

    status: Status
    """ACCEPTED if there is an artefact."""
    log: Visible = ""
    """The compiler's own words, with the candidate's line numbers, bounded."""
    artefact: str | None = None
    """File name of the artefact inside the output folder."""
    resources: dict[str, int] = Field(default_factory=dict)
    """Registers, spills, shared memory and whatever else the compiler told."""


class Backend(Protocol):
    """A language: one file of `backends/`. Tier A also offers `compile_unit`, tier B `build` and `bind`.

    Where host code could hand the work to a library, it offers `delegates(source)`: why the work is not done by a
    kernel of the file's own, or None. Where a CPU can only interpret it, it offers `interprets(source)` and
    `interpretable(case)`: whether it does, and why a case cannot be put to the interpreter. Where a file may bring C++
    along that is compiled with it, it offers `doors(source)`: the C++ sources, by name.
    """

    SUMMARY: str
    """One line: language and where it runs."""
    EXTENSION: str
    """File name extension of its seeds."""
    TIER: Literal["A", "B"]
    """A: device code and a plan, no candidate host code. B: host code of the candidate's own."""
    NOTES: str
    """What an author must know to write for it."""

    def available(self) -> Availability:
        """Tell whether it can build and run here; imports nothing heavy."""
        ...

    def check(self, source: str) -> str | None:
        """Return why the static guards refuse the source, or None."""
        ...

    def fingerprint(self) -> str:
        """Return what decides the artefact besides source and parameters: compiler, version, flags."""
        ...


class TierA(Backend, Protocol):
    """A language whose candidates are device code and a launch plan."""

    def compile_unit(
        self, source: str, unit: KernelUnit, target: str, folder: Path, *, guarded: bool = True
    ) -> BuildResult:
        """Compile one kernel for a target (`sm_90`, `gfx942`) into `folder`; runs in the builder's sandbox.

        What `check` refuses is refused here too, unless a test asks for it to be built.
        """
        ...

    def build(
        self, source: str, values: Mapping[str, ParamValue], folder: Path, *, guarded: bool = True
    ) -> BuildResult:
        """Leave in `folder` what a machine without a GPU can interpret, or say that there is nothing."""
        ...


class TierB(Backend, Protocol):
    """A language whose candidates bring host code of their own."""

    def build(self, source: str, values: Mapping[str, ParamValue], folder: Path) -> BuildResult:
        """Compile source with those parameters into `folder`; runs in the builder's sandbox."""
        ...

    def bind(
        self, artefact: Path, cases: Sequence[Case], calls: Sequence[tuple[int, Mapping[str, int]]]
    ) -> "list[Callable[[], Any]]":
        """Load the artefact and return one closure per call; runs in a runner.

        A call is a case index and the address of each tensor's first element. A closure returns an int (0, or the
        code of a named refusal) if it wrote the outputs itself, or the outputs as tensors: hence `Any`.
        """
        ...


class Strategy(Protocol):
    """A search: one file of `strategies/`; a pure function of tree, allowance and seed."""

    SUMMARY: str
    """One line: how it chooses."""

    def choose(self, tree: Tree, budget: Allowance, rng: random.Random) -> list[Expansion]:
        """Return at most as many expansions as there is room for."""
        ...


@dataclass(frozen=True)
class Subject:
    """What a move is applied to."""

    source: str
    backend: str
    op: str
    cases: tuple[Case, ...]
    """Sizes it is to be fast on."""
    device: Device


@dataclass(frozen=True)
class Moved:
    """A source after a move."""

    source: str
    note: str
    """What was changed, in a few words that tell two ways of the same move apart."""
    values: Mapping[str, ParamValue] = field(default_factory=dict)
    """Parameters the move sets; all others stay as they are chosen."""


class Move(Protocol):
    """A mechanical rewrite: one file of `moves/`; a pure function on parsed code."""

    SUMMARY: str
    """One line: what is changed."""
    BACKENDS: tuple[str, ...]
    """Languages it can read."""
    AGAINST: tuple[Bottleneck, ...]
    """What it helps against, the likeliest first."""

    def apply(self, subject: Subject) -> Sequence[Moved] | str:
        """Return the ways to do it here, the likeliest first, or why there is none."""
        ...


class Agent(Protocol):
    """An author."""

    def propose(self, brief: Brief) -> Answer:
        """Answer a brief; whatever goes wrong is a reason, never an exception."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """An author that is told when nobody waits for its answer any more; it may take 2 s to end."""

    def until(self, halt: Halt) -> Agent:
        """Return the same author, whose answering ends when the word is given."""
        ...


class AgentFile(Protocol):
    """A kind of author: one file of `agents/`."""

    SUMMARY: str
    """One line: who writes, and what it needs."""

    def author(self, detail: str = "") -> Agent:
        """Return the author; `detail` is what follows the colon in `--author NAME:DETAIL`."""
        ...


class Judge(Protocol):
    """The verdict: reached by the engine through a process boundary."""

    def screen(
        self, problem: Problem, candidate: Candidate, trials: Sequence[Trial]
    ) -> tuple[Screening, ...]:
        """Return a cheap look per trial, in order: nothing can be kept on one."""
        ...

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        """Return the verdict on one candidate."""
        ...

    def compare(self, problem: Problem, incumbent: Candidate, challenger: Candidate) -> Comparison:
        """Return the paired comparison of two accepted candidates."""
        ...
