"""`kernelwright ops`."""

from kernelwright.cli.screen import Answer, JsonFlag, out, print_json
from kernelwright.report.catalogue import OpRow, op_rows


class OpsAnswer(Answer):
    """What `ops --json` prints."""

    ops: list[OpRow]
    """One entry per kernel type."""


def ops(as_json: JsonFlag = False) -> None:
    """List the kernel types that can be optimised, and in which languages each has a seed."""
    answer = OpsAnswer(ops=op_rows())
    if as_json:
        print_json(answer)
        return
    from rich.table import Table

    table = Table("op", "what it computes", "dtypes", "public cases", "seeds", box=None, pad_edge=False)
    for row in answer.ops:
        table.add_row(row.name, row.summary, " ".join(row.dtypes), str(row.public_cases), " ".join(row.seeds))
    out().print(table)
