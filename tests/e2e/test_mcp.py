"""A coding assistant's side of the server: the SDK's own client optimises one op over standard input and output."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

import kernelwright
from kernelwright.store.chain import Sound
from kernelwright.store.journal import Journal

LABEL = "rmsnorm 64x64 fp32"
KEY = "sk-ant-planted0123456789abcdef"
TOOLS = {
    *(
        "profile",
        "list_problems",
        "get_brief",
        "judge_candidate",
        "submit",
        "history",
        "lessons",
        "playbook_search",
    ),
    *("search_kernels", "disassembly", "status", "start_run", "resume_run", "stop_run"),
}
# Two pairs prove nothing: every decision is quick, and the baseline keeps its title.
TINY = {
    "op": "rmsnorm",
    "shape": ["64x64 fp32"],
    "author": "none",
    "budget": "60s",
    "max_pairs": 2,
    "threads": 1,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, calibrated: Callable[[Path], Path]) -> Path:
    """Return a project whose settings keep judging short."""
    place = tmp_path_factory.mktemp("project")
    calibrated(place / "home")
    (place / "kernelwright.toml").write_text("hidden_shapes = 0\nthreads = 1\n")
    return place


@asynccontextmanager
async def assistant(place: Path) -> AsyncIterator[Client]:
    """Start the server as an assistant does, with a key in its environment that must not come out again."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "kernelwright", "mcp", "--root", str(place), "--home", str(place / "home")],
        env={"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": KEY, "PYTHONPATH": str(package_root())},
        cwd=place,
    )
    with (place / "server.log").open("a") as log:
        async with Client(stdio_client(server, errlog=log)) as client:
            yield client


def package_root() -> Path:
    return Path(kernelwright.__file__).parents[1]


