"""`kernelwright version`."""

from kernelwright.cli.screen import Answer, JsonFlag, out, print_json


class VersionAnswer(Answer):
    """What `version --json` prints."""

    versions: dict[str, str]
    """Version by package; `not installed` where one is missing."""


def version(as_json: JsonFlag = False) -> None:
    """Show the versions a result depends on."""
    from kernelwright.engine.app import versions

    answer = VersionAnswer(versions=versions())
    if as_json:
        print_json(answer)
        return
    for name, text in answer.versions.items():
        out().print(f"{name:13} {text}")
