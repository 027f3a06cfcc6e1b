"""Prompts: texts in `prompts/*.md` with `{{names}}`, filled in strictly: every name given, every name used.

What stands above the line `<!-- brief -->` is the same for every question and goes out as the system's words.
"""

import json
import re
from collections.abc import Mapping
from importlib import resources

from pydantic import BaseModel

from kernelwright.core.foreign import fenced
from kernelwright.llm.questions import Message

NAME = re.compile(r"\{\{([a-z_]+)\}\}")
DIVIDER = "<!-- brief -->\n"


def render(name: str, values: Mapping[str, str]) -> tuple[Message, ...]:
    """Return the messages of a prompt."""
    template = resources.files("kernelwright.llm").joinpath(f"prompts/{name}.md").read_text(encoding="utf-8")
    system, divider, user = template.partition(DIVIDER)
    wanted = set(NAME.findall(template))
    if not divider or wanted != set(values):
        odd = ", ".join(sorted(wanted ^ set(values))) or "no divider"
        raise ValueError(f"prompt {name!r} and what it is given do not agree: {odd}")
    return Message("system", fill(system, values).strip()), Message("user", fill(user, values).strip())


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return a text with its names replaced, in one pass: a value that looks like a name stays as it is."""
    return NAME.sub(lambda found: values[found[1]], template)


def section(title: str, body: str) -> str:
    """Return a titled part of a prompt, nothing if it is empty."""
    return f"## {title}\n\n{body.strip()}\n" if body.strip() else ""


def schema_text(schema: type[BaseModel]) -> str:
    """Return a schema as an llm is shown it."""
    return fenced(json.dumps(schema.model_json_schema(), indent=1), "json")
