"""Where coding assistants keep their MCP servers, and in which form; a new assistant is one more entry."""

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kernelwright.core.errors import BadInput, UnknownName

SERVER = "kernelwright"
"""What an assistant calls us."""
TOOL_TIMEOUT_S = 900
"""A verdict takes a minute, a wait up to ten: where an assistant would give up sooner, it is told."""


class Syntax(StrEnum):
    """In which language a configuration is written."""

    JSON = "json"
    TOML = "toml"


@dataclass(frozen=True)
class Client:
    """One coding assistant."""

    title: str
    where: str
    """Its file: below the project, or below the user's folder if it begins with `~`."""
    table: str = "mcpServers"
    """The key under which servers stand."""
    extra: Mapping[str, object] | None = None
    """What an entry has besides command and arguments."""
    syntax: Syntax = Syntax.JSON
    joined: bool = False
    """Whether command and arguments are one list."""

    def path(self, project: Path, environment: Mapping[str, str]) -> Path:
        """Return the file for a project and a user."""
        if not self.where.startswith("~"):
            return project / self.where
        user = Path(environment.get("HOME") or Path.home())
        return user / self.where.removeprefix("~/")

    def entry(self, command: list[str]) -> dict[str, object]:
        """Return what the file says of our server."""
        if self.joined:
            return {**(self.extra or {}), "command": command}
        return {**(self.extra or {}), "command": command[0], "args": command[1:]}


def _desktop(mac: str, other: str) -> str:
    return mac if sys.platform == "darwin" else other


CLIENTS: dict[str, Client] = {
    "claude-code": Client("Claude Code", ".mcp.json", extra={"type": "stdio"}),
    "claude-desktop": Client(
        "Claude Desktop",
        _desktop(
            "~/Library/Application Support/Claude/claude_desktop_config.json",
            "~/.config/Claude/claude_desktop_config.json",
        ),
    ),
    "codex": Client(
        "Codex",
        "~/.codex/config.toml",
        table="mcp_servers",
        extra={"startup_timeout_sec": 30, "tool_timeout_sec": TOOL_TIMEOUT_S},
        syntax=Syntax.TOML,
    ),
    "copilot-cli": Client(
        "Copilot CLI", "~/.copilot/mcp-config.json", extra={"type": "local", "tools": ["*"]}
    ),
    "cursor": Client("Cursor", ".cursor/mcp.json"),
    "gemini-cli": Client("Gemini CLI", ".gemini/settings.json", extra={"timeout": 1000 * TOOL_TIMEOUT_S}),
    "opencode": Client(
        "opencode", "opencode.json", table="mcp", extra={"type": "local", "enabled": True}, joined=True
    ),
    "vscode": Client("VS Code", ".vscode/mcp.json", table="servers", extra={"type": "stdio"}),
    "windsurf": Client("Windsurf", "~/.codeium/windsurf/mcp_config.json"),
}


def client_named(name: str) -> Client:
    """Return an assistant by its name."""
    if name not in CLIENTS:
        raise UnknownName("client", name, list(CLIENTS))
    return CLIENTS[name]


def command_for(root: Path, home: Path | None, allow_packages: bool = False) -> list[str]:
    """Return the command that serves a project: with this very interpreter, for an assistant may have another one."""
    words = [sys.executable, "-m", "kernelwright", "mcp", "--root", str(root.resolve())]
    words += ["--allow-packages"] if allow_packages else []
    return words + (["--home", str(home.resolve())] if home is not None else [])


def merged(client: Client, text: str, entry: Mapping[str, object] | None, where: Path) -> str:
    """Return a configuration with our entry in it, or without it if there is none; all else stays as it is."""
    change = _merged_toml if client.syntax is Syntax.TOML else _merged_json
    return change(client, text, entry, where)


def _merged_json(client: Client, text: str, entry: Mapping[str, object] | None, where: Path) -> str:
    try:
        # `Any`: whatever the user wrote; only our own two levels are looked at.
        found: Any = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise _by_hand(where, f"is not plain JSON ({error})") from error
    servers = found.get(client.table, {}) if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise _by_hand(where, f"has no table {client.table!r}")
    servers = {name: one for name, one in servers.items() if name != SERVER}
    if entry is not None:
        servers[SERVER] = dict(entry)
    if servers or client.table in found:
        found[client.table] = servers
    return json.dumps(found, indent=_indent(text), ensure_ascii=False) + "\n"


def _indent(text: str) -> int | str:
    """Return how a JSON file is indented."""
    first = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return first[1] if first else 2


def _merged_toml(client: Client, text: str, entry: Mapping[str, object] | None, where: Path) -> str:
    """Change the lines of our own table and no other: comments and order of the rest are the user's."""
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _by_hand(where, f"is not valid TOML ({error})") from error
    wanted = {name: one for name, one in before.get(client.table, {}).items() if name != SERVER}
    if entry is not None:
        wanted[SERVER] = dict(entry)
    kept = _without_table(text, f"{client.table}.{SERVER}").rstrip("\n")
    block = "" if entry is None else _toml_table(f"{client.table}.{SERVER}", entry)
    after = "\n\n".join(part for part in (kept, block) if part) + "\n"
    try:
        found = tomllib.loads(after)
    except tomllib.TOMLDecodeError:
        found = {}
    rest = {key: one for key, one in before.items() if key != client.table}
    if found.get(client.table, {}) != wanted or {k: v for k, v in found.items() if k != client.table} != rest:
        raise _by_hand(where, f"writes {client.table!r} in a way that cannot be changed safely")
    return after


def _without_table(text: str, name: str) -> str:
    """Return a TOML text without the lines of one table and of those inside it."""
    kept, inside = [], False
    own = re.compile(rf"\s*\[{re.escape(name)}(?:\..*)?\]\s*(?:#.*)?")
    for line in text.splitlines():
        if re.match(r"\s*\[", line):
            inside = own.fullmatch(line) is not None
        if not inside:
            kept.append(line)
    return "\n".join(kept)


def _toml_table(name: str, entry: Mapping[str, object]) -> str:
    # JSON's texts, numbers and lists of texts are TOML's too.
    return "\n".join([f"[{name}]", *(f"{key} = {json.dumps(one)}" for key, one in entry.items())])


def _by_hand(where: Path, problem: str) -> BadInput:
    return BadInput(str(where), problem, "Add the entry by hand: --print shows it.")
