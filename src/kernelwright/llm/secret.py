"""Keys: where they may come from, and a type that cannot be printed, copied or sent.

A key comes from an environment variable or from a file that only its owner can read. A key of OpenAI or Anthropic is
given to no other server: an address of the user's own gets `KERNELWRIGHT_LLM_KEY` or the key file, or none.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, SupportsIndex

from kernelwright.core.errors import LlmKeyFileUnsafe, LlmKeyMissing, NotFound
from kernelwright.core.redact import KEY_FILE

OWN_VARIABLE = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
ANY_VARIABLE = "KERNELWRIGHT_LLM_KEY"
FILE_VARIABLE = KEY_FILE
HIDDEN = "<secret>"
SHORTEST_HIDDEN = 8
"""Shorter keys, such as the `EMPTY` local servers are given, are ordinary words and stay in texts."""
MAX_KEY_BYTES = 4096


class Secret:
    """A key. Every way of writing it down shows `<secret>` or fails; `reveal` is for the request alone."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the key itself."""
        return self._text

    def hide_in(self, text: str) -> str:
        """Return a text without the key."""
        return text.replace(self._text, HIDDEN) if len(self._text) >= SHORTEST_HIDDEN else text

    def __repr__(self) -> str:
        return HIDDEN

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a secret is never copied, pickled or sent")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a secret is never copied, pickled or sent")


def find_key(provider: str, base_url: str | None, environment: Mapping[str, str]) -> Secret | None:
    """Return the key for a server; None if it is one of the user's own and none is given."""
    variables = (ANY_VARIABLE,) if base_url else (OWN_VARIABLE[provider], ANY_VARIABLE)
    for variable in variables:
        if found := environment.get(variable, "").strip():
            return Secret(found)
    if named := environment.get(FILE_VARIABLE, "").strip():
        return read_key_file(Path(named))
    if base_url:
        return None
    raise LlmKeyMissing(provider, OWN_VARIABLE[provider], FILE_VARIABLE)


def read_key_file(path: Path) -> Secret:
    """Return the key in a file that belongs to this user and that nobody else can read."""
    try:
        # The opened file is what is checked: a name can point elsewhere a moment later.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound("Key file", path, f"Check {FILE_VARIABLE}.") from None
    except OSError as error:
        raise LlmKeyFileUnsafe(path, f"it cannot be opened ({error.strerror}), or is a link") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise LlmKeyFileUnsafe(path, "it is no plain file")
        if found.st_uid != os.getuid():
            raise LlmKeyFileUnsafe(path, "it belongs to another user")
        if mode := stat.S_IMODE(found.st_mode) & 0o077:
            raise LlmKeyFileUnsafe(path, f"others may use it (mode bits {mode:03o})")
        text = os.read(descriptor, MAX_KEY_BYTES).decode(errors="replace").strip()
    finally:
        os.close(descriptor)
    if not text or any(character.isspace() or not character.isprintable() for character in text):
        raise LlmKeyFileUnsafe(path, "it does not hold one line with a key")
    return Secret(text)
