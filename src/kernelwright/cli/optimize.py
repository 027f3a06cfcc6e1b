"""`kernelwright optimize`: the main job."""

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


class KernelRow(Answer):
    """One problem of the run and its best kernel."""

    case: str
    """Op, size and dtype."""
    count: int
    """How often it occurs in the model."""
    share: float
    """Share of the model's time before."""
    winner: str
    """Backend of the best candidate; `eager` means the baseline kept its title."""
    ratio: float | None
    """Baseline time over the winner's time."""
    ci_low: float | None
    """Lower end of the 95 % interval."""
    ci_high: float | None
    """Upper end of the 95 % interval."""
    reason: str
    """The gate's sentence."""


class OptimizeAnswer(Answer):
    """What `optimize --json` prints."""

    run_id: str
    """The run's id."""
    folder: str
    """The run folder with journal, blobs and results.tsv."""
    kernels: list[KernelRow]
    """One entry per problem."""
    model: ModelVerified | None
    """End to end, if anything was spliced."""
    ended: str
    """Why the run stopped."""


def optimize(
    model: ModelArgument = None,
    inputs: InputOption = None,
    input_function: InputFunctionOption = None,
    dtype: DTypeOption = None,
    device: DeviceOption = None,
    mode: ModeOption = None,
    download: DownloadFlag = None,
    hf_cache: HfCacheOption = None,
    backend: Annotated[str | None, typer.Option(help="Language of the candidates, or `auto`.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of a judged kernel; 0 for all cores.")
    ] = None,
    max_pairs: Annotated[int | None, typer.Option(help="Fresh process pairs per comparison at most.")] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Find the model's hot kernels, judge replacements, keep what is proven faster, verify end to end."""
    from kernelwright.engine.app import start
    from kernelwright.report.results import results_tsv
    from kernelwright.store.journal import Journal

    flags = model_flags(model, inputs, input_function, dtype, device, mode, download, hf_cache)
    flags |= {"backend": backend, "threads": threads, "max_pairs": max_pairs}
    config, _ = model_config("optimize", flags)
    with telling("starting") as tell:
        folder = start(config, kernelwright_home(home), tell)
    with_tree = Journal.open(config.journal_url or folder, folder.name)
    tree = with_tree.tree()
    (folder / "results.tsv").write_text(results_tsv(tree))
    answer = _answer(folder, tree)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK


def _answer(folder: Path, tree: object) -> OptimizeAnswer:
    from kernelwright.core.tree import Tree

    assert isinstance(tree, Tree)
    rows = []
    for key, problem in tree.problems.items():
        best = tree.nodes[key, tree.best[key]]
        found = best.comparisons[-1] if best.comparisons else None
        last = [node for (owner, _), node in tree.nodes.items() if owner == key and node.decision][-1]
        assert last.decision is not None
        rows.append(
            KernelRow(
                case=problem.cases[0].label,
                count=problem.count,
                share=problem.share,
                winner=best.candidate.backend,
                ratio=found.ratio if found else None,
                ci_low=found.ci_low if found else None,
                ci_high=found.ci_high if found else None,
                reason=last.decision.reason,
            )
        )
    ended = tree.ended.reason if tree.ended else "not ended"
    return OptimizeAnswer(
        run_id=folder.name, folder=str(folder), kernels=rows, model=tree.verified, ended=ended
    )


def _print(answer: OptimizeAnswer) -> None:
    console = out()
    for row in answer.kernels:
        console.print(f"[bold]{row.case}[/]  x{row.count} in the model, {100 * row.share:.1f} % of its time")
        console.print(f"  winner: {row.winner}; {row.reason}", markup=False)
    if found := answer.model:
        own = f"x{found.ratio:.3f} [{found.ci_low:.3f}, {found.ci_high:.3f}]"
        eager = f"x{found.eager_ratio:.3f} [{found.eager_ci_low:.3f}, {found.eager_ci_high:.3f}]"
        console.print(
            f"[bold]end to end[/]  {own} over the same graph without the winners, {eager} over eager"
        )
        console.print(
            f"  error against float64: {found.drift:.2f} times the original's; {found.fallbacks} fallbacks"
        )
        console.print(f"  {'shipped' if found.shipped else 'not shipped'}: {found.reason}")
    console.print(f"ended: {answer.ended}", markup=False)
    console.print(f"[dim]{answer.folder}[/]", soft_wrap=True)
