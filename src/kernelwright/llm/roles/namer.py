"""The namer of lessons: the llm words the claim; effect, evidence and scope values come from what was measured."""

from pydantic import Field

from kernelwright.core.foreign import fenced, in_a_line
from kernelwright.core.frozen import Frozen
from kernelwright.core.lesson import Lesson
from kernelwright.core.thinking import Consultation, Measured
from kernelwright.llm.conversation import Asked, consult, read_json
from kernelwright.llm.questions import Llm
from kernelwright.llm.templates import render, schema_text


class Claim(Frozen):
    """One sentence and where it holds."""

    claim: str = Field(min_length=10, max_length=300)
    """What to do or not to do, for a later author."""
    only_this_op: bool = True
    """Whether it holds for this op alone."""
    only_this_backend: bool = True
    """Whether it holds for this language alone."""
    only_this_arch: bool = True
    """Whether it holds for this architecture alone."""


def name(llm: Llm, measured: Measured, asked: Asked) -> Consultation[Lesson]:
    """Return the lesson of a result."""
    effect = f" Old time over new time: {measured.ratio:.3f}." if measured.ratio is not None else ""
    prompt = render(
        "namer",
        {
            "schema": schema_text(Claim),
            "op": measured.op,
            "backend": measured.backend,
            "arch": measured.arch,
            "bottleneck": measured.bottleneck or "unknown",
            "note": in_a_line(measured.note) or "no note",
            "change": fenced(measured.change, "diff"),
            "measured": in_a_line(measured.outcome) + effect,
        },
    )

    def read(text: str) -> Lesson:
        found = read_json(text, Claim)
        return Lesson(
            claim=found.claim,
            op=measured.op if found.only_this_op else None,
            backend=measured.backend if found.only_this_backend else None,
            arch=measured.arch if found.only_this_arch else None,
            bottleneck=measured.bottleneck,
            ratio=measured.ratio,
            evaluations=measured.evaluations,
        )

    return consult(llm, "namer", (prompt,), read, asked.about("-".join(measured.evaluations), Claim))
