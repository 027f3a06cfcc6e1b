"""Judging one file: what it is, which problem it is put to, the verdict, and the comparison with another.

1. The file's extension and content say its language; what cannot be judged is refused before any process starts.
2. The problem comes from an op and sizes, from a problem file, or from a reference file that the judge describes.
3. The judge evaluates the file; if it passed and there is something to compare it with, that is judged and compared.
"""

import ast
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice, ParamValue
from kernelwright.core.case import Case, DType
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import BadInput
from kernelwright.core.frozen import digest
from kernelwright.core.messages.judge import Disqualified, JudgeSettings
from kernelwright.core.model_spec import AUTO_DEVICE
from kernelwright.core.modules import INIT_INPUTS, OP
from kernelwright.core.plan_language import PlanFault, first_values
from kernelwright.core.ports import Op
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Comparison, Evaluation, Profile, StageResult, Status
from kernelwright.engine.own_baseline import own_baseline
from kernelwright.engine.seeds import compiled_baseline, seed
from kernelwright.engine.service import JudgeClient, Show
from kernelwright.hardware.calibrate import ceilings, known_ceilings
from kernelwright.hardware.detect import cpu_device, devices, torch_device, usable_cores
from kernelwright.store.disk import disk_errors, make_folder

EXTENSIONS = {".cpp": "cpp", ".cc": "cpp", ".cu": "cuda"}
BASELINES = ("eager", "compiled")
"""Words `--against` takes besides a file."""
CPU_ELEMENTS = 1 << 18
"""Without `--case`, the largest public size up to this many elements is taken on a CPU."""
SIZE = re.compile(r"(\d+(?:x\d+)*) (\w+)((?: \w+=\S+)*)")


@dataclass(frozen=True)
class Wish:
    """What is to be judged, as the command line says it."""

    file: Path
    op: str | None = None
    problem: Path | None = None
    reference: Path | None = None
    against: str | None = None
    """A file, `eager` or `compiled`."""
    profile: Profile = Profile.KEEP
    cases: tuple[str, ...] = ()
    """Sizes such as `256x256 fp32 eps=1e-6`."""
    write_problem: Path | None = None
    placed: bool = False
    """Whether its place under the roofline is wanted too: a CPU has no data sheet, so it is measured once."""
    threads: int | None = None
    """As given with `--threads`; the command that shows a failure again repeats it."""
    home: Path | None = None
    """As given with `--home`; repeated too."""


@dataclass(frozen=True)
class Finding:
    """What the judge said."""

    problem: Problem
    candidate: Candidate
    evaluation: Evaluation
    comparison: Comparison | Disqualified | None = None
    is_calibrated: bool = False
    """Whether this machine knows what the device was measured to reach."""

    @property
    def found_out(self) -> Disqualified | None:
        """Return how the candidate failed while it was compared, if it was not the other one that did."""
        lost = self.comparison
        return lost if isinstance(lost, Disqualified) and lost.candidate_hash == self.candidate.hash else None

    @property
    def passed(self) -> bool:
        """Tell whether the candidate passed its profile, and was not found out while it was compared."""
        return self.evaluation.status is Status.ACCEPTED and self.found_out is None


