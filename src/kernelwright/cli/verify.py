"""`kernelwright verify`: a model with a run's kernels against the model without, and who is to blame if it breaks."""

from typing import Annotated

import typer

from kernelwright.cli.apply import RunOrFolder
from kernelwright.cli.model_options import (
    DeviceOption,
    DownloadFlag,
    DTypeOption,
    HfCacheOption,
    InputFunctionOption,
    InputOption,
    ModeOption,
    RestOption,
    model_config,
    model_flags,
)
from kernelwright.cli.optimize import end_to_end
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
from kernelwright.core.events import ModelVerified
from kernelwright.core.messages.model import OutputCheck
from kernelwright.engine.diagnose import Culprit


class VerifyAnswer(Answer):
    """What `verify --json` prints."""

    model: str
    """The model."""
    folder: str
    """The folder of kernels."""
    holds: bool
    """Whether the outputs hold on every way the model was called; the exit code says the same."""
    verified: ModelVerified
    """End to end: ratios with their intervals, drift, and whether it would be shipped."""
    checks: list[OutputCheck]
    """The worst output on every way the model was called, per process."""
    culprits: list[Culprit]
    """With --diagnose: the kernels that break the model."""


def verify(
    model: Annotated[
        str,
        typer.Argument(help="The model: `path.py:factory`, `package.module:Class` or `hf:NAME-or-folder`."),
    ],
    run: RunOrFolder,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="If the outputs do not hold, find the kernel that breaks them.")
    ] = False,
    inputs: InputOption = None,
    input_function: InputFunctionOption = None,
    dtype: DTypeOption = None,
    device: DeviceOption = None,
    mode: ModeOption = None,
    download: DownloadFlag = None,
    hf_cache: HfCacheOption = None,
    rest: RestOption = None,
    processes: Annotated[
        int | None, typer.Option(help="Fresh processes in which the model is timed. Default: 5.")
    ] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Compare a model with a run's kernels to the model without: outputs, then end-to-end times."""
    from kernelwright.engine.verifying import kernels_folder, verify_folder

    flags = model_flags(model, inputs, input_function, dtype, device, mode, download, hf_cache)
    config, spec = model_config("verify", flags | {"model_processes": processes, "rest": rest})
    place = kernelwright_home(home)
    folder = kernels_folder(place, run)
    with telling("loading the model") as tell:
        found = verify_folder(config, folder, place, tell, diagnose=diagnose)
    answer = VerifyAnswer(
        model=spec,
        folder=str(folder),
        holds=found.holds,
        verified=found.model,
        checks=list(found.checks),
        culprits=list(found.culprits),
    )
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK if found.holds else ExitCode.NEGATIVE


def _print(answer: VerifyAnswer) -> None:
    console = out()
    worst: dict[str, OutputCheck] = {}
    for check in answer.checks:
        if check.inputs not in worst or _badness(check) > _badness(worst[check.inputs]):
            worst[check.inputs] = check
    for name, check in worst.items():
        words = (
            check.problem or f"error {check.ratio:.2f} times the framework's own, {check.allowed:.2f} allowed"
        )
        verdict = "does not hold" if check.problem else "holds"
        console.print(f"{name}: {verdict}; {check.output}: {words}", markup=False)
    for line in end_to_end(answer.verified):
        console.print(line, markup=False)
    for culprit in answer.culprits:
        console.print(f"broken by {' together with '.join(culprit.kernels)}", markup=False)
        for kernel, places in zip(culprit.kernels, culprit.sites, strict=True):
            console.print(
                f"  {kernel} serves {', '.join(places) or 'no place'}", markup=False, soft_wrap=True
            )
        ratio = f", {culprit.ratio:.3g} times the framework's own error" if culprit.ratio < 1e30 else ""
        console.print(
            f"  smallest inputs: {culprit.inputs}; {culprit.output}: {culprit.problem}{ratio}", markup=False
        )
    if not answer.holds and not answer.culprits:
        console.print("`--diagnose` finds the kernel that breaks it", markup=False)


def _badness(check: OutputCheck) -> tuple[bool, float]:
    return bool(check.problem), check.ratio / check.allowed
