"""`kernelwright judge`: one file, one verdict."""

from pathlib import Path
from typing import Annotated

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
from kernelwright.core.roofline import sol_score
from kernelwright.core.verdict import CaseTiming, Comparison, Profile, StageResult, Status, Timing
from kernelwright.engine.judging import Finding, Wish


class Reached(Answer):
    """How near one case came to what the device can do."""

    label: str
    """Which case."""
    floor_share: float | None
    """The measured floor over the certified time; above 1 the call was faster than the device was measured to be."""
    sol_score: float | None
    """1 at the floor, 0.5 at the kernel it is compared with, towards 0 for slower; in the rounds of the comparison."""


class JudgeAnswer(Answer):
    """What `judge --json` prints."""

    file: str
    """The file judged."""
    backend: str
    """The language it was taken for."""
    cases: list[str]
    """Op, sizes and types of the problem."""
    device: str
    """Where it ran."""
    profile: Profile
    """How much was checked."""
    status: Status
    """The verdict."""
    passed: bool
    """Whether it passed its profile; the exit code says the same."""
    stages: list[StageResult]
    """What each stage found, up to the first failure."""
    reproduce: str | None
    """Command that shows the failure again: the case alone, all cases of its problem, or the comparison."""
    timing: Timing | None
    """Certified times; only behind a passed profile."""
    reached: list[Reached]
    """Floor share and score of every timed case, where its floor is known."""
    is_calibrated: bool
    """Whether floors are known here; `kernelwright doctor --calibrate` measures them."""
    comparison: Comparison | None
    """Against the other kernel, if one was given and both were timed."""
    disqualified: str | None
    """Why no comparison came about: what failed while it was timed."""
    environment: dict[str, str]
    """Versions, threads and sandbox the verdict rests on."""
    seconds: float
    """Wall time of the evaluation."""


