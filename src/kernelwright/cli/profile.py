"""`kernelwright profile`: where a model's time goes, and what is to be won there."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.cli.model_options import (
    DeviceOption,
    DownloadFlag,
    DTypeOption,
    HfCacheOption,
    InputFunctionOption,
    InputOption,
    ModelArgument,
    ModeOption,
    model_config,
    model_flags,
)
from kernelwright.cli.screen import (
    Answer,
    ExitCode,
    HomeOption,
    JsonFlag,
    kernelwright_home,
    out,
    print_json,
    telling,
)
from kernelwright.core.account import Account, Against, Row, SetTimes
from kernelwright.core.messages.model import GraphBreak

if TYPE_CHECKING:
    from rich.table import Table

    from kernelwright.core.account import Ranking
    from kernelwright.core.messages.model import ModelProfiled

WIDTH, BAR, LISTED = 132, 12, 16
BLOCKS = " ▏▎▍▌▋▊▉█"


class ProfileAnswer(Answer):
    """What `profile --json` prints. Times are those of an average call: every set by its weight."""

    model: str
    """The model."""
    device: str
    """Where it ran."""
    sets: list[SetTimes]
    """Every way it is called, timed end to end."""
    against: Against
    """The baseline of shares and gains; eager if torch.compile failed."""
    eager: Account
    """As the user wrote it; its gaps are what the regions leave of the time."""
    captured: Account
    """Its captured graph; the rest is what the marks do not account for."""
    compiled: Account | None
    """Under torch.compile; its gaps are what the kernels leave, its rest is kernels of no known origin."""
    compile_s: float
    """Seconds torch.compile took to compile."""
    compile_error: str
    """Why there is no compiled model."""
    kernels: int
    """Kernels torch.compile runs."""
    linked: int
    """Of these the ones whose origin in the captured graph is known."""
    rows: list[Row]
    """Every region, largest gain first."""
    together: list[float]
    """Speed-up if the first 1, 2, 3 ... offered regions reached their floors."""
    limit: float
    """Speed-up with every region at its floor and no gaps."""
    operations: int
    """Operations in all graphs."""
    graphs: int
    """Graphs it was captured in."""
    breaks: list[GraphBreak]
    """Where it could not be captured in one piece."""
    notes: list[str]
    """What was written where."""


def profile(
    model: ModelArgument = None,
    against: Annotated[
        Against, typer.Option(help="The baseline that shares and gains are of.")
    ] = Against.COMPILED,
    target_speedup: Annotated[
        float | None,
        typer.Option(min=0.0, help="Refuse if the floors exclude this speed-up over the baseline."),
    ] = None,
    export_trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace of one call each way to this file.")
    ] = None,
    memory_snapshot: Annotated[
        Path | None, typer.Option(help="Write torch's record of GPU memory in one call to this file.")
    ] = None,
    inputs: InputOption = None,
    input_function: InputFunctionOption = None,
    dtype: DTypeOption = None,
    device: DeviceOption = None,
    mode: ModeOption = None,
    download: DownloadFlag = None,
    hf_cache: HfCacheOption = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Measure where a model's time goes, region by region, and what each could still gain end to end."""
    from kernelwright.core.account import refuse_out_of_reach
    from kernelwright.core.messages.model import ProfileModel
    from kernelwright.engine.profile import profiled, ranked
    from kernelwright.hardware.detect import usable_cores

    flags = model_flags(model, inputs, input_function, dtype, device, mode, download, hf_cache)
    config, spec = model_config("profile", flags)
    request = ProfileModel(
        spec=spec,
        options=config.model_options(),
        threads=config.threads or usable_cores(),
        trace_file=_file("--export-trace", export_trace),
        memory_file=_file("--memory-snapshot", memory_snapshot),
    )
    with telling("loading the model") as tell:
        found = profiled(request, tell)
        order = ranked(found, kernelwright_home(home), against, tell)
    if target_speedup is not None:
        refuse_out_of_reach(spec, target_speedup, order)
    answer = answer_of(spec, found, order)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK


def _file(option: str, path: Path | None) -> str | None:
    from kernelwright.core.errors import BadInput

    if path is None:
        return None
    if path.is_dir() or not path.absolute().parent.is_dir():
        problem = "is a folder" if path.is_dir() else "lies in a folder that does not exist"
        raise BadInput(option, f"{str(path)!r} {problem}", "Name a file in a folder that exists.")
    return str(path.absolute())


