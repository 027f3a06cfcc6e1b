"""`kernelwright apply`: the kernels of a run as a folder of their own, checked, and the line that uses it."""

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.screen import Answer, ExitCode, HomeOption, JsonFlag, kernelwright_home, out, print_json

RunOrFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_FOLDER",
        help="Run id, unique prefix, run folder or `last`; or a folder of optimised kernels.",
    ),
]


class AppliedKernel(Answer):
    """One kernel of the folder."""

    case: str
    """Op, size and dtype it serves."""
    backend: str
    """Its language."""
    device: str
    """Where it was certified."""
    ratio: float | None
    """Baseline's time over the kernel's."""
    ci_low: float | None
    """Lower end of the 95 % interval."""
    ci_high: float | None
    """Upper end of the 95 % interval."""
    baseline: str
    """What it was compared with."""


class ApplyAnswer(Answer):
    """What `apply --json` prints."""

    folder: str
    """The folder of kernels; every file of it is what its manifest says."""
    line: str
    """The line of Python that puts them into a model; of a run without one, the line that calls them."""
    kernels: list[AppliedKernel]
    """What is in it."""


def apply(
    run: RunOrFolder,
    to: Annotated[
        Path | None, typer.Option("--to", help="Copy the folder here; must be empty or not there.")
    ] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Write or check the folder of a run's kernels, and print the line that uses them."""
    from kernelwright.engine.verifying import checked, copied, kernels_folder, tree_of
    from kernelwright.report.usage import how_launched, is_alone, line, line_alone, who_ran_the_rest

    folder = kernels_folder(kernelwright_home(home), run)
    manifest, tree = checked(folder), tree_of(folder)
    started = tree.started if tree else None
    if to is not None:
        folder = copied(folder, to)
    kernels = []
    for entry in manifest.entries:
        proof = entry.certificate
        kernels.append(
            AppliedKernel(
                case=entry.case.label,
                backend=entry.backend,
                device=entry.device.name if entry.device else "",
                ratio=proof.ratio,
                ci_low=proof.ci_low,
                ci_high=proof.ci_high,
                baseline=proof.baseline,
            )
        )
    alone = [(entry.module, entry.case) for entry in manifest.entries] if is_alone(started) else []
    in_model = line(folder, who_ran_the_rest(started), how_launched(tree))
    use = line_alone(folder, alone) if alone else in_model
    answer = ApplyAnswer(folder=str(folder), line=use, kernels=kernels)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK


def _print(answer: ApplyAnswer) -> None:
    console = out()
    for one in answer.kernels:
        gain = f": x{one.ratio:.3f} over {one.baseline}" if one.ratio else ""
        console.print(f"{one.case}  {one.backend} on {one.device}{gain}", markup=False)
    console.print(
        f"{answer.folder}: {len(answer.kernels)} kernels, every file as its manifest says", soft_wrap=True
    )
    console.print(answer.line, markup=False, soft_wrap=True)
