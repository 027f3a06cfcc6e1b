"""`kernelwright mcp` serves the tools; `kernelwright mcp install` tells a coding assistant of the server."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.screen import (
    Answer,
    ExitCode,
    HomeOption,
    JsonFlag,
    err,
    kernelwright_home,
    out,
    print_json,
)

RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root", help="The project: files the tools read must lie in it. Default: the working folder."
    ),
]


PackagesFlag = Annotated[
    bool,
    typer.Option(
        "--allow-packages",
        help="Let tools name models of installed packages too: any function of one can be called so.",
    ),
]


class InstallAnswer(Answer):
    """What `mcp install --json` prints."""

    client: str
    """The assistant."""
    file: str
    """Its configuration."""
    changed: bool
    """Whether the file was written; it is not if it says the same already, or with --print."""
    installed: bool
    """Whether the file names the server, or would with --print."""
    text: str
    """The configuration: the whole file as it is or would be."""


def app() -> typer.Typer:
    """Return the verb with its sub-command."""
    group = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
    group.callback(
        help="Serve the tools to a coding assistant over standard input and output (Model Context Protocol)."
    )(serve)
    group.command("install")(install)
    return group


def serve(
    context: typer.Context,
    root: RootOption = None,
    allow_packages: PackagesFlag = False,
    home: HomeOption = None,
) -> None:
    """Serve the tools to a coding assistant over standard input and output (Model Context Protocol)."""
    if context.invoked_subcommand is not None:
        return
    from kernelwright.core.errors import BadInput, PackageMissing

    project = root or Path.cwd()
    if not project.is_dir():
        raise BadInput("--root", f"{str(project)!r} is no folder", "Name the folder of the project.")
    try:
        from kernelwright.cli.mcp.server import serve as serve_until_closed
        from kernelwright.cli.mcp.tool import Place
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "anyio"):
            raise
        raise PackageMissing("mcp", "`kernelwright mcp`", "mcp") from error
    if sys.stdin.isatty():
        err().print(
            "serving a coding assistant on standard input; `kernelwright mcp install` tells one", markup=False
        )
    serve_until_closed(Place(kernelwright_home(home), project.absolute(), packages=allow_packages))


def install(
    client: Annotated[
        str,
        typer.Option(
            help="The assistant: claude-code, claude-desktop, codex, copilot-cli, cursor, gemini-cli, opencode, "
            "vscode, windsurf."
        ),
    ],
    path: Annotated[
        Path | None, typer.Option(help="Its configuration file, if it is not at the usual place.")
    ] = None,
    root: RootOption = None,
    allow_packages: PackagesFlag = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Take the server out again.")] = False,
    only_print: Annotated[
        bool, typer.Option("--print", help="Show the file as it would be and write nothing.")
    ] = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Write the server into a coding assistant's configuration; everything else in the file stays as it is."""
    import os

    from kernelwright.cli.mcp.clients import SERVER, client_named, command_for, merged
    from kernelwright.store.disk import disk_errors, make_folder, replace_file

    chosen, project = client_named(client), root or Path.cwd()
    file = path or chosen.path(project, os.environ)
    before = _text(file)
    entry = None if uninstall else chosen.entry(command_for(project, home, allow_packages))
    is_nothing = uninstall and SERVER not in before
    after = before if is_nothing else merged(chosen, before, entry, file)
    changed = after != before and not only_print
    if changed:
        with disk_errors(file):
            make_folder(file.parent)
            replace_file(file.resolve(), after.encode())  # settings are often links into a repository
    answer = InstallAnswer(
        client=client, file=str(file), changed=changed, installed=not uninstall, text=after
    )
    if as_json:
        print_json(answer)
    elif only_print:
        out().print(after, markup=False, end="", soft_wrap=True)
    else:
        words = "no longer names" if uninstall else "names"
        note = "" if changed else " already"
        restart = f"; restart {chosen.title} or reload its servers" if changed else ""
        out().print(f"{file}{note} {words} the server{restart}", markup=False, soft_wrap=True)
    return ExitCode.OK


def _text(file: Path) -> str:
    from kernelwright.core.errors import BadInput

    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(file), f"cannot be read: {error}", "Mend it, or give --path.") from error
