"""`kernelwright tune`: search kernels for one call of a function, for `@kernelwright.tune` to find."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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

if TYPE_CHECKING:
    from kernelwright.core.tuned import TunedCall

FunctionArgument = Annotated[
    str, typer.Argument(help="The function: `path.py:function` or `package.module:function`.")
]
TensorOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="Shape and type of a tensor the function takes, such as `1024,1024:fp32`, or `weight=1024:fp32` by "
        "name; once per tensor, in order.",
    ),
]


class TunedKernel(Answer):
    """One kernel that serves the call."""

    case: str
    """Op, size and dtype."""
    backend: str
    """Its language."""
    ratio: float | None
    """Baseline's time over the kernel's."""
    ci_low: float | None
    """Lower end of the 95 % interval."""
    ci_high: float | None
    """Upper end of the 95 % interval."""
    baseline: str
    """What it was compared with."""


class TuneAnswer(Answer):
    """What `tune --json` prints."""

    function: str
    """File and name of the function."""
    call: str
    """The arguments, in words."""
    key: str
    """Key of the call: the name of its folder."""
    folder: str
    """Where the winner lies; a function decorated with `@kernelwright.tune` looks there."""
    served: bool
    """Whether certified kernels serve the call; the exit code says the same."""
    kernels: list[TunedKernel]
    """The kernels."""
    known: bool
    """Whether the answer was there before, and no evaluation was spent."""
    run: str
    """The run that searched; empty if there was nothing to search."""
    reason: str
    """How the search ended."""


def tune(
    function: FunctionArgument,
    inputs: TensorOption = None,
    call: Annotated[
        Path | None, typer.Option(help="A call as JSON instead of --input; `decorated.tune` passes it.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where the tensors lie: cpu, cuda, cuda:1.")] = "cpu",
    backend: Annotated[str | None, typer.Option(help="Language of the candidates, or `auto`.")] = None,
    budget: Annotated[str | None, typer.Option(help="Time the search may take: 90s, 10m, 8h.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Search again, though the call was tuned before.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of a judged kernel; 0 for all cores.")
    ] = None,
    max_pairs: Annotated[int | None, typer.Option(help="Fresh process pairs per comparison at most.")] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Search kernels for one call of a function; `@kernelwright.tune` then runs what is proven faster."""
    from kernelwright.cli.config import load_config
    from kernelwright.core.model_spec import parse_input
    from kernelwright.engine.tuning import TuneWish
    from kernelwright.engine.tuning import tune as search

    specs = tuple(parse_input(text) for text in inputs or ())
    wish = TuneWish(function, specs, call, device, again)
    config = load_config({"backend": backend, "budget_s": budget, "threads": threads, "max_pairs": max_pairs})
    place = kernelwright_home(home)
    with telling("starting") as tell:
        found, was_known = search(wish, config, place, tell)
    answer = _answer(found, place, was_known)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK if answer.served else ExitCode.NEGATIVE


def _answer(found: "TunedCall", home: Path, was_known: bool) -> TuneAnswer:
    from kernelwright.core.manifest import FOLDER as KERNELS
    from kernelwright.core.tuned import FOLDER, KernelStep
    from kernelwright.store.manifest import read_manifest

    folder, kernels = home.resolve() / FOLDER / found.key, []
    if found.program is not None:
        entries = read_manifest(folder / KERNELS).entries
        used = {step.entry for step in found.program.steps if isinstance(step, KernelStep)}
        for entry in (entries[place] for place in sorted(used)):
            proof = entry.certificate
            kernels.append(
                TunedKernel(
                    case=entry.case.label,
                    backend=entry.backend,
                    ratio=proof.ratio,
                    ci_low=proof.ci_low,
                    ci_high=proof.ci_high,
                    baseline=proof.baseline,
                )
            )
    return TuneAnswer(
        function=found.function,
        call=found.call.label(),
        key=found.key,
        folder=str(folder),
        served=found.program is not None,
        kernels=kernels,
        known=was_known,
        run=found.run,
        reason=found.reason,
    )


def _print(answer: TuneAnswer) -> None:
    console = out()
    console.print(f"{answer.function}({answer.call})", markup=False)
    for one in answer.kernels:
        gain = ""
        if one.ratio and one.ci_low and one.ci_high:
            gain = f": x{one.ratio:.3f} [{one.ci_low:.3f}, {one.ci_high:.3f}] over {one.baseline}"
        console.print(f"  {one.case}  {one.backend}{gain}", markup=False)
    known = " (known before, nothing was searched)" if answer.known else ""
    word = "served by certified kernels" if answer.served else "the original stays"
    console.print(f"{word}: {answer.reason}{known}", markup=False)
    console.print(answer.folder, style="dim", soft_wrap=True)
