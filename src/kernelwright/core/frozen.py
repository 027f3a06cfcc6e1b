"""What all nouns have in common: they are frozen, refuse unknown keys, and their content is their identity."""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


def canonical_json(value: object) -> str:
    """Return the one spelling of a JSON value: keys sorted, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(text: str | bytes) -> str:
    """Return the SHA-256 of a text as 64 hex digits."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


class Frozen(BaseModel):
    """Base of everything that crosses a process, a file or an llm."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        ser_json_bytes="base64",
    )


class Noun(Frozen):
    """A frozen value identified by the hash of its content."""

    def identity(self) -> object:
        """Return the JSON value that makes this noun itself; a noun may leave out what merely rides along."""
        return self.model_dump(mode="json")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; a changed one computes its own hash."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("hash", None)
        return copied

    @cached_property
    def hash(self) -> str:
        """Return the content hash, computed once."""
        return digest(f"{type(self).__name__}:{canonical_json(self.identity())}")
