"""The secrets of this machine that are known: what no text may hold that leaves it."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kernelwright.core.redact import KEY_FILE, SHORTEST_SECRET, secrets_in

MOST_BYTES = 4096
"""A file with a key holds no more."""


def known_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables that are named like keys and the key in the key file, the longest first.

    A key file that cannot be read hides nothing: no run of this user has used a key of it.
    """
    found = {*secrets_in(environment)}
    if named := environment.get(KEY_FILE, "").strip():
        with suppress(OSError), Path(named).open("rb") as file:
            found.add(file.read(MOST_BYTES).decode(errors="replace").strip())
    return tuple(sorted((one for one in found if len(one) >= SHORTEST_SECRET), key=len, reverse=True))
