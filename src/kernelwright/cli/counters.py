"""`kernelwright counters`: one file, its hardware counters, and what they say it waits for."""

import json
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
from kernelwright.core.counters import KernelCounters, NoCounters
from kernelwright.core.device import DeviceKind
from kernelwright.core.diagnosis import Diagnosis, Metric
from kernelwright.core.errors import BadInput
from kernelwright.core.timeline import Timeline
from kernelwright.core.verdict import Profile, Status

if TYPE_CHECKING:
    from kernelwright.engine.judging import Finding
    from kernelwright.engine.profiling import Counted
    from kernelwright.engine.service import JudgeClient


class CountersAnswer(Answer):
    """What `counters --json` prints."""

    file: str
    """The file looked at."""
    backend: str
    """The language it was taken for."""
    case: str
    """Op, sizes and type of what was profiled."""
    device: str
    """Where it ran."""
    status: Status
    """The verdict: only an accepted file is profiled."""
    failure: str
    """Why it was not accepted."""
    tool: str
    """Who told of the kernels, with its version."""
    lack: NoCounters
    """Why there are no hardware counters, in a word."""
    reason: str
    """The same in a sentence, with the remedy; or why some are missing."""
    kernels: list[KernelCounters]
    """Every launch of a call, with its share of the time."""
    metrics: list[Metric]
    """Everything the diagnosis rests on."""
    missing: list[str]
    """Counters the profiler or the machine does not have."""
    diagnoses: list[Diagnosis]
    """What it waits for, strongest first."""
    timeline: Timeline | None
    """Where inside its kernels the time goes, with --timeline."""


def counters(
    file: Annotated[Path, typer.Argument(help="The kernel: .cu, .cpp, or .py with plan.")],
    op: Annotated[str, typer.Option(help="Kernel type it implements; `kernelwright ops` lists them.")],
    case: Annotated[
        str | None, typer.Option(help='Size to look at, such as "4096x4096 fp16"; a usual one if left out.')
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            help="Also have copies of its Triton kernels record every step, and write the trace to this file."
        ),
    ] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Judge one kernel file, read the hardware counters of its calls, and say what it waits for."""
    from kernelwright.cli.config import load_config
    from kernelwright.engine.judging import Wish, judge_file
    from kernelwright.engine.profiling import counted_file
    from kernelwright.engine.timing_inside import timed_inside
    from kernelwright.store.disk import disk_errors

    if timeline is not None and not timeline.parent.is_dir():
        raise BadInput(
            "--timeline", f"there is no folder {timeline.parent}", "Make it, or name another file."
        )
    place, counted, inside = kernelwright_home(home), list["Counted"](), list[Timeline]()
    wish = Wish(file, op, profile=Profile.KEEP, cases=(case,) if case else (), placed=True)
    with telling("starting") as tell:

        def read(finding: "Finding", blobs: Path, judge: "JudgeClient") -> None:
            if finding.evaluation.timing:
                counted.append(counted_file(finding, blobs, place, judge))
            if timeline is not None:
                found, trace = timed_inside(finding, blobs, judge)
                inside.append(found)
                if trace:
                    with disk_errors(timeline):
                        timeline.write_text(json.dumps(trace), encoding="utf-8")

        finding = judge_file(wish, load_config({}), place, tell, read)
    answer = _answer(file, finding, counted[0] if counted else None, inside[0] if inside else None)
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK if counted else ExitCode.NEGATIVE


def _answer(
    file: Path, finding: "Finding", counted: "Counted | None", inside: Timeline | None
) -> CountersAnswer:
    verdict, failure = finding.evaluation, finding.evaluation.failure
    profile = counted.profile if counted else None
    seen = profile if profile is None or profile.kernels else (counted.times if counted else None)
    return CountersAnswer(
        file=str(file),
        backend=finding.candidate.backend,
        case=profile.label if profile else ", ".join(one.label for one in finding.problem.cases),
        device=finding.problem.device.title,
        status=verdict.status,
        failure=failure.reason if failure else "",
        tool=seen.tool if seen else "",
        lack=profile.lack if profile else NoCounters.FAILED,
        reason=profile.reason if profile else _why_none(finding),
        kernels=list(seen.kernels) if seen else [],
        metrics=list(counted.metrics) if counted else [],
        missing=list(profile.missing) if profile else [],
        diagnoses=list(counted.diagnoses) if counted else [],
        timeline=inside,
    )


def _why_none(finding: "Finding") -> str:
    """Return why a file was not put under a profiler at all, and what to do."""
    if finding.problem.device.kind is DeviceKind.CPU and finding.candidate.backend != "cpp":
        return f"there is no GPU here, and a {finding.candidate.backend} kernel has some only there."
    return "only an accepted file is profiled; `kernelwright judge` says more of why this one is not."


def _print(answer: CountersAnswer) -> None:
    console = out()
    console.print(f"{answer.file} ({answer.backend}), {answer.case}, on {answer.device}", markup=False)
    if answer.status is not Status.ACCEPTED:
        console.print(f"{answer.status.value}: {answer.failure}", markup=False, soft_wrap=True)
    if answer.reason:
        missing = "no hardware counters" if answer.lack else "some are missing"
        console.print(f"{missing}: {answer.reason}", markup=False, soft_wrap=True)
    if answer.kernels:
        console.print(f"{'share':>6} {'us':>10}  kernel, by {answer.tool}", style="bold", markup=False)
    for kernel in answer.kernels:
        console.print(f"{kernel.share:6.1%} {kernel.time_us:10.2f}  {kernel.name}", markup=False)
    if answer.metrics:
        console.print(f"{'source':>9} {'value':>12}  metric", style="bold", markup=False)
    for metric in answer.metrics:
        value = f"{metric.value:12.6g}  {metric.name} {metric.unit}".rstrip()
        console.print(f"{metric.source.value:>9} {value}", markup=False, soft_wrap=True)
    for name in answer.missing:
        console.print(f"{'missing':>9} {'':12}  {name}", markup=False)
    for one in answer.diagnoses:
        console.print(f"{one.severity:6.0%} {one.text}", markup=False, soft_wrap=True)
    if answer.timeline is not None:
        _print_timeline(answer.timeline)


def _print_timeline(timeline: Timeline) -> None:
    console = out()
    if timeline.reason:
        console.print(f"no timeline: {timeline.reason}", markup=False, soft_wrap=True)
    for kernel in timeline.kernels:
        seen = f"{kernel.blocks} blocks of {kernel.warps} warps, {kernel.cycles:.0f} cycles each"
        console.print(f"inside {kernel.kernel}: {seen}", style="bold", markup=False)
        console.print(f"{'share':>6} {'own cycles':>11} {'times':>8}  step, line of the file", markup=False)
        for step in kernel.steps:
            where = f"{step.kind} {step.line}" if step.line else step.kind
            console.print(
                f"{step.share:6.1%} {step.own_cycles:11.0f} {step.times:8.1f}  {where}", markup=False
            )
        if kernel.lost:
            console.print(f"{kernel.lost} records were overwritten by later ones", markup=False)
