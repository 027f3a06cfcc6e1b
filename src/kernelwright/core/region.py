"""A region of a user's model as a problem: what is known of it, and the one self-contained file it is written to.

The file is KernelBench's form (`Model`, `get_inputs`, `get_init_inputs`) and runs by itself. `PROBLEM` in it holds the
rest as JSON. It is read back as text; nothing in it is executed for that.
"""

import ast
import re

from pydantic import Field, ValidationError

from kernelwright.core.captured import CapturedRegion
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.errors import BadInput
from kernelwright.core.frozen import Frozen, digest
from kernelwright.core.problem import Problem

GRAPH = "graph"
MARK = "PROBLEM = r'''"
HELP = "Write it anew with `kernelwright extract`."
MAIN = """

def main():
    with torch.no_grad():
        answer = Model()(*get_inputs())
    for value in answer if isinstance(answer, tuple) else (answer,):
        print(tuple(value.shape), value.dtype)


if __name__ == "__main__":
    main()
"""


class MadeInput(Frozen):
    """How an input of the op's case is made from an input of the region."""

    name: str
    """Name in the op's signature."""
    place: int
    """Which input of the region."""
    steps: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Tensor methods with their integers, in order."""


class Extracted(Frozen):
    """One problem of a model."""

    op: str
    """The op it was recognised as, or `graph`."""
    case: Case
    """The op's case; for `graph` the region's own."""
    own_case: Case
    """What the region itself is called with."""
    made: tuple[MadeInput, ...] = ()
    """How the op's inputs are made from the region's."""
    count: int
    """How often it occurs in the model."""
    chosen: int
    """How many of these belong to the disjoint set that would be replaced."""
    gain_bytes: int
    """Estimate of what one kernel saves over one per operation, at one place."""
    where: str
    """File and line of the model's code."""
    constants: tuple[int, ...] = ()
    """Inputs of the region that are weights of the model."""
    aliases: tuple[tuple[int, int], ...] = ()
    """Pairs of the region's inputs that share memory."""
    rejected: str = ""
    """The op it is written like, though its reference gives other numbers."""
    source: str
    """The region as Python: `Model`, `get_inputs`, `get_init_inputs`."""
    kernels: dict[str, str] = Field(default_factory=dict)
    """For op `graph` plain kernels of it, by language; they stay outside the file."""
    not_plain: str = ""
    """Why a language is missing there."""
    flops: int = 0
    """For op `graph` what its operations compute at one place, where that was asked for; outside the file too."""

    @property
    def name(self) -> str:
        """Return a name that is good for a file: op, sizes of the first input, type, and a few digits of its text."""
        sizes = "x".join(map(str, self.case.inputs[0].shape)) or "scalar"
        return f"{self.op}_{sizes}_{self.case.dtype.value}_{digest(self.source)[:6]}"

    @property
    def captured(self) -> CapturedRegion | None:
        """Return the text and the kernels of what has no op of its own."""
        if self.op != GRAPH:
            return None
        return CapturedRegion(source=self.source, kernels=self.kernels, not_plain=self.not_plain)

    def problem(self, device: Device, path: str) -> Problem:
        """Return the problem on a device; `path` is where its file lies, which is the reference of a `graph`."""
        reference = f"file:{path}#{digest(written(self))}" if self.op == GRAPH else None
        return Problem(op=self.op, cases=(self.case,), device=device, reference=reference, count=self.count)


def written(one: Extracted) -> str:
    """Return the file of a problem."""
    title = f'"""{one.name}: {one.count} times in the model; {one.where or "made by the framework"}."""\n\n'
    told = one.model_dump_json(exclude={"source", "kernels", "not_plain", "flops"})
    return f"{title}{one.source}\n\n{MARK}\n{told}\n'''\n{MAIN}"


def kernelbench(one: Extracted) -> str:
    """Return the file in KernelBench's form alone."""
    return f'"""{one.name}: a region of a model, as its reference."""\n\n{one.source}'


def read_back(text: str, path: str) -> Extracted:
    """Return the problem of a file that `written` made."""
    found = re.fullmatch(
        r'"""[^\n]*"""\n\n(?P<source>.*)\n\nPROBLEM = r\'\'\'\n(?P<told>.*)\n\'\'\'\n.*', text, re.S
    )
    if found is None:
        raise BadInput(path, "it holds no PROBLEM of a captured region", HELP)
    try:
        ast.parse(found["source"])
        told = Extracted.model_validate_json(_with_source(found["told"], found["source"]))
    except (SyntaxError, ValidationError, ValueError) as error:
        words = " ".join(str(error).split())[:200]
        raise BadInput(path, f"its PROBLEM cannot be read: {words}", HELP) from error
    if written(told) != text:
        raise BadInput(path, "it was changed since it was written", HELP)
    return told


def _with_source(told: str, source: str) -> str:
    import json

    return json.dumps(json.loads(told) | {"source": source})
