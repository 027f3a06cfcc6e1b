"""`kernelwright optimize`: the main job."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.cli.config import load_config
from kernelwright.cli.model_options import (
    DownloadFlag,
    DTypeOption,
    HfCacheOption,
    InputFunctionOption,
    InputOption,
    ModelArgument,
    ModeOption,
    RestOption,
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
)
from kernelwright.core.account import Against
from kernelwright.core.candidate import Origin
from kernelwright.core.errors import BadInput
from kernelwright.core.events import ModelRanked, ModelVerified, WinnerTried

if TYPE_CHECKING:
    from kernelwright.core.candidate import ParamValue
    from kernelwright.core.tree import Node, Tree
    from kernelwright.report.model import Report

LISTED = 4
"""Regions left out that are named; the others are counted."""
WORTH = 1.005
"""A region left out is named if it would gain at least this much."""


class KernelRow(Answer):
    """One problem of the run and its best kernel."""

    case: str
    """Op, size and dtype."""
    count: int
    """How often it occurs in the model."""
    share: float
    """Share of the model's time before."""
    winner: str
    """Backend of the best candidate; `eager`, `compiled` or `the given file` kept the title they began with."""
    baseline: str
    """The faster of the two baselines, which was to be beaten; empty if none was accepted."""
    ratio: float | None
    """That baseline's time over the winner's time."""
    ci_low: float | None
    """Lower end of the 95 % interval."""
    ci_high: float | None
    """Upper end of the 95 % interval."""
    reason: str
    """The gate's sentence."""
    spliced: WinnerTried | None
    """What came of putting it into the model; None if there was nothing to put."""
    calls_to_pay: float | None
    """Calls of the model, or of a kernel by itself, after which the search has paid for itself; None if it has not."""


class OptimizeAnswer(Answer):
    """What `optimize --json` prints."""

    run_id: str
    """The run's id."""
    folder: str
    """The run folder with journal, blobs and results.tsv."""
    ranking: ModelRanked | None
    """Where the model's time goes, and which regions were left out and why."""
    kernels: list[KernelRow]
    """One entry per problem, in the order they were worked on."""
    model: ModelVerified | None
    """End to end, if anything was spliced."""
    rest: str
    """Who ran the rest of the model beside the winners."""
    optimized_kernels: str | None
    """Folder of the kernels that stay, as modules of their own; None if nothing is shipped."""
    line: str
    """The line of Python that uses them: in a model, or by themselves if there is none; empty if nothing is shipped."""
    put_back: str
    """The command that puts the winner's regions into the file the search began with; empty if there is none."""
    values: dict[str, int | float | str | bool]
    """Parameters of that winner that differ from what its own source says first; a build of the file needs them."""
    ended: str
    """Why the run stopped."""


