"""The reflector: was the diagnosis right, did the change help, what to avoid, what to try."""

from dataclasses import dataclass

from pydantic import Field

from kernelwright.core.frozen import Frozen
from kernelwright.core.verdict import Evaluation
from kernelwright.llm.conversation import Asked, Consultation, consult, read_json
from kernelwright.llm.facts import verdict_text
from kernelwright.llm.questions import Llm
from kernelwright.llm.templates import fenced, render, schema_text

MOST_POINTS = 4


class Reflection(Frozen):
    """What one attempt teaches."""

    diagnosis_was_right: bool | None
    """Whether the kernel waited for what was said; null if the verdict cannot tell."""
    change_helped: bool | None
    """Whether it became faster and stayed right; null if the verdict cannot tell."""
    why: str = Field(min_length=1, max_length=1000)
    """What happened, in one or two sentences."""
    avoid: tuple[str, ...] = Field(default=(), max_length=MOST_POINTS)
    """What not to do again here."""
    try_next: tuple[str, ...] = Field(default=(), max_length=MOST_POINTS)
    """What follows from it."""


@dataclass(frozen=True)
class Attempted:
    """An attempt with its end."""

    diagnosis: str
    """What it worked against, in words."""
    note: str
    """What was tried, in its author's words."""
    change: str
    """Against its first parent, as a unified diff."""
    evaluation: Evaluation
    decision: str
    """Why it was kept or reverted; empty if nothing was decided."""


def reflect(llm: Llm, attempted: Attempted, asked: Asked) -> Consultation[Reflection]:
    """Return what the llm makes of an attempt."""
    prompt = render(
        "reflector",
        {
            "most": str(MOST_POINTS),
            "schema": schema_text(Reflection),
            "diagnosis": attempted.diagnosis or "nothing in particular",
            "note": attempted.note or "no note",
            "change": fenced(attempted.change, "diff"),
            "verdict": verdict_text(attempted.evaluation),
            "decision": attempted.decision or "nothing yet",
        },
    )
    return consult(llm, "reflector", (prompt,), lambda text: read_json(text, Reflection), asked)
