"""The server: tools listed and called over standard input and output, by the official SDK.

Standard output belongs to the protocol; whatever else would be printed goes to standard error, and is not printed. A
call runs in a thread of its own, tells how far it is, and comes back with an answer or a failure, never a traceback.
"""

import json
import sys
import traceback
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp.types import Tool as Listed
from pydantic import BaseModel

from kernelwright.cli.mcp import judging, knowledge, problems, runs
from kernelwright.cli.mcp.tool import Failure, Place, Tool, as_json, carried_out

INSTRUCTIONS = """\
Kernelwright makes PyTorch models faster by replacing kernels; a judge that nobody can reach decides what is right and
what is faster. To optimise: start_run (a model, or one op with a shape), then repeat: get_brief, write a candidate,
judge_candidate until it passes, submit, read the reason, try something else. status tells how far a run is; after it
has ended resume_run judges what was submitted since. Read program.md in the run's folder for the rules. Timing of your
own proves nothing; only `kept` counts."""

TOOLS: tuple[Tool[Any, Any], ...] = (*runs.TOOLS, *problems.TOOLS, *judging.TOOLS, *knowledge.TOOLS)
"""`Any`: each has arguments and an answer of its own."""


def build(place: Place) -> Server[dict[str, Any]]:
    """Return the server of a place."""
    tools = {tool.name: tool for tool in TOOLS}

    async def listed(
        _: ServerRequestContext[dict[str, Any]], __: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[_listed(tool) for tool in TOOLS])

    async def called(
        context: ServerRequestContext[dict[str, Any]], params: CallToolRequestParams
    ) -> CallToolResult:
        if (tool := tools.get(params.name)) is None:
            known = ", ".join(tools)
            raise MCPError(INVALID_PARAMS, f"Unknown tool {params.name!r}. Known: {known}.")
        steps = iter(range(1, sys.maxsize))

        def tell(text: str) -> None:
            anyio.from_thread.run(context.session.report_progress, float(next(steps)), None, text)

        here = replace(place, tell=tell)
        work = partial(_guarded, tool, here, dict(params.arguments or {}))
        return _result(await anyio.to_thread.run_sync(work))

    return Server(
        "kernelwright",
        version=version("kernelwright"),
        instructions=INSTRUCTIONS,
        on_list_tools=listed,
        on_call_tool=called,
    )


def _listed(tool: Tool[Any, Any]) -> Listed:
    return Listed(
        name=tool.name,
        description=tool.description,
        input_schema=tool.arguments.model_json_schema(),
        output_schema=tool.answer.model_json_schema(mode="serialization"),
        annotations=ToolAnnotations(read_only_hint=tool.is_reading, destructive_hint=False),
    )


def _guarded(tool: Tool[Any, Any], place: Place, given: dict[str, object]) -> BaseModel:
    try:
        return carried_out(tool, place, given)
    except Exception as error:  # noqa: BLE001 - the outermost frame of this face of the command line
        traceback.print_exc(file=sys.stderr)
        return Failure(error="Bug", message=f"{type(error).__name__}: {error}. The server's log shows where.")


def _result(answer: BaseModel) -> CallToolResult:
    value = as_json(answer)
    return CallToolResult(
        content=[TextContent(type="text", text=json.dumps(value, ensure_ascii=False))],
        structured_content=value,
        is_error=isinstance(answer, Failure),
    )


async def _served(place: Place) -> None:
    server = build(place)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def serve(place: Place) -> None:
    """Serve until standard input ends."""
    anyio.run(_served, place)