def judge(
    file: Annotated[
        Path, typer.Argument(help="The kernel: .cpp, .cu, or .py with plan, kernel_fn or ModelNew.")
    ],
    op: Annotated[
        str | None, typer.Option(help="Kernel type it implements; `kernelwright ops` lists them.")
    ] = None,
    problem: Annotated[
        Path | None, typer.Option(help="A problem as JSON, as --write-problem writes it.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="A file with Model, get_inputs and get_init_inputs (KernelBench).")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Compare with this file, or with `eager` or `compiled`.")
    ] = None,
    profile: Annotated[Profile, typer.Option(help="How much is checked.")] = Profile.KEEP,
    case: Annotated[
        list[str] | None,
        typer.Option(help='Size to judge at, such as "256x256 fp32 eps=1e-6"; may be repeated.'),
    ] = None,
    write_problem: Annotated[
        Path | None, typer.Option(help="Write the problem as JSON to this file.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of a judged kernel; 0 for all cores.")
    ] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Judge one kernel file: every stage of a profile, certified times, the comparison with another kernel."""
    from kernelwright.cli.config import load_config
    from kernelwright.core.errors import BadInput
    from kernelwright.engine.judging import judge_file

    if sum(item is not None for item in (op, problem, reference)) != 1:
        raise BadInput(
            "command line",
            "what the file implements is not clear",
            "Give one of --op, --problem, --reference.",
        )
    if case and op is None:
        raise BadInput("--case", "sizes belong to an op", "Give --op, or put them into the problem.")
    sizes = tuple(case or ())
    wish = Wish(
        file, op, problem, reference, against, profile, sizes, write_problem, threads=threads, home=home
    )
    config = load_config({"threads": threads})
    with telling("starting") as tell:
        finding = judge_file(wish, config, kernelwright_home(home), tell)
    answer = answer_of(wish, finding)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK if answer.passed else ExitCode.NEGATIVE


def answer_of(wish: Wish, finding: Finding) -> JudgeAnswer:
    """Return what the judge said of a file."""
    from kernelwright.engine.judging import comparing_again, reproducing

    found, compared, lost = finding.evaluation, finding.comparison, finding.found_out
    timing = None if lost else found.timing
    return JudgeAnswer(
        file=str(wish.file),
        backend=finding.candidate.backend,
        cases=[case.label for case in finding.problem.cases],
        device=finding.problem.device.title,
        profile=found.profile,
        status=lost.status if lost else found.status,
        passed=finding.passed,
        stages=list(found.stages),
        reproduce=comparing_again(wish) if lost else reproducing(wish, finding.problem, found.failure),
        timing=timing,
        reached=_reached(timing, compared if isinstance(compared, Comparison) else None),
        is_calibrated=finding.is_calibrated,
        comparison=compared if isinstance(compared, Comparison) else None,
        disqualified=None if compared is None or isinstance(compared, Comparison) else compared.reason,
        environment=found.environment,
        seconds=found.seconds,
    )


def _reached(timing: Timing | None, compared: Comparison | None) -> list[Reached]:
    """Return floor share and score of every timed case."""
    raced = {one.case_hash: one for one in compared.cases} if compared else {}
    found = []
    for timed in timing.cases if timing else ():
        pair, score = raced.get(timed.case_hash), None
        if pair is not None and timed.floor_us is not None:
            score = sol_score(pair.challenger_us, timed.floor_us, pair.incumbent_us)
        found.append(Reached(label=timed.label, floor_share=timed.floor_share, sol_score=score))
    return found


def _word(stage: StageResult) -> tuple[str, str]:
    """Return how a stage ended, and in which colour to say so."""
    if not stage.passed:
        return "failed", "red"
    # Only a stage that had nothing to check passes with a reason.
    return ("skipped", "yellow") if stage.reason else ("passed", "green")


def _times(timed: CaseTiming, reached: Reached) -> str:
    """Return what a case takes, cold and warm, and how near that is to the floor."""
    time = f"{timed.label}: {timed.median_us:.1f} us (+- {timed.mad_us:.1f})"
    words = (
        [f"{time} cold only"] if timed.warm_us is None else [f"{time} cold", f"{timed.warm_us:.1f} us warm"]
    )
    if reached.floor_share is not None:
        words.append(f"floor {timed.floor_us:.1f} us ({reached.floor_share:.0%} of the time)")
    if reached.sol_score is not None:
        words.append(f"SOL score {reached.sol_score:.2f}")
    return ", ".join(words)


def _print(answer: JudgeAnswer) -> None:
    from rich.text import Text

    console = out()
    console.print(
        f"{answer.file} ({answer.backend}), {', '.join(answer.cases)}, on {answer.device}", markup=False
    )
    console.print(f"{'stage':15} {'result':7} {'checked':>7} {'seconds':>8}  reason", style="bold")
    for stage in answer.stages:
        where = f" ({stage.failing_case})" if stage.failing_case else ""
        line = Text(f"{stage.stage.value:15} ")
        word, colour = _word(stage)
        line.append(f"{word:7}", colour)
        line.append(f" {stage.checked:7d} {stage.seconds:8.1f}  {stage.reason}{where}".rstrip())
        console.print(line, soft_wrap=True)
    for timed, reached in zip(answer.timing.cases if answer.timing else (), answer.reached, strict=True):
        console.print(_times(timed, reached), markup=False, soft_wrap=True)
    if answer.timing and not answer.is_calibrated:
        console.print("no floor is known here: `kernelwright doctor --calibrate` measures it", markup=False)
    if found := answer.comparison:
        ratio = f"x{found.ratio:.3f} [{found.ci_low:.3f}, {found.ci_high:.3f}] (95 %)"
        outcome = f"{found.outcome.value.replace('_', ' ')}: {ratio} over {found.pairs} fresh pairs"
        console.print(f"{outcome}, evidence {found.e_faster:.3g}", markup=False)
    if answer.disqualified:
        console.print(f"no comparison: {answer.disqualified}", markup=False)
    verdict = "passed" if answer.passed else "rejected"
    told = f" under {answer.profile.value}: {answer.status.value}"
    console.print(Text.assemble((verdict, "bold"), told))
    if answer.reproduce:
        what = "comparison" if answer.disqualified else "case"
        console.print(f"the failing {what} again: {answer.reproduce}", markup=False, soft_wrap=True)
