"""A user's reference file as the baseline of its own problem: the module itself, as eager runs it."""

from pathlib import Path

from kernelwright.core.candidate import Author, Candidate, Origin
from kernelwright.core.case import Case
from kernelwright.core.errors import BadInput
from kernelwright.core.frozen import digest
from kernelwright.core.modules import read
from kernelwright.core.problem import Problem

PREFIX = "file:"
ADAPTER = '''

MODEL = Model(*get_init_inputs())
STATE = {state!r}
PLACES = {places!r}


def slot(key):
    """Return the dictionary and the name under which an entry of the state is kept."""
    owner, _, leaf = key.rpartition(".")
    module = MODEL.get_submodule(owner)
    return (module._parameters if leaf in module._parameters else module._buffers), leaf


SLOTS = [slot(key) for key in STATE]


def kernel_fn(*given):
    """Return the module's own answer to the tensors and numbers of a case, in its order."""
    for (home, leaf), value in zip(SLOTS, (given[place] for place in {state_places!r})):
        home[leaf] = value
    return MODEL(*[given[place] for place in PLACES])
'''


def own_baseline(problem: Problem) -> Candidate | None:
    """Return a problem's own reference as its eager baseline; None if the reference is no file of the user's."""
    if problem.reference is None or not problem.reference.startswith(PREFIX):
        return None
    path, _, expected = problem.reference.removeprefix(PREFIX).rpartition("#")
    text = problem.captured.source if problem.captured else Path(path).read_text()
    if digest(text) != expected:
        raise BadInput(path, "it has changed since the problem was made", "Make the problem again.")
    return Candidate(
        op=problem.op,
        backend="eager",
        source=text + _adapter(problem.cases[0]),
        origin=Origin.BASELINE,
        author=Author(name="baseline", detail=Path(path).name),
        note="the baseline to beat",
    )


def _adapter(case: Case) -> str:
    """Return what calls the module with the tensors and numbers of its case."""
    names = [*(spec.name for spec in case.inputs), *case.scalars]
    found = [read(name) for name in names]
    arguments = [place for place, one in enumerate(found) if not one.is_state]
    return ADAPTER.format(
        state=[one.key for one in found if one.is_state],
        state_places=[place for place, one in enumerate(found) if one.is_state],
        places=sorted(arguments, key=lambda place: int(found[place].key)),
    )
