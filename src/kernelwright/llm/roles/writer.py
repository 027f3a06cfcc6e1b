"""The writer: one operator that drafts, debugs, improves and fuses, by what the brief holds; or only chooses values."""

from pydantic import Field, model_validator

from kernelwright.core.brief import Brief, Proposal
from kernelwright.core.candidate import Author, ParamChoice, ParamValue
from kernelwright.core.foreign import fenced
from kernelwright.core.frozen import Frozen, canonical_json, digest
from kernelwright.core.normal import key_of
from kernelwright.core.plan_language import PlanFault, parse_params
from kernelwright.core.thinking import Consultation
from kernelwright.llm.conversation import Asked, BadReply, consult, read_json
from kernelwright.llm.edits import Edit, apply_edits
from kernelwright.llm.facts import Length, facts_of, looks_text
from kernelwright.llm.questions import Llm
from kernelwright.llm.templates import render, schema_text

MOST_EDITS = 64
MOST_SETS = 4
MAX_SOURCE = 1 << 20


class Written(Frozen):
    """A kernel, whole or as edits of the first parent."""

    note: str = Field(min_length=1, max_length=1000)
    """One sentence: what is tried and why."""
    source: str | None = Field(default=None, min_length=1, max_length=MAX_SOURCE)
    """The whole file."""
    edits: tuple[Edit, ...] = Field(default=(), max_length=MOST_EDITS)
    """Changes to the first parent."""
    backend: str | None = None
    """Language of the file; the first parent's if left out."""

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> "Written":
        if (self.source is None) == (not self.edits):
            raise ValueError("give either `source` or `edits`")
        return self


class Values(Frozen):
    """Values for the parameters of the first parent."""

    note: str = Field(min_length=1, max_length=1000)
    """One sentence: what is expected and why."""
    sets: tuple[dict[str, ParamValue], ...] = Field(min_length=1, max_length=MOST_SETS)
    """Value by name, the most promising set first."""


def write(llm: Llm, brief: Brief, asked: Asked) -> Consultation[tuple[Proposal, ...]]:
    """Return a kernel the llm wrote, as a proposal the tree does not hold."""
    schema = schema_text(Written)
    prompts = [render("writer", {"schema": schema, "facts": facts_of(brief, length)}) for length in Length]

    def read(text: str) -> tuple[Proposal, ...]:
        found = read_json(text, Written)
        return _new((_proposal(found, brief, llm.spec.model),), brief)

    return consult(llm, "writer", prompts, read, asked.about(topic_of(brief), Written))


def choose_values(llm: Llm, brief: Brief, asked: Asked) -> Consultation[tuple[Proposal, ...]]:
    """Return the first parent with values the llm chose; no code is taken."""
    params = _params_of(brief)
    if not params:
        return Consultation(None, "there is no source with values to choose", (), ())
    listed = fenced("\n".join(f"{name}: {values}" for name, values in params.items()))
    looks = fenced(looks_text(brief) or "none")
    common = {"schema": schema_text(Values), "most": str(MOST_SETS), "params": listed, "looks": looks}
    prompts = [render("params", {**common, "facts": facts_of(brief, length)}) for length in Length]

    def read(text: str) -> tuple[Proposal, ...]:
        found = read_json(text, Values)
        return _new(tuple(_chosen(one, found.note, brief, llm.spec.model) for one in found.sets), brief)

    return consult(llm, "writer", prompts, read, asked.about(topic_of(brief), Values))


def topic_of(brief: Brief) -> str:
    """Return what a brief asks for, whatever was measured: two briefs of one expansion have the same."""
    # Not the problem's own hash: a replay may run on another device.
    about = [brief.problem.op, [case.hash for case in brief.problem.cases]]
    parents = [parent.hash for parent in brief.parents]
    return digest(canonical_json([about, parents, brief.memory.value, brief.diagnosis, brief.hint]))


def _proposal(found: Written, brief: Brief, model: str) -> Proposal:
    parent = brief.parents[0] if brief.parents else None
    source = found.source
    if source is None:
        if parent is None:
            raise BadReply("there is no parent to edit; give `source`")
        source = apply_edits(parent.source, found.edits)
    backend = found.backend or (parent.backend if parent else None)
    if backend is None:
        raise BadReply("there is no parent; name the language in `backend`")
    try:
        return Proposal(source=source, backend=backend, author=_author(model), note=found.note)
    except ValueError:
        raise BadReply("the source holds characters no file can hold") from None


def _params_of(brief: Brief) -> dict[str, list[ParamValue]]:
    try:
        return parse_params(brief.parents[0].source) if brief.parents else {}
    except PlanFault:
        return {}


def _chosen(values: dict[str, ParamValue], note: str, brief: Brief, model: str) -> Proposal:
    parent, params = brief.parents[0], _params_of(brief)
    for name, value in values.items():
        if name not in params:
            raise BadReply(f"there is no parameter {name!r}; there are {', '.join(params)}")
        # `True == 1`: without the type a switch would pass for a count.
        if not any(value == one and type(value) is type(one) for one in params[name]):
            raise BadReply(f"{name} cannot be {value!r}; it is one of {params[name]}")
    first = {name: listed[0] for name, listed in params.items()}
    whole = {**first, **parent.choices[-1].values, **values}
    return Proposal(
        source=parent.source,
        backend=parent.backend,
        author=_author(model),
        note=note,
        choices=(ParamChoice(values=whole),),
    )


def _new(proposals: tuple[Proposal, ...], brief: Brief) -> tuple[Proposal, ...]:
    """Return the proposals the tree does not hold; none left is a complaint."""
    held = {*brief.known, *(key_of(parent) for parent in brief.parents)}
    fresh: dict[str, Proposal] = {}
    for one in proposals:
        if (key := key_of(one.candidate(brief.problem))) not in held:
            fresh.setdefault(key, one)
    if not fresh:
        raise BadReply("this very kernel was judged before; propose another one")
    return tuple(fresh.values())


def _author(model: str) -> Author:
    return Author(name="llm", detail=model)