def judge_file(
    wish: Wish,
    config: RunConfig,
    home: Path,
    show: Show,
    then: Callable[[Finding, Path, JudgeClient], None] = lambda _finding, _blobs, _judge: None,
) -> Finding:
    """Return the verdict on a file; `then` is told of it while judge and built artefacts are still there."""
    source, backend = _source(wish.file), _backend(wish.file)
    if wish.against and wish.profile is Profile.QUICK:
        raise BadInput("--against", "a quick look proves no speed", "Pass --profile keep or ship.")
    threads = config.threads or usable_cores()
    device = _device(backend)
    given = None if wish.reference else _given_problem(wish, device)
    incumbent = _source(Path(wish.against)) if wish.against and wish.against not in BASELINES else None
    cache = home / "cache" / "builds"
    with disk_errors(cache):
        make_folder(cache)
    is_placed = wish.placed and device.kind is DeviceKind.CPU
    limits = ceilings(device, home, show=show).ceilings if is_placed else known_ceilings(device, home)
    with tempfile.TemporaryDirectory(prefix="kernelwright-judge-") as scratch:
        settings = JudgeSettings(
            threads=threads,
            max_pairs=config.max_pairs,
            alpha=config.alpha,
            hidden_shapes=config.hidden_shapes,
            cache_folder=str(cache),
            blob_folder=str(Path(scratch) / "blobs"),
            ceilings=limits,
        )
        show("starting the judge")
        judge = JudgeClient(settings, show)
        try:
            problem, extra = _described(given, wish.reference, device, judge)
            if wish.write_problem:
                _write(wish.write_problem, problem)
            candidate = _candidate(wish.file, source, problem, extra)
            evaluation = judge.evaluate(problem, candidate, wish.profile)
            finding = Finding(problem, candidate, evaluation, is_calibrated=limits is not None)
            then(finding, Path(settings.blob_folder), judge)
            if wish.against is None or not finding.passed:
                return finding
            other = _incumbent(wish.against, incumbent, problem, threads, extra)
            return replace(finding, comparison=_compared(wish, finding, other, judge))
        finally:
            judge.close()


def _compared(wish: Wish, found: Finding, other: Candidate, judge: JudgeClient) -> Comparison | Disqualified:
    verdict = judge.evaluate(found.problem, other, wish.profile)
    if verdict.status is not Status.ACCEPTED:
        words = f"it is {verdict.status.value} itself: {verdict.failure.reason if verdict.failure else ''}"
        raise BadInput(
            f"--against {wish.against}", words, "Compare with a kernel that passes the same profile."
        )
    return judge.compare(found.problem, other, found.candidate, confirm=wish.profile is Profile.SHIP)


def source_of(path: Path) -> tuple[str, str]:
    """Return the text of a source file and its language."""
    return _source(path), _backend(path)