def drive(place: Path, story: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with assistant(place) as client:
            await story(client)

    anyio.run(whole)


async def ask(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    """Return the answer of a tool, which must not be a failure."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert KEY not in json.dumps(result.structured_content)
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: object) -> tuple[str, str]:
    """Return kind and message of a failure."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    assert result.structured_content.keys() == {"error", "message"}
    assert "Traceback" not in result.structured_content["message"]
    return result.structured_content["error"], result.structured_content["message"]


def test_an_assistant_optimises_one_op_from_start_to_decision(place: Path) -> None:
    async def story(client: Client) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        started = await ask(client, "start_run", **TINY)
        run = started["run"]
        assert (started["state"], started["summary"]) == ("starting", None)
        ended = await ask(client, "status", run=run, wait_s=300)
        assert ended["state"] == "ended", ended
        folder = Path(ended["folder"])
        assert f"kernelwright submit candidate.cpp --run {run}" in (folder / "program.md").read_text()

        (row,) = (await ask(client, "list_problems", run=run))["problems"]
        assert (row["number"], row["cases"], row["op"]) == (1, [LABEL], "rmsnorm")
        brief = await ask(client, "get_brief", run="last")
        assert brief["page"].startswith(f"# {LABEL}\n")
        assert brief["source"] in brief["page"]

        mine = brief["source"] + "\nstatic int unused(int x) { return x; }\n"
        told: list[str | None] = []

        async def hear(_: float, __: float | None, message: str | None) -> None:
            told.append(message)

        quick = {"source": mine, "backend": "cpp", "run": run, "profile": "quick"}
        result = await client.call_tool("judge_candidate", quick, progress_callback=hear)
        assert (result.structured_content["passed"], result.structured_content["cases"]) == (True, [LABEL])
        assert "cpp: smoke" in told

        given = {"source": mine, "backend": "cpp", "note": "one more function", "author": "somebody"}
        (submitted,) = (await ask(client, "submit", run=run, **given))["submitted"]
        assert (submitted["kept"], "the run has ended" in submitted["reason"]) == (None, True)
        assert (await ask(client, "resume_run", run=run))["state"] in ("running", "starting")
        assert (await ask(client, "status", run=run, wait_s=300))["state"] == "ended"
        (decided,) = (await ask(client, "submit", run=run, **given))["submitted"]
        assert (decided["candidate"], decided["kept"]) == (submitted["candidate"], False)
        assert decided["reason"].startswith("in the run already: not proven faster")

        tried = (await ask(client, "history", run=run, after=0))["tried"]
        assert [(one["number"], one["kept"]) for one in tried][-1] == (len(tried), False)
        assert (tried[-1]["author"], tried[-1]["note"]) == ("somebody submitted mcp", "one more function")
        (listing,) = (await ask(client, "disassembly", run=run, candidate=str(len(tried))))["artefacts"]
        assert (listing["kind"], "<kernel_fn" in listing["text"]) == ("cpu", True)
        assert listing["counts"]["instructions"] > 10
        found = await ask(client, "search_kernels", op="rmsnorm", constructs=["unused(int"], with_source=True)
        assert [(one["source"], one["run"]) for one in found["kernels"]] == [(mine, run)]

        journal = Journal.open(folder)
        assert isinstance(journal.verify(), Sound)
        (node,) = [one for one in journal.tree().nodes.values() if one.candidate.author.name == "somebody"]
        assert node.candidate.hash == decided["candidate"]
        assert len(node.evaluations) >= 1  # it went through the judge, like everybody

    drive(place, story)


def test_calls_that_cannot_be_are_answered_with_the_kind_the_value_and_the_remedy(place: Path) -> None:
    (place.parent / "outside.cpp").write_text("int kernel_fn();")
    cases = [
        ("status", {"wait_s": "long"}, "BadCall", "argument 'wait_s'"),
        ("status", {"nosuch": 1}, "BadCall", "It takes: run, wait_s."),
        ("disassembly", {"run": "last"}, "BadCall", "argument 'candidate'"),
        ("get_brief", {"run": "19990101"}, "UnknownName", "Unknown run '19990101'"),
        ("list_problems", {"run": "../../etc"}, "NotFound", "Run folder '../../etc'"),
        ("start_run", {}, "BadInput", "Give one of model and op."),
        ("start_run", {"op": "sofmax"}, "BadInput", "Did you mean 'softmax'?"),
        ("start_run", {"op": "softmax", "shape": ["huge"]}, "BadInput", "'huge"),
        ("start_run", {"op": "softmax", "budget": "soon"}, "BadConfig", "write 90s, 10m, 1h30m or 8h"),
        (
            "start_run",
            {"op": "softmax", "author": "command:rm -rf x"},
            "BadInput",
            "cannot be started from here",
        ),
        ("start_run", {"op": "softmax", "author": "llm:openai:x"}, "BadInput", "Give max_cost too"),
        ("start_run", {"model": "../outside.py:build"}, "BadInput", "lies outside of"),
        ("judge_candidate", {"op": "rmsnorm", "file": "../outside.cpp"}, "BadInput", "lies outside of"),
        ("judge_candidate", {"op": "rmsnorm", "file": "nosuch.cpp"}, "BadInput", "is no file of"),
        ("judge_candidate", {"op": "rmsnorm", "source": "x"}, "BadInput", "has no language"),
        ("judge_candidate", {"op": "nosuch", "source": "x", "backend": "cpp"}, "BadInput", "nosuch"),
        ("judge_candidate", {"op": "rmsnorm", "source": "x", "backend": "basic"}, "UnknownName", "'basic'"),
        ("playbook_search", {"bottleneck": ["boredom"]}, "UnknownName", "Unknown bottleneck 'boredom'"),
        ("lessons", {"op": "nosuch"}, "UnknownName", "Unknown op 'nosuch'"),
    ]

    async def story(client: Client) -> None:
        for tool, arguments, kind, words in cases:
            error, message = await refused(client, tool, **arguments)
            assert (error, words in message) == (kind, True), (tool, arguments, error, message)
        with pytest.raises(MCPError, match="Unknown tool 'nosuch'") as caught:
            await client.call_tool("nosuch", {})
        assert caught.value.code == -32602
        found = await ask(
            client, "playbook_search", words="uncoalesced loads on Hopper", arch="hopper", most=3
        )
        assert "coalesced_access" in [one["name"] for one in found["entries"]]
        assert (await ask(client, "lessons", op="softmax"))["lessons"] == []

    drive(place, story)


@pytest.mark.parametrize(
    "setting", ['plugins = ["mine"]', "download = true", 'beside = ["command:rm -rf x"]']
)
def test_settings_that_would_run_or_fetch_code_are_for_a_person(tmp_path: Path, setting: str) -> None:
    (tmp_path / "kernelwright.toml").write_text(f"{setting}\n")

    async def story(client: Client) -> None:
        error, message = await refused(client, "start_run", op="softmax")
        assert (error, "a person starts" in message.lower()) == ("BadInput", True), message

    drive(tmp_path, story)
    assert not (tmp_path / "home" / "jobs").exists()


def test_a_run_in_the_background_can_be_stopped_and_outlives_its_server(tmp_path: Path) -> None:
    (tmp_path / "kernelwright.toml").write_text("threads = 1\n")
    runs: list[str] = []

    async def begin(client: Client) -> None:
        runs.append((await ask(client, "start_run", op="rmsnorm", shape=["64x64 fp32"], budget="10m"))["run"])

    async def end(client: Client) -> None:
        (run,) = runs
        now = await ask(client, "status", run=run)
        assert now["state"] in ("starting", "running"), now  # its server is gone, it is not
        stopped = await ask(client, "stop_run", run=run)
        assert (stopped["state"], "can be taken up again" in stopped["error"]) == ("stopped", True)
        error, message = await refused(client, "stop_run", run="nosuch")
        assert (error, "nosuch" in message) == ("UnknownName", True)

    # As a shell's background job the server ignores Ctrl-C, and all it starts would.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        drive(tmp_path, begin)
    finally:
        signal.signal(signal.SIGINT, before)
    drive(tmp_path, end)
