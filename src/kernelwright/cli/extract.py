"""`kernelwright extract`: a model's problems, each as one file that runs by itself."""

from pathlib import Path
from typing import Annotated

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
from kernelwright.cli.screen import Answer, ExitCode, JsonFlag, out, print_json, telling
from kernelwright.core.messages.model import GraphBreak, ModelExtracted
from kernelwright.core.region import Extracted


class ProblemRow(Answer):
    """One problem of the model."""

    op: str
    """The op it was recognised as, or `graph` for a fusion nobody named."""
    case: str
    """Sizes and type."""
    count: int
    """How often it occurs."""
    chosen: int
    """How many of these belong to the disjoint set that would be replaced."""
    gain_bytes: int
    """Estimate of what one kernel saves over one per operation, at one place."""
    where: str
    """File and line of the model's code."""
    rejected: str
    """The op it is written like, though its reference gives other numbers."""
    not_plain: str
    """Why no kernel is written for this fusion; empty if one is, and for known ops."""
    file: str | None
    """Where it was written."""


class ExtractAnswer(Answer):
    """What `extract --json` prints."""

    model: str
    """The model."""
    problems: list[ProblemRow]
    """All problems, overlapping alternatives included."""
    nodes: int
    """Operations of the model."""
    graphs: int
    """Graphs it was captured in."""
    breaks: list[GraphBreak]
    """Where it could not be captured in one piece."""


def extract(
    model: ModelArgument = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Write each problem into this folder as one runnable file.")
    ] = None,
    kernelbench: Annotated[
        bool, typer.Option("--kernelbench", help="Write Model, get_inputs and get_init_inputs only.")
    ] = False,
    inputs: InputOption = None,
    input_function: InputFunctionOption = None,
    dtype: DTypeOption = None,
    device: DeviceOption = None,
    mode: ModeOption = None,
    download: DownloadFlag = None,
    hf_cache: HfCacheOption = None,
    as_json: JsonFlag = False,
) -> int:
    """Capture a model once and list the kernels it consists of: known ops, and fusions found in its graph."""
    from kernelwright.core.errors import BadInput, ServiceDied
    from kernelwright.core.messages.model import ExtractModel
    from kernelwright.engine.service import ask_model
    from kernelwright.hardware.detect import usable_cores

    flags = model_flags(model, inputs, input_function, dtype, device, mode, download, hf_cache)
    config, spec = model_config("extract", flags)
    if out_folder is not None and out_folder.exists() and not out_folder.is_dir():
        raise BadInput("--out", f"{str(out_folder)!r} is a file", "Name a folder.")
    request = ExtractModel(
        spec=spec, options=config.model_options(), threads=config.threads or usable_cores()
    )
    with telling("capturing the model") as tell:
        found = ask_model(request, tell)
    if not isinstance(found, ModelExtracted):
        raise ServiceDied("model", f"answered {type(found).__name__} to ExtractModel")
    files: list[str | None] = [None] * len(found.problems)
    if out_folder is not None:
        files = _write(found, out_folder, kernelbench)
    answer = _answer(spec, found, files)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK


def _write(found: ModelExtracted, folder: Path, is_kernelbench: bool) -> list[str | None]:
    from kernelwright.core.region import kernelbench, written
    from kernelwright.store.disk import disk_errors, make_folder

    files: list[str | None] = []
    with disk_errors(folder):
        make_folder(folder)
        for one in found.problems:
            path = folder / f"{one.name}.py"
            path.write_text(kernelbench(one) if is_kernelbench else written(one))
            files.append(str(path))
    return files


def _answer(model: str, found: ModelExtracted, files: list[str | None]) -> ExtractAnswer:
    def row(one: Extracted, file: str | None) -> ProblemRow:
        return ProblemRow(
            op=one.op,
            case=one.name,
            count=one.count,
            chosen=one.chosen,
            gain_bytes=one.gain_bytes,
            where=one.where,
            rejected=one.rejected,
            not_plain=one.not_plain,
            file=file,
        )

    rows = [row(one, file) for one, file in zip(found.problems, files, strict=True)]
    return ExtractAnswer(
        model=model,
        problems=sorted(rows, key=lambda row: (row.op == "graph", -row.count * row.gain_bytes)),
        nodes=found.nodes,
        graphs=found.graphs,
        breaks=list(found.breaks),
    )


def _print(answer: ExtractAnswer) -> None:
    console = out()
    pieces = "one graph" if answer.graphs == 1 else f"{answer.graphs} graphs"
    console.print(f"{answer.model}: {answer.nodes} operations in {pieces}", markup=False)
    for one in answer.breaks:
        console.print(f"graph break at {_short(one.where)}: {one.reason}", markup=False)
    console.print(f"{'problem':44} {'count':>5} {'chosen':>6}  where", style="bold")
    for row in answer.problems:
        doubt = f"  (written like {row.rejected}, other numbers)" if row.rejected else ""
        doubt += f"  (no kernel is written: {row.not_plain})" if row.not_plain else ""
        console.print(
            f"{row.case:44} {row.count:5d} {row.chosen:6d}  {_short(row.where)}{doubt}", markup=False
        )


def _short(where: str) -> str:
    """Return a line of code as one reads it: from the working folder, or by the last two names of its path."""
    path = Path(where)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(*path.parts[-2:]))