def _source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadInput(str(path), "does not exist", "Name a source file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), f"cannot be read: {error}", "Give a source file in UTF-8.") from error


def _backend(path: Path) -> str:
    """Return the language of a file, from its extension and, for Python, from what it defines."""
    if path.suffix in EXTENSIONS:
        return EXTENSIONS[path.suffix]
    if foreign := plugins.language_of(path.suffix):
        return foreign
    if path.suffix != ".py":
        known = ", ".join((*EXTENSIONS, ".py"))
        raise BadInput(str(path), f"no language has the extension {path.suffix!r}", f"Known: {known}.")
    try:
        body = ast.parse(_source(path)).body
    except (SyntaxError, ValueError) as error:
        raise BadInput(str(path), f"not valid Python: {error}", "Mend that line.") from error
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if "plan" in defined:
        return "triton"
    if defined & {"kernel_fn", "ModelNew"}:
        return "python"
    remedy = "Define plan (Triton), kernel_fn or ModelNew; `kernelwright backends` lists the languages."
    raise BadInput(str(path), "no plan, no kernel_fn and no ModelNew in it", remedy)


def _device(backend: str) -> Device:
    """Return where a language's kernels run here: the first GPU for all but C++, else the CPU."""
    if backend == "cpp":
        return cpu_device()
    return devices()[0]


def _given_problem(wish: Wish, device: Device) -> Problem:
    """Return the problem of an op and sizes, or of a problem file, on this machine's device."""
    if wish.problem is not None:
        text = _source(wish.problem)
        try:
            found = Problem.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            problem = f"not a problem: {where}: {first['msg']}"
            raise BadInput(str(wish.problem), problem, "--write-problem FILE writes one.") from error
        _op(found.op)
        return found.model_copy(update={"device": device})
    op = _op(wish.op or "")
    cases = [_case(op, text) for text in wish.cases] or [_usual_case(op, device)]
    return Problem(op=wish.op or "", cases=tuple(cases), device=device)


def device_for(config: RunConfig) -> Device:
    """Return where a kernel by itself is optimised: the device asked for, else the first GPU, else the CPU."""
    if config.device == "cpu" or config.backend == "cpp":
        return cpu_device()
    return torch_device(config.device) if config.device not in (None, AUTO_DEVICE) else devices()[0]


def problem_at(op: str, sizes: Sequence[str], device: Device) -> Problem:
    """Return the problem of an op at some sizes; a usual one if none is named."""
    found = _op(op)
    cases = [_case(found, _spelled(text, found), "--shape") for text in sizes] or [_usual_case(found, device)]
    return Problem(op=op, cases=tuple(cases), device=device)


def _spelled(text: str, op: Op) -> str:
    """Return a size as `--case` takes it: `8192,8192` is `8192x8192` in the op's first type."""
    extents, _, rest = text.strip().replace(",", "x").partition(" ")
    return f"{extents} {rest or op.DTYPES[0].value}"


def _op(name: str) -> Op:
    known = plugins.names("ops")
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise BadInput("--op", f"there is no op {name!r}", f"{hint}Known: {', '.join(known)}.")
    return cast(Op, plugins.load("ops", name))


def _usual_case(op: Op, device: Device) -> Case:
    """Return the public case to judge at: of CPU size in fp32, or the largest in fp16."""
    public = _public_cases(op)
    if device.kind is not DeviceKind.CPU:
        return [case for case in public if case.dtype is DType.FP16][-1]
    fitting = [case for case in public if sum(spec.numel for spec in case.inputs) <= CPU_ELEMENTS]
    return [case for case in fitting if case.dtype is DType.FP32][-1]


def _public_cases(op: Op) -> list[Case]:
    public = list(op.public_cases())
    if not public:
        raise BadInput("--op", "a module has no size of its own", "Pass its file with --reference.")
    return public


def _case(op: Op, text: str, flag: str = "--case") -> Case:
    """Return the case a size names, such as `256x256 fp32 eps=1e-6`."""
    usual = _public_cases(op)[0]
    example = f"{'x'.join(map(str, usual.axes.values()))} {usual.dtype.value}"
    remedy = f"Write the extents of {', '.join(usual.axes)} and a type, for example {example!r}."
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise BadInput(flag, f"{text!r} is no size", remedy)
    extents = [int(word) for word in match[1].split("x")]
    if len(extents) != len(usual.axes):
        raise BadInput(flag, f"{text!r} has {len(extents)} extents, not {len(usual.axes)}", remedy)
    if match[2] not in [dtype.value for dtype in op.DTYPES]:
        served = ", ".join(dtype.value for dtype in op.DTYPES)
        raise BadInput(flag, f"the op has no type {match[2]!r}", f"Known: {served}.")
    scalars = dict(usual.scalars)
    for word in match[3].split():
        name, _, value = word.partition("=")
        if name not in scalars:
            raise BadInput(flag, f"there is no scalar {name!r}", f"Known: {', '.join(scalars) or 'none'}.")
        scalars[name] = _scalar(name, value, scalars[name], flag)
    try:
        return op.case(dict(zip(usual.axes, extents, strict=True)), DType(match[2]), scalars)
    except ValueError as error:
        raise BadInput(flag, f"{text!r} is not legal: {error}", remedy) from error


def _scalar(name: str, text: str, usual: bool | int | float, flag: str) -> bool | int | float:
    """Return a scalar of the type the op has it in."""
    if isinstance(usual, bool) and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if isinstance(usual, int) else float(text)
    except ValueError as error:
        kind = type(usual).__name__
        raise BadInput(flag, f"{name}={text} is no {kind}", f"For example {name}={usual}.") from error


def _described(
    given: Problem | None, reference: Path | None, device: Device, judge: JudgeClient
) -> tuple[Problem, dict[str, ParamValue]]:
    """Return the problem, and what a candidate must be told to be built like a user's module."""
    if given is not None and (given.op != OP or given.reference is None):
        return given, {}
    if given is not None:
        name = str(given.reference)
    else:
        assert reference is not None, "a problem is given or described"
        name = f"file:{reference.resolve()}#{digest(_source(reference))}"
    found = judge.describe(name)
    if found.case is None:
        remedy = "A reference has Model, get_inputs() and get_init_inputs()."
        raise BadInput(str(reference or name), f"cannot be a reference: {found.error}", remedy)
    problem = given or Problem(op=OP, cases=(found.case,), device=device, reference=name)
    return problem, {INIT_INPUTS: found.init_inputs}


def _candidate(path: Path, source: str, problem: Problem, extra: Mapping[str, ParamValue]) -> Candidate:
    backend = _backend(path)
    try:
        values = dict(extra) if backend == "python" else first_values(source)
    except PlanFault:
        values = {}  # the static guards refuse the file by name
    return Candidate(
        op=problem.op,
        backend=backend,
        source=source,
        choices=(ParamChoice(values=values),),
        origin=Origin.AUTHOR,
        author=Author(name="file", detail=path.name),
    )


def _incumbent(
    against: str, source: str | None, problem: Problem, threads: int, extra: Mapping[str, ParamValue]
) -> Candidate:
    """Return what the candidate is compared with: another file, or a baseline of the op."""
    if source is not None:
        return _candidate(Path(against), source, problem, extra)
    if against == "eager":
        found = own_baseline(problem) or seed(problem.op, "eager", Origin.BASELINE)
    else:
        found = compiled_baseline(problem, threads)
    if found is None:
        raise BadInput(f"--against {against}", f"op {problem.op!r} has no baseline", "Give a file.")
    return found


def _write(path: Path, problem: Problem) -> None:
    with disk_errors(path):
        path.write_text(problem.model_dump_json(indent=2) + "\n", encoding="utf-8")


def reproducing(wish: Wish, problem: Problem, failure: StageResult | None) -> str | None:
    """Return the command that shows a failing case again, if there is one: alone if words can say it, or with all."""
    if failure is None or failure.failing_case is None:
        return None
    own = [case for case in problem.cases if case.label == failure.failing_case]
    if problem.reference or problem.captured or not all(_is_said_by_words(case) for case in own):
        return _command(wish, *_asked(wish))
    op, size = _words(failure.failing_case, failure.failing_scalars)
    return _command(wish, "--op", op, "--case", size)


def comparing_again(wish: Wish) -> str:
    """Return the command that shows a failing comparison again: it takes all cases."""
    return _command(wish, *_asked(wish), "--against", str(wish.against))


def _command(wish: Wish, *asked: str) -> str:
    words = ["kernelwright", "judge", str(wish.file), *asked, "--profile", wish.profile.value]
    return shlex.join([*words, *_flags({"--threads": wish.threads, "--home": wish.home})])


def _asked(wish: Wish) -> list[str]:
    """Return what the file implements, in the words it was given in."""
    given = _flags({"--op": wish.op, "--problem": wish.problem, "--reference": wish.reference})
    return [*given, *(word for size in wish.cases for word in ("--case", size))]


def _flags(given: Mapping[str, object]) -> list[str]:
    return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]


def _words(label: str, scalars: Mapping[str, bool | int | float]) -> tuple[str, str]:
    """Return `--op` and `--case` of a case."""
    op, size = label.split(" ", 1)
    return op, size + "".join(f" {name}={value}" for name, value in scalars.items())


def _is_said_by_words(case: Case) -> bool:
    """Tell whether `--op` and `--case` give this very case: strides, offsets and tf32 have no words."""
    op, size = _words(case.label, case.scalars)
    try:
        return _case(_op(op), size).hash == case.hash
    except BadInput:
        return False
