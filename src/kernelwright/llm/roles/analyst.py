"""The analyst: from numbers to diagnoses, in the schema of the rules and held to the same check of its evidence."""

from pydantic import Field

from kernelwright.core.diagnosis import Diagnosis, check_evidence
from kernelwright.core.foreign import fenced
from kernelwright.core.frozen import Frozen
from kernelwright.core.thinking import Consultation, Profiled
from kernelwright.llm.conversation import Asked, BadReply, consult, read_json
from kernelwright.llm.facts import FENCES, device_text
from kernelwright.llm.questions import Llm
from kernelwright.llm.templates import render, schema_text

MOST_DIAGNOSES = 8


class Findings(Frozen):
    """What a kernel waits for, the costliest first."""

    diagnoses: tuple[Diagnosis, ...] = Field(min_length=1, max_length=MOST_DIAGNOSES)


def analyse(llm: Llm, profiled: Profiled, wanted: int, asked: Asked) -> Consultation[tuple[Diagnosis, ...]]:
    """Return as many distinct diagnoses as wanted, their evidence checked against the metrics."""
    table = "\n".join(
        f"{one.name} = {one.value!r} {one.unit} ({one.source.value})" for one in profiled.metrics
    )
    prompt = render(
        "analyst",
        {
            "wanted": str(wanted),
            "schema": schema_text(Findings),
            "device": device_text(profiled.device),
            "source": fenced(profiled.candidate.source, FENCES.get(profiled.candidate.backend, "")),
            "case": profiled.case,
            "metrics": fenced(table),
            "cards": fenced("\n".join(f"{name}: {text}" for name, text in profiled.cards.items())),
        },
    )

    def read(text: str) -> tuple[Diagnosis, ...]:
        return _checked(read_json(text, Findings).diagnoses, profiled, wanted)

    return consult(llm, "analyst", (prompt,), read, asked.about(profiled.candidate.hash, Findings))


def _checked(found: tuple[Diagnosis, ...], profiled: Profiled, wanted: int) -> tuple[Diagnosis, ...]:
    faults = [fault for one in found for fault in check_evidence(one, profiled.metrics)]
    faults += [
        f"there is no technique card {name!r}"
        for one in found
        for name in one.prescriptions
        if name not in profiled.cards
    ]
    if len({one.category for one in found}) != len(found):
        faults.append("two diagnoses have the same category")
    if len(found) != wanted:
        faults.append(f"{wanted} diagnoses were asked for, {len(found)} given")
    if faults:
        raise BadReply("; ".join(dict.fromkeys(faults)))
    return tuple(one.model_copy(update={"case": profiled.case}) for one in found)
