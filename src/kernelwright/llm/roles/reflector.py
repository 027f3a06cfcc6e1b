"""The reflector: was the diagnosis right, did the change help, what to avoid, what to try."""

from kernelwright.core.foreign import fenced, in_a_line
from kernelwright.core.thinking import MOST_POINTS, Attempted, Consultation, Reflection
from kernelwright.llm.conversation import Asked, consult, read_json
from kernelwright.llm.facts import verdict_text
from kernelwright.llm.questions import Llm
from kernelwright.llm.templates import render, schema_text


def reflect(llm: Llm, attempted: Attempted, asked: Asked) -> Consultation[Reflection]:
    """Return what the llm makes of an attempt."""
    prompt = render(
        "reflector",
        {
            "most": str(MOST_POINTS),
            "schema": schema_text(Reflection),
            "diagnosis": in_a_line(attempted.diagnosis) or "nothing in particular",
            "note": in_a_line(attempted.note) or "no note",
            "change": fenced(attempted.change, "diff"),
            "verdict": verdict_text(attempted.evaluation),
            "decision": in_a_line(attempted.decision) or "nothing yet",
        },
    )
    about = asked.about(attempted.evaluation.candidate_hash, Reflection)
    return consult(llm, "reflector", (prompt,), lambda text: read_json(text, Reflection), about)
