"""Commands that are told to the user: pasted as they stand, they find what was meant."""

import re
from pathlib import Path

import typer

COMMAND = re.compile(r"`(kernelwright (?:[^`]+))`")


def home_words(home: Path) -> str:
    """Return what a command must be given to find a home: nothing if it would look there by itself."""
    import os
    import shlex

    from kernelwright.store.locate import home as usual_home

    is_usual = home.resolve() == usual_home(os.environ).resolve()
    return "" if is_usual else f" --home {shlex.quote(str(home.absolute()))}"


def named_home(words: list[str]) -> str | None:
    """Return the home that a command line names."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--home", nargs="?")
    found: str | None = parser.parse_known_args(words)[0].home
    return found


def pasteable(line: str, home: str | None, app: typer.Typer) -> str:
    """Return a line whose commands in backquotes name the home that was named, where they take one."""
    import shlex

    if home is None:
        return line

    def finished(match: re.Match[str]) -> str:
        words = match[1].split()[1:]
        is_wanting = "--home" not in words and _takes_home(words, app)
        return f"`{match[1]} --home {shlex.quote(home)}`" if is_wanting else match[0]

    return COMMAND.sub(finished, line)


def _takes_home(words: list[str], app: typer.Typer) -> bool:
    """Tell whether a verb has a home of its own."""
    # Any: click's command, which newer typer brings itself and older typer imports.
    command = typer.main.get_command(app)
    for word in words:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command = inner
    return any(one.name == "home" for one in command.params)