def answer_of(model: str, found: "ModelProfiled", order: "Ranking") -> ProfileAnswer:
    """Return where a model's time goes."""
    return ProfileAnswer(
        model=model,
        device=found.device,
        sets=list(found.sets),
        against=order.against,
        eager=found.eager,
        captured=found.captured,
        compiled=found.compiled,
        compile_s=found.compile_s,
        compile_error=found.compile_error,
        kernels=found.kernels,
        linked=found.linked,
        rows=list(order.rows),
        together=list(order.together),
        limit=order.limit,
        operations=found.operations,
        graphs=found.graphs,
        breaks=list(found.breaks),
        notes=list(found.notes),
    )


def _print(answer: ProfileAnswer) -> None:
    console = out()
    if not console.is_terminal:
        console.width = WIDTH
    pieces = "one graph" if answer.graphs == 1 else f"{answer.graphs} graphs"
    console.print(
        f"{answer.model} on {answer.device}: {answer.operations} operations in {pieces}", markup=False
    )
    for one in answer.breaks:
        console.print(f"graph break at {one.where}: {one.reason}", markup=False)
    for times in answer.sets:
        console.print(_ways(times, len(answer.sets) > 1), markup=False)
    compiled = (
        f"failed: {answer.compile_error}"
        if answer.compiled is None
        else f"compiled in {answer.compile_s:.1f} s; {answer.linked} of {answer.kernels} kernels traced to regions"
    )
    console.print(f"torch.compile {compiled}", markup=False)
    console.print(_table(answer))
    console.print(_what_if(answer), markup=False)
    for note in answer.notes:
        console.print(note, markup=False)


def _ways(times: SetTimes, is_one_of_several: bool) -> str:
    """Return one set's times in one line, with their quartiles."""
    name = f"{times.name} ({100 * times.weight:.0f} % of the calls)  " if is_one_of_several else ""
    ways = {"eager": times.eager, "captured": times.captured, "compiled": times.compiled}
    return name + "   ".join(
        f"{way} {_time(one.median_us)} [{_time(one.low_us)}, {_time(one.high_us)}]"
        for way, one in ways.items()
        if one is not None
    )


def _time(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if abs(us) >= 1e3 else f"{us:.1f} us"


def bar(share: float) -> str:
    """Return a share as a bar, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * BAR * 8)
    return "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")


def _table(answer: ProfileAnswer) -> "Table":
    from rich.table import Table

    account = answer.compiled if answer.against is Against.COMPILED else answer.eager
    assert account is not None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, kind in (("region", ""), ("op", ""), ("count", "r"), ("share", "r"), ("", ""), ("time", "r"),
                       ("floor", "r"), ("headroom", "r"), ("gain", "r")):  # fmt: skip
        table.add_column(name, justify="right" if kind else "left", no_wrap=True)
    for row in answer.rows[:LISTED]:
        table.add_row(*_cells(row))
    if smaller := answer.rows[LISTED:]:
        _plain_row(table, f"{len(smaller)} smaller regions", sum(row.time_us for row in smaller), account)
    _plain_row(table, "gaps: outside operations", account.gaps_us, account)
    _plain_row(table, "rest: not attributed", account.rest_us, account)
    _plain_row(table, f"all of {answer.against.value}", account.total_us, account)
    return table


def _cells(row: Row) -> Sequence[str]:
    mark = "~" if row.region.is_estimated else ""
    gain = f"x{row.gain:.3f}"
    if row.region.case is None:
        gain = "left alone"
    elif not row.is_offered:
        gain = "at its floor"
    return (
        row.region.name,
        row.region.op,
        f"{row.region.sites}",
        f"{mark}{100 * row.share:.1f} %",
        bar(row.share),
        f"{mark}{_time(row.time_us)}",
        _time(row.floor_us),
        f"x{row.headroom:.2f}" if row.headroom is not None else "",
        gain,
    )


def _plain_row(table: "Table", name: str, time_us: float, account: Account) -> None:
    share = time_us / account.total_us
    table.add_row(name, "", "", f"{100 * share:.1f} %", bar(share), _time(time_us), "", "", "")


def _what_if(answer: ProfileAnswer) -> str:
    baseline = "torch.compile" if answer.against is Against.COMPILED else "eager"
    marks = (
        " (~ shared out like the captured graph's)" if any(r.region.is_estimated for r in answer.rows) else ""
    )
    if not answer.together:
        return f"No region is further than 3 % from its floor under {baseline}{marks}."
    some = sorted({1, min(3, len(answer.together)), len(answer.together)})
    steps = ", ".join(f"first {count}: x{answer.together[count - 1]:.2f}" for count in some)
    return (
        f"If offered regions reached their floors, over {baseline}{marks}: {steps}. "
        f"Limit, with all regions at their floors and no gaps: x{answer.limit:.2f}."
    )