def optimize(
    model: ModelArgument = None,
    inputs: InputOption = None,
    input_function: InputFunctionOption = None,
    dtype: DTypeOption = None,
    device: Annotated[
        str | None,
        typer.Option(help="Where it runs: cpu, cuda, cuda:1, auto. Default: auto, a GPU if there is one."),
    ] = None,
    mode: ModeOption = None,
    download: DownloadFlag = None,
    hf_cache: HfCacheOption = None,
    backend: Annotated[str | None, typer.Option(help="Language of the candidates, or `auto`.")] = None,
    against: Annotated[
        Against | None, typer.Option(help="The baseline that regions are ranked against. Default: compiled.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="Regions worked on at most, largest gain first. Default: 5.")
    ] = None,
    target_speedup: Annotated[
        float | None,
        typer.Option(help="Stop when so much is expected; refused at once if the floors exclude it."),
    ] = None,
    op: Annotated[
        str | None, typer.Option(help="Optimise this kernel type by itself, instead of a model.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Size of that kernel, such as `8192,8192` or `4096x50257 bf16`; may be repeated."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="With --op: begin with this .cpp or .cu file; only its marked regions may change.",
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time of the whole run: 90s, 10m, 8h. Default: 10m.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="How the search chooses: greedy, beam, mcts, evolve. Default: mcts.")
    ] = None,
    author: Annotated[
        list[str] | None,
        typer.Option(
            help="Who proposes kernels: auto, tuner, mover, llm:PROVIDER:MODEL, command:PROGRAM, none. Default: auto. "
            "Repeated, they work at the same time."
        ),
    ] = None,
    crew: Annotated[
        int | None, typer.Option(help="Authors at work at once. Default: as many as named; 2 for one llm.")
    ] = None,
    analyst: Annotated[
        str | None,
        typer.Option(help="Who says what a kernel waits for beside an llm: llm or rules. Default: llm."),
    ] = None,
    reflect: Annotated[
        bool | None,
        typer.Option("--reflect/--no-reflect", help="Have an llm look back on its attempts. Default: do."),
    ] = None,
    seeds: Annotated[
        bool | None,
        typer.Option("--seeds/--no-seeds", help="Judge the package's own kernels first. Default: do."),
    ] = None,
    drafts: Annotated[
        int | None, typer.Option(help="First kernels an llm is asked for at once without seeds. Default: 4.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Candidates built and raced together. Default: 2.")
    ] = None,
    max_evaluations: Annotated[
        int | None, typer.Option(help="Verdicts the search may ask for. Default: no limit.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="Dollars to spend on language models. Default: no limit.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens to spend on language models. Default: no limit.")
    ] = None,
    max_device_s: Annotated[
        str | None, typer.Option(help="Judging the search may ask for: 90s, 10m. Default: no limit.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Source of whatever the search draws. Default: 0.")] = None,
    rest: RestOption = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of a judged kernel; 0 for all cores.")
    ] = None,
    max_pairs: Annotated[int | None, typer.Option(help="Fresh process pairs per comparison at most.")] = None,
    lessons: Annotated[
        bool | None,
        typer.Option("--lessons/--no-lessons", help="Use and keep what runs have learnt. Default: do."),
    ] = None,
    knowledge: Annotated[
        list[str] | None, typer.Option(help="Folder of documents that briefs may quote; may be repeated.")
    ] = None,
    plugged: Annotated[
        list[str] | None,
        typer.Option("--plugins", help="Folder of your own backends, ops and authors; its code is run."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Fresh processes in which the whole model is timed. Default: 5.")
    ] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Rank a model's regions, judge replacements, keep what is proven faster, verify end to end."""
    from kernelwright.cli.live import watching
    from kernelwright.engine.app import start

    flags = model_flags(model, inputs, input_function, dtype, device, mode, download, hf_cache)
    flags |= {"backend": backend, "against": against, "top": top, "target_speedup": target_speedup}
    flags |= {"rest": rest, "threads": threads, "max_pairs": max_pairs, "model_processes": processes}
    flags |= {"op": op, "shape": tuple(shape) if shape else None, "budget_s": budget, "strategy": strategy}
    flags |= {"workers": workers, "max_evaluations": max_evaluations, "seed": seed, "max_cost": max_cost}
    flags |= {"max_tokens": max_tokens, "max_device_s": max_device_s}
    flags |= {"author": author[0], "beside": tuple(author[1:])} if author else {}
    flags |= {"crew": crew, "analyst": analyst, "reflect": reflect, "seeds": seeds, "drafts": drafts}
    flags |= {"lessons": lessons, "knowledge": tuple(knowledge) if knowledge else None}
    flags |= {"plugins": tuple(plugged) if plugged else None}
    flags |= {"source": str(source) if source else None}
    if op and model:
        raise BadInput("--op", f"the model {model!r} is given too", "Give one of them.")
    if shape and not op:
        raise BadInput("--shape", "no kernel is named", "Pass --op too, for example --op softmax.")
    if source and not op:
        raise BadInput(
            "--from", "what the file computes is not said", "Pass --op too, for example --op softmax."
        )
    config = load_config(flags) if op else model_config("optimize", flags)[0].on_a_gpu()
    with watching() as (tell, watch):
        folder = start(config, kernelwright_home(home), tell, watch)
    return told(folder, config.journal_url, as_json)


def told(folder: Path, journal_url: str | None, as_json: bool) -> int:
    """Write the reports of a run that has ended, and print what came of it."""
    from kernelwright.report.results import results_tsv
    from kernelwright.report.write import in_time, put_reports, read_report
    from kernelwright.store.journal import Journal

    journal = Journal.open(journal_url or folder, folder.name)
    tree = journal.tree()
    run = in_time(folder, tree, journal.events())
    report = read_report(folder, run)
    put_reports(folder, report, results_tsv(run.tree, run.when))
    answer = _answer(folder, tree, report)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK


def _answer(folder: Path, tree: "Tree", report: "Report") -> OptimizeAnswer:
    from kernelwright.core.manifest import FOLDER
    from kernelwright.engine.verifying import rest_of

    kernels = folder / FOLDER
    payback = {one.key: one.calls_to_pay for one in report.problems}
    command, values = _put_back(folder, tree)
    return OptimizeAnswer(
        run_id=folder.name,
        folder=str(folder),
        ranking=tree.ranked,
        kernels=[_row(tree, key, payback[key]) for key in tree.problems],
        model=tree.verified,
        rest=rest_of(kernels),
        optimized_kernels=str(kernels) if kernels.is_dir() else None,
        line=report.use,
        put_back=command,
        values=values,
        ended=tree.ended.reason if tree.ended else "not ended",
    )


def _put_back(folder: Path, tree: "Tree") -> tuple[str, "dict[str, ParamValue]"]:
    """Return the command that takes a winner back into the file the search began with, and the values it needs."""
    import shlex

    from kernelwright.engine.winners import write_regions_of_winner

    found = write_regions_of_winner(folder, tree)
    if found is None:
        return "", {}
    words = ["kernelwright", "new", "--from", str(found.original), "--back", str(found.winner)]
    return shlex.join(words), found.values


def _row(tree: "Tree", key: str, calls_to_pay: float | None) -> KernelRow:
    from kernelwright.report.standing import standing

    problem, held = tree.problems[key], tree.titles.get(key, [])
    best = tree.nodes[key, held[-1]] if held else None
    found = best.comparisons[-1] if best and best.comparisons else None
    return KernelRow(
        case=problem.cases[0].label,
        count=problem.count,
        share=problem.share,
        winner=_named(best, is_first=not held[1:]) if best else "none",
        baseline=tree.nodes[key, held[0]].candidate.backend if held else "",
        ratio=found.ratio if found else None,
        ci_low=found.ci_low if found else None,
        ci_high=found.ci_high if found else None,
        reason=standing(tree, key).outcome or "not judged",
        spliced=tree.tried.get(key),
        calls_to_pay=calls_to_pay,
    )


def _named(best: "Node", *, is_first: bool) -> str:
    """Return a title's holder in a word."""
    is_file = is_first and best.candidate.origin is not Origin.BASELINE
    return "the given file" if is_file else best.candidate.backend


def _print(answer: OptimizeAnswer) -> None:
    from rich.text import Text

    from kernelwright.report.axes import calls

    console, what = out(), "the model" if answer.ranking else "the kernel"
    for row in answer.kernels:
        told = f"  x{row.count} in the model, {100 * row.share:.1f} % of its time" if answer.ranking else ""
        console.print(Text.assemble((row.case, "bold"), told))
        console.print(f"  winner: {row.winner}; {row.reason}", markup=False)
        if row.spliced:
            words = "stays" if row.spliced.kept else "goes"
            console.print(f"  in the model: {words}; {row.spliced.reason}", markup=False)
        if row.calls_to_pay is not None:
            after = calls(row.calls_to_pay)
            console.print(f"  the search has paid for itself after {after} calls of {what}", markup=False)
    if answer.ranking:
        for line in left_out(answer.ranking):
            console.print(line, markup=False)
    if answer.model:
        for line in end_to_end(answer.model):
            console.print(line, markup=False)
    if answer.put_back:
        console.print(f"put it back: {answer.put_back}", markup=False, soft_wrap=True)
    if answer.values:
        told = ", ".join(f"{name}={value}" for name, value in answer.values.items())
        console.print(f"  it was proven with {told}: build the file with these values", markup=False)
    console.print(f"ended: {answer.ended}", markup=False)
    console.print(f"report: {answer.folder}/report.html", markup=False, soft_wrap=True)
    if answer.line:
        console.print(answer.line, markup=False, soft_wrap=True)


def left_out(found: ModelRanked) -> list[str]:
    """Return what the run did not work on though there was something to win, and how much is at its floor."""
    skipped = [one for one in found.regions if one.skipped and one.gain >= WORTH]
    lines = [
        f"left out: {one.name}  x{one.count}, would gain x{one.gain:.3f}: {one.skipped}"
        for one in skipped[:LISTED]
    ]
    if more := skipped[LISTED:]:
        lines.append(f"left out: {len(more)} more; the journal lists them")
    at_floor = sum(one.share for one in found.regions if one.skipped and one.gain < WORTH)
    if at_floor:
        lines.append(f"{100 * at_floor:.1f} % of the time is in regions with nothing left to win")
    return lines


def end_to_end(found: ModelVerified) -> list[str]:
    """Return what was proven of the whole model, in words."""
    ratios = [
        f"{_interval(found.ratio, found.ci_low, found.ci_high)} over the same graph without the winners"
    ]
    ratios.append(f"{_interval(found.eager_ratio, found.eager_ci_low, found.eager_ci_high)} over eager")
    if found.compiled_ratio and found.compiled_ci_low and found.compiled_ci_high:
        compiled = _interval(found.compiled_ratio, found.compiled_ci_low, found.compiled_ci_high)
        ratios.append(f"{compiled} over torch.compile")
    under = " under a CUDA graph" if found.mode == "graph" else ""
    return [
        f"end to end{under}  {', '.join(ratios)}",
        f"  error against float64: {found.drift:.2f} times the framework's own; {found.fallbacks} fallbacks",
        *(f"  {note}" for note in found.notes),
        f"  {'shipped' if found.shipped else 'not shipped'}: {found.reason}",
    ]


def _interval(ratio: float, low: float, high: float) -> str:
    return f"x{ratio:.3f} [{low:.3f}, {high:.3f}]"
