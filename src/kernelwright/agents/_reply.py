"""What an outside author may answer, as JSON: checked field by field, and never trusted to name its own author."""

import json

from pydantic import Field, ValidationError

from kernelwright.core.brief import Answer, Proposal
from kernelwright.core.candidate import Author, ParamChoice
from kernelwright.core.frozen import Frozen

MAX_PROPOSALS = 16


class Draft(Frozen):
    """One proposal of an outside author."""

    source: str = Field(min_length=1)
    """The whole source text."""
    backend: str = Field(min_length=1)
    """Its language."""
    note: str = Field(default="", max_length=4000)
    """What is tried and why."""
    choices: tuple[ParamChoice, ...] = ()
    """Parameters per case, the rule for unseen shapes last; none means the first values of `PARAMS`."""


class Reply(Frozen):
    """The answer of an outside author."""

    proposals: tuple[Draft, ...] = Field(default=(), max_length=MAX_PROPOSALS)
    """Candidates it wants judged."""
    reason: str = Field(default="", max_length=4000)
    """Why there is none."""


def read_reply(text: str, author: Author) -> Answer:
    """Return the answer in a text: a reply or a single draft; anything else is no proposal, and the reason says why."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Answer(reason=f"the answer is no JSON: {_short(error)}")
    if isinstance(found, dict) and "source" in found:
        found = {"proposals": [found]}
    try:
        # From the text of the parsed value: only so do lists count as tuples and numbers keep their kind.
        reply = Reply.model_validate_json(json.dumps(found))
        proposals = tuple(
            Proposal(
                source=draft.source,
                backend=draft.backend,
                author=author,
                note=draft.note,
                choices=draft.choices,
            )
            for draft in reply.proposals
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Answer(
            reason=f"the answer is no proposal: {where or 'the whole of it'}: {_short(first['msg'])}"
        )
    except ValueError as error:
        return Answer(reason=f"the answer is no proposal: {_short(error)}")
    return Answer(proposals=proposals, reason=reply.reason or ("" if proposals else "it has no proposal"))


def _short(words: object) -> str:
    return " ".join(str(words).split())[:200]
