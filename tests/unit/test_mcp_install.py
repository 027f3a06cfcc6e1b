"""Telling coding assistants of the server: their files get one entry and lose nothing."""

import json
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kernelwright.cli.mcp.clients import CLIENTS, SERVER, client_named, command_for, merged
from kernelwright.core.errors import BadInput, UnknownName

COMMAND = ["/usr/bin/python3", "-m", "kernelwright", "mcp", "--root", "/project"]
OTHERS = '{\n    "theme": "dark",\n    "%s": {\n        "other": {\n            "command": "x"\n        }\n    }\n}\n'


@pytest.mark.parametrize("name", [name for name, one in CLIENTS.items() if one.syntax == "json"])
def test_a_json_file_keeps_everything_and_gives_it_back(name: str) -> None:
    client = CLIENTS[name]
    before = OTHERS % client.table
    after = merged(client, before, client.entry(COMMAND), Path("config"))
    found = json.loads(after)
    assert (found["theme"], found[client.table]["other"]) == ("dark", {"command": "x"})
    own = found[client.table][SERVER]
    assert own["command"] == (COMMAND if client.joined else COMMAND[0])
    assert own.get("args", COMMAND[1:]) == COMMAND[1:]
    assert merged(client, after, client.entry(COMMAND), Path("config")) == after
    assert merged(client, after, None, Path("config")) == before


def test_codex_keeps_comments_and_the_tables_around_ours() -> None:
    client = CLIENTS["codex"]
    before = 'model = "x" # mine\n\n[mcp_servers.other]\ncommand = "y"\n\n[tools] # last\nweb = true\n'
    after = merged(client, before, client.entry(COMMAND), Path("config.toml"))
    assert after.startswith(before.rstrip("\n"))
    own = tomllib.loads(after)["mcp_servers"][SERVER]
    assert own == {
        "startup_timeout_sec": 30,
        "tool_timeout_sec": 900,
        "command": COMMAND[0],
        "args": COMMAND[1:],
    }
    older = after.replace("\n[tools]", '\n[mcp_servers.kernelwright.env]\nA = "b"\n\n[tools]')
    assert tomllib.loads(merged(client, older, client.entry(COMMAND), Path("c"))) == tomllib.loads(after)
    assert merged(client, after, None, Path("config.toml")) == before


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("vscode", '{\n  // my servers\n  "servers": {}\n}', "is not plain JSON"),
        ("cursor", "[]", "has no table 'mcpServers'"),
        ("cursor", '{"mcpServers": 3}', "has no table 'mcpServers'"),
        ("codex", "model = = 3", "is not valid TOML"),
        ("codex", 'mcp_servers = { kernelwright = { command = "old" } }', "cannot be changed safely"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_left_alone(name: str, text: str, told: str) -> None:
    client = client_named(name)
    with pytest.raises(BadInput, match=told) as caught:
        merged(client, text, client.entry(COMMAND), Path("config"))
    assert "--print shows it" in str(caught.value)


def test_an_unknown_assistant_is_told_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'cursor'"):
        client_named("curser")


def test_the_server_is_started_by_the_interpreter_that_has_it(tmp_path: Path) -> None:
    assert "--allow-packages" in command_for(tmp_path, None, allow_packages=True)
    words = command_for(tmp_path, tmp_path / "home")
    assert "--allow-packages" not in words
    assert words == [sys.executable, *COMMAND[1:5], str(tmp_path), "--home", str(tmp_path / "home")]


def cli(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
    command = [sys.executable, "-m", "kernelwright", "mcp", "install", *words]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


def test_the_verb_writes_prints_and_takes_back(tmp_path: Path) -> None:
    file = tmp_path / ".codeium" / "windsurf" / "mcp_config.json"
    printed = cli(tmp_path, "--client", "windsurf", "--print")
    assert (printed.returncode, file.exists()) == (0, False), printed.stderr
    assert json.loads(printed.stdout)["mcpServers"][SERVER]["args"][-1] == str(tmp_path)
    first = json.loads(cli(tmp_path, "--client", "windsurf", "--json").stdout)
    assert (first["changed"], first["file"], first["text"]) == (True, str(file), printed.stdout)
    file.chmod(0o600)  # it may hold keys of other servers
    again = cli(tmp_path, "--client", "windsurf")
    assert again.stdout == f"{file} already names the server\n"
    gone = cli(tmp_path, "--client", "windsurf", "--uninstall")
    assert "no longer names the server; restart Windsurf" in gone.stdout
    assert json.loads(file.read_text()) == {"mcpServers": {}}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]  # no draft is left behind


def test_a_missing_extra_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.modules['mcp'] = None\n"
        "import kernelwright.cli.main as m\nsys.argv = ['kernelwright', 'mcp']\nm.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.strip().splitlines() == [
        "error: The package 'mcp' is not installed; `kernelwright mcp` needs it. "
        "Install it: pip install 'kernelwright[mcp]'."
    ]
