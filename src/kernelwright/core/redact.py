"""What must not leave a machine in a text: keys, passwords, home folders, the names of people and machines."""

import re
from collections.abc import Iterable, Mapping

SECRET, PERSON = "<secret>", "<person>"
SHORTEST_SECRET, SHORTEST_NAME = 8, 4
"""Shorter values are ordinary words: taking them out would spoil the text and hide nothing."""
PLAIN_NAMES = frozenset(
    {"root", "user", "users", "admin", "home", "ubuntu", "debian", "runner", "nobody", "localhost"}
)
"""Names of nobody in particular."""
SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
KEY_FILE = "KERNELWRIGHT_LLM_KEY_FILE"
"""Variable that names the file with the key of a language model."""
FILE_VARIABLE = re.compile(r"_(?:FILE|PATH|DIR)$", re.IGNORECASE)
"""Variables that name where a key lies, not the key."""

KEYS = (
    r"\bsk-(?:ant-|proj-|or-)?[A-Za-z0-9_-]{16,}",
    r"\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bglpat-[A-Za-z0-9_-]{16,}",
    r"\bhf_[A-Za-z0-9]{20,}",
    r"\bxox[abposr]-[A-Za-z0-9-]{10,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\bAIza[0-9A-Za-z_-]{30,}",
    r"\bnpm_[A-Za-z0-9]{20,}",
    r"\bpypi-[A-Za-z0-9_-]{20,}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
)
"""What the keys of common services look like."""
KEY = re.compile("|".join(KEYS), re.DOTALL)
BEARER = re.compile(r"(?i)\b(bearer\s+|x-api-key:\s*)[A-Za-z0-9._~+/=-]{8,}")
ASSIGNED = re.compile(
    r"""(?ix) \b ([a-z_-]*(?:api[_-]?key|secret|token|passw(?:or)?d)[a-z_-]*) (["']?\s*[:=]\s*)
        (["']) (?!<secret>) [^"'\s]{8,} \3"""
)
IN_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]+:)[^\s/@]+(@)", re.IGNORECASE)
HOME = re.compile(
    r"(?<![\w.])(?:/(?:home|Users)/[^/\s\"'`:;,)\]}<>]+|/root(?![\w.-])|[A-Za-z]:\\Users\\[^\\\s\"']+)"
)


def secrets_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables that are named like keys, the longest first."""
    found = {
        value.strip()
        for name, value in environment.items()
        if SECRET_VARIABLE.search(name) and not FILE_VARIABLE.search(name)
    }
    return tuple(sorted((one for one in found if len(one) >= SHORTEST_SECRET), key=len, reverse=True))


def without_keys(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without the secrets that are known, and without what can only be a key."""
    for one in secrets:
        text = text.replace(one, SECRET)
    text = KEY.sub(SECRET, text)
    text = BEARER.sub(rf"\1{SECRET}", text)
    return IN_ADDRESS.sub(rf"\1{SECRET}\2", text)


def without_passwords(text: str) -> str:
    """Return a text without strings that something named like a key or a password is set to."""
    return ASSIGNED.sub(rf"\1\2\3{SECRET}\3", text)


def without_people(text: str, homes: Iterable[str] = (), names: Iterable[str] = ()) -> str:
    """Return a text without home folders, which become `~`, and without the names of people and machines."""
    for one in sorted({home.rstrip("/") for home in homes if len(home) > 1}, key=len, reverse=True):
        text = re.sub(rf"{re.escape(one)}(?![\w.-])", "~", text)
    text = HOME.sub("~", text)
    for one in sorted(names, key=len, reverse=True):
        if len(one) >= SHORTEST_NAME and one.lower() not in PLAIN_NAMES:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(one)}(?![A-Za-z0-9])", PERSON, text)
    return text
