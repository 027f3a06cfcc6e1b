"""`kernelwright backends`."""

from kernelwright.cli.screen import Answer, JsonFlag, out, print_json
from kernelwright.report.catalogue import BackendRow, backend_rows


class BackendsAnswer(Answer):
    """What `backends --json` prints."""

    backends: list[BackendRow]
    """One entry per language."""


def backends(as_json: JsonFlag = False) -> None:
    """List the languages a kernel can be written in, and whether this machine can use them."""
    answer = BackendsAnswer(backends=backend_rows())
    if as_json:
        print_json(answer)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "backend", "tier", "what it is", "usable", "found, or what is missing", box=None, pad_edge=False
    )
    for row in answer.backends:
        mark = Text("yes", "green") if row.usable else Text("no", "red")
        table.add_row(
            row.name, row.tier, row.summary, mark, row.detail if row.usable else f"{row.detail}. {row.remedy}"
        )
    out().print(table)
