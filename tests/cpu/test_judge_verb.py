"""`kernelwright judge` as a user meets it: exit codes, stages, the failing case again, KernelBench pairs."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import kernelwright
from kernelwright.cli.judge import judge as judge_command
from kernelwright.cli.screen import ExitCode
from kernelwright.core.candidate import Origin
from kernelwright.core.case import Case, Compute, DType
from kernelwright.core.errors import ServiceDied
from kernelwright.core.modules import Named, Role, arguments, read, spelled
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Profile, StageResult, Status
from kernelwright.engine import judging
from kernelwright.engine.judging import Wish, comparing_again, reproducing
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import cpu_device
from kernelwright.ops import matmul, rmsnorm
from tests.cpu.fusions import Gelu, fusion, problem_of

SEEDS = Path(kernelwright.__file__).parent / "seeds"
CPP = SEEDS / "rmsnorm" / "cpp.cpp"
REFERENCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, cols, hidden):
        super().__init__()
        self.linear = nn.Linear(cols, hidden)
        self.register_buffer("spread", torch.ones(hidden))

    def forward(self, x, slope):
        y = self.linear(x) / torch.sqrt(self.spread)
        return torch.where(y > 0, y, slope * y)


def get_inputs():
    return [torch.rand(16, 32), 0.25]


def get_init_inputs():
    return [32, 24]
"""
MODEL_NEW = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_leaky(x, w, b, s, out, slope, cols, hidden, COLS: tl.constexpr, HIDDEN: tl.constexpr):
    row = tl.program_id(0)
    c, h = tl.arange(0, COLS), tl.arange(0, HIDDEN)
    values = tl.load(x + row * cols + c, mask=c < cols, other=0.0)
    inside = (h[:, None] < hidden) & (c[None, :] < cols)
    weights = tl.load(w + h[:, None] * cols + c[None, :], mask=inside, other=0.0)
    y = tl.sum(weights * values[None, :], axis=1) + tl.load(b + h, mask=h < hidden, other=0.0)
    y = y / tl.sqrt(tl.load(s + h, mask=h < hidden, other=1.0))
    tl.store(out + row * hidden + h, tl.where(y > 0, y, slope * y), mask=h < hidden)


class ModelNew(nn.Module):
    def __init__(self, cols, hidden):
        super().__init__()
        self.linear = nn.Linear(cols, hidden)
        self.register_buffer("spread", torch.ones(hidden))

    def forward(self, x, slope):
        rows, cols = x.shape
        hidden = self.linear.weight.shape[0]
        out = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
        linear_leaky[(rows,)](
            x, self.linear.weight, self.linear.bias, self.spread, out, slope, cols, hidden,
            COLS=triton.next_power_of_2(cols), HIDDEN=triton.next_power_of_2(hidden),
        )
        return out
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for the module: builds are shared."""
    return tmp_path_factory.mktemp("home")


def judge_verb(*words: object, home: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KERNELWRIGHT_HOME": str(home)}
    command = [sys.executable, "-m", "kernelwright", "judge", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=cwd or home, check=False
    )


def test_a_candidate_that_passes_its_profile_ends_with_zero(home: Path) -> None:
    done = judge_verb(CPP, "--op", "rmsnorm", "--profile", "quick", home=home)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "passed under quick: accepted" in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines()[2:5]] == [
        ["guards", "passed"],
        ["build", "passed"],
        ["smoke", "passed"],
    ]
    assert "cpp: smoke" in done.stderr  # progress while it works


def test_floors_are_known_where_the_device_was_calibrated(
    tmp_path: Path, calibrated: Callable[[Path], Path]
) -> None:
    for place, known in (tmp_path / "new", False), (calibrated(tmp_path / "old"), True):
        place.mkdir(exist_ok=True)
        done = judge_verb(CPP, "--op", "rmsnorm", "--profile", "quick", "--json", home=place)
        assert json.loads(done.stdout)["is_calibrated"] is known, done.stderr


def test_a_rejected_candidate_ends_with_one_and_says_how_to_see_it_again(home: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cpp"
    source = CPP.read_text()
    assert " + eps)" in source
    wrong.write_text(source.replace(" + eps)", ")"))
    done = judge_verb(wrong, "--op", "rmsnorm", "--case", "7x33 fp32 eps=0.3", "--json", home=home)
    assert done.returncode == ExitCode.NEGATIVE, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["passed"], answer["timing"]) == ("wrong", False, None)
    assert answer["cases"] == ["rmsnorm 7x33 fp32"]
    last = answer["stages"][-1]
    assert (last["passed"], last["failing_case"] is not None) == (False, True)
    assert answer["reproduce"].startswith(f"kernelwright judge {wrong} --op rmsnorm --case '")
    assert f"eps={last['failing_scalars']['eps']}" in answer["reproduce"]


def test_the_printed_command_names_case_and_scalars(problem: Problem) -> None:
    failure = StageResult(
        stage="smoke",
        passed=False,
        seconds=0,
        reason="wrong",
        failing_case="attention 1x2x2x16x16x16 fp32",
        failing_scalars={"causal": True, "scale": 0.25},
    )
    wish = Wish(Path("my kernel.cpp"), op="attention", profile=Profile.SHIP)
    command = "kernelwright judge 'my kernel.cpp' --op attention"
    assert (
        reproducing(wish, problem, failure)
        == f"{command} --case '1x2x2x16x16x16 fp32 causal=True scale=0.25' --profile ship"
    )
    assert reproducing(wish, problem, None) is None


class Understood(Exception):
    """Carries what a command line asks for, before anything is judged."""


@pytest.fixture
def understood(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Wish]:
    """Return what reads a printed command again."""

    def stop(wish: Wish, *_: object) -> None:
        raise Understood(wish)

    def read_again(command: str) -> Wish:
        app = typer.Typer()
        app.command()(judge_command)
        with pytest.raises(Understood) as seen:
            app(shlex.split(command)[2:], standalone_mode=False)
        wish = seen.value.args[0]
        assert isinstance(wish, Wish)
        return wish

    monkeypatch.setattr(judging, "judge_file", stop)
    return read_again


NORM = rmsnorm.case({"rows": 8, "cols": 64}, DType.FP32, {"eps": 0.25})
STRIDED, OFFSET = (
    NORM.model_copy(update={"inputs": (NORM.inputs[0].model_copy(update=changed), NORM.inputs[1])})
    for changed in ({"strides": (96, 1)}, {"offset": 1})
)
OWN: dict[str, tuple[Case, ...]] = {
    "strides": (STRIDED,),
    "an offset": (OFFSET,),
    "tf32": (matmul.case({"m": 8, "n": 16, "k": 32}, DType.FP32, compute=Compute.TF32_OK),),
    "no scalars": (NORM.model_copy(update={"scalars": {}}),),
    "two cases of one label": (NORM, STRIDED),
}


def failed_at(case: Case) -> StageResult:
    """Return what a stage says that failed at a case."""
    return StageResult(
        stage="shape_sweep",
        passed=False,
        seconds=0,
        reason="wrong",
        failing_case=case.label,
        failing_scalars=case.scalars,
    )


@pytest.mark.parametrize("name", OWN)
def test_the_printed_command_keeps_the_problem_that_words_cannot_say(
    name: str, tmp_path: Path, understood: Callable[[str], Wish]
) -> None:
    problem = Problem(op=OWN[name][0].op, cases=OWN[name], device=cpu_device())
    file = tmp_path / "problem.json"
    file.write_text(problem.model_dump_json())
    command = reproducing(Wish(Path("k.cpp"), problem=file), problem, failed_at(problem.cases[-1]))
    assert command is not None
    again = understood(command)
    assert (again.problem, again.op, again.cases) == (file, None, ())
    assert judging._given_problem(again, problem.device).cases == problem.cases


@pytest.mark.parametrize("is_own", [True, False])
def test_the_printed_command_names_a_plain_case_alone(
    is_own: bool, understood: Callable[[str], Wish]
) -> None:
    # A case that is not the problem's own is one of the op, whatever the problem's look like.
    own, case = (NORM, NORM) if is_own else (STRIDED, rmsnorm.case({"rows": 7, "cols": 33}, DType.FP16))
    problem = Problem(op="rmsnorm", cases=(own,), device=cpu_device())
    command = reproducing(Wish(Path("k.cpp"), problem=Path("problem.json")), problem, failed_at(case))
    assert command is not None
    again = understood(command)
    assert again.problem is None
    assert judging._given_problem(again, problem.device).cases == (case,)


@pytest.mark.parametrize("threads", [0, 2])
def test_the_printed_command_repeats_threads_and_home(
    threads: int, tmp_path: Path, understood: Callable[[str], Wish], problem: Problem
) -> None:
    wish = Wish(Path("k.cpp"), op="rmsnorm", threads=threads, home=tmp_path / "my home")
    command = reproducing(wish, problem, failed_at(problem.cases[0]))
    assert command is not None
    again = understood(command)
    assert (again.threads, again.home) == (threads, tmp_path / "my home")


def test_the_command_of_a_failing_comparison_asks_for_the_same_again(
    tmp_path: Path, understood: Callable[[str], Wish]
) -> None:
    sizes = ("8x64 fp32 eps=0.25", "7x33 fp16")
    for wish in (
        Wish(Path("k.cpp"), op="rmsnorm", against="my best.cpp", cases=sizes, threads=0, home=tmp_path),
        Wish(Path("k.cpp"), problem=Path("problem.json"), against="eager", profile=Profile.SHIP),
        Wish(Path("k.py"), reference=Path("reference.py"), against="compiled", threads=2),
    ):
        assert understood(comparing_again(wish)) == wish


def wrong_files(folder: Path) -> None:
    """Write wrong kernels for an op, a region and a module, and what they are judged by."""
    source = CPP.read_text()
    (folder / "norm.cpp").write_text(source.replace(" + eps)", " + 2 * eps + 0.1)"))
    region = fusion(Gelu(), (64, 96), (64, 96))
    found = problem_of(region, folder)
    (folder / "region.json").write_text(found.model_dump_json())
    assert found.captured is not None
    kernel = found.captured.kernels["cpp"]
    assert "0.5f * tail_of" in kernel
    (folder / "region.cpp").write_text(kernel.replace("0.5f * tail_of", "0.4f * tail_of"))
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "new.py").write_text(MODEL_NEW.replace("slope * y)", "slope * y + 0.001)"))


WAYS = {
    "an op": ("norm.cpp", "--op", "rmsnorm"),
    "the problem of a region": ("region.cpp", "--problem", "region.json"),
    "a KernelBench pair": ("new.py", "--reference", "reference.py"),
}


def test_the_printed_command_shows_the_same_failing_stage_again(home: Path, tmp_path: Path) -> None:
    wrong_files(tmp_path)
    for way, words in WAYS.items():
        first = judge_verb(*words, "--profile", "quick", "--json", home=home, cwd=tmp_path)
        assert first.returncode == ExitCode.NEGATIVE, (way, first.stderr)
        told = json.loads(first.stdout)
        printed = shlex.split(told["reproduce"])
        assert printed[:2] == ["kernelwright", "judge"]
        again = judge_verb(*printed[2:], "--json", home=home, cwd=tmp_path)
        assert again.returncode == ExitCode.NEGATIVE, (way, printed, again.stderr)
        seen = json.loads(again.stdout)
        assert (seen["status"], seen["stages"][-1]["stage"]) == (told["status"], told["stages"][-1]["stage"])


@pytest.mark.slow
def test_against_another_file_gives_a_comparison_with_its_interval(home: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow.cpp"
    call = "rows_norm<float>(x, weight, static_cast<float>(eps), out);"
    source = CPP.read_text()
    assert call in source
    slow.write_text(source.replace(call, call * 8))
    (tmp_path / "kernelwright.toml").write_text("max_pairs = 16\nhidden_shapes = 1\n")
    words = ("--op", "rmsnorm", "--case", "256x256 fp32", "--against", slow, "--json")
    done = judge_verb(CPP, *words, home=home, cwd=tmp_path)
    assert done.returncode == ExitCode.OK, done.stderr
    answer = json.loads(done.stdout)
    assert answer["timing"]["cases"][0]["median_us"] > 0
    found = answer["comparison"]
    assert found["ci_low"] <= found["ratio"] <= found["ci_high"]
    assert (found["outcome"], found["ratio"] > 2) == ("faster", True)


def test_a_kernelbench_pair_is_judged_with_the_references_own_weights(home: Path, tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "new.py").write_text(MODEL_NEW)
    written = tmp_path / "problem.json"
    words = ("--reference", "reference.py", "--profile", "quick", "--json", "--write-problem", written)
    done = judge_verb("new.py", *words, home=home, cwd=tmp_path)
    assert done.returncode == ExitCode.OK, done.stderr + done.stdout
    answer = json.loads(done.stdout)
    assert (answer["backend"], answer["cases"], answer["status"]) == (
        "python",
        ["module 16x32 fp32"],
        "accepted",
    )
    problem = Problem.model_validate_json(written.read_text())
    assert [spec.name for spec in problem.cases[0].inputs] == [
        "input:0",
        "state:spread:positive",
        "state:linear.weight",
        "state:linear.bias",
    ]
    assert problem.cases[0].scalars == {"input:1": 0.25}
    # The same again from the problem file, with a model that is wrong in one place.
    (tmp_path / "new.py").write_text(MODEL_NEW.replace("slope * y)", "slope * y + 0.001)"))
    done = judge_verb("new.py", "--problem", written, "--profile", "quick", home=home, cwd=tmp_path)
    assert (done.returncode, "rejected under quick: wrong" in done.stdout) == (ExitCode.NEGATIVE, True)
    # A reference edited behind the problem's back is noticed.
    (tmp_path / "reference.py").write_text(REFERENCE.replace("0.25", "0.5"))
    done = judge_verb("new.py", "--problem", written, "--profile", "quick", home=home, cwd=tmp_path)
    assert (done.returncode, "has changed since" in done.stderr) == (ExitCode.USAGE, True)


BAD = {
    "no such file": (["absent.cpp", "--op", "rmsnorm"], "absent.cpp"),
    "no problem": (["k.cpp"], "--op, --problem, --reference"),
    "two problems": (["k.cpp", "--op", "rmsnorm", "--reference", "r.py"], "--op, --problem, --reference"),
    "unknown op": (["k.cpp", "--op", "rmsnrm"], "Did you mean 'rmsnorm'?"),
    "unknown extension": (["k.txt", "--op", "rmsnorm"], ".cpp"),
    "a file without a kernel": (["empty.py", "--op", "rmsnorm"], "kernel_fn or ModelNew"),
    "not Python": (["broken.py", "--op", "rmsnorm"], "not valid Python"),
    "a size that is none": (["k.cpp", "--op", "rmsnorm", "--case", "big"], "rows, cols"),
    "too few extents": (["k.cpp", "--op", "rmsnorm", "--case", "4 fp32"], "has 1 extents, not 2"),
    "unknown type": (["k.cpp", "--op", "rmsnorm", "--case", "4x4 fp4"], "fp32, fp16, bf16"),
    "unknown scalar": (["k.cpp", "--op", "rmsnorm", "--case", "4x4 fp32 mu=1"], "Known: eps"),
    "a scalar that is no number": (["k.cpp", "--op", "rmsnorm", "--case", "4x4 fp32 eps=a"], "eps=1e-05"),
    "a problem that is none": (["k.cpp", "--problem", "empty.py"], "--write-problem"),
    "a quick comparison": (
        ["k.cpp", "--op", "rmsnorm", "--profile", "quick", "--against", "eager"],
        "keep or ship",
    ),
    "a module without a file": (["k.cpp", "--op", "module"], "--reference"),
    "a module of some size": (["k.cpp", "--op", "module", "--case", "4x4 fp32"], "--reference"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_with_the_remedy(name: str, tmp_path: Path) -> None:
    words, expected = BAD[name]
    for file, text in {"k.cpp": "", "k.txt": "", "empty.py": "", "broken.py": "def (:", "r.py": ""}.items():
        (tmp_path / file).write_text(text)
    done = judge_verb(*words, home=tmp_path)
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert (done.stderr.strip().count("\n"), expected in done.stderr) == (0, True), done.stderr


REFERENCES = {
    "no get_inputs": (REFERENCE.replace("def get_inputs", "def other"), "has no get_inputs"),
    "raises": (REFERENCE + "\nraise KeyError('left')\n", "KeyError"),
    "is random": (REFERENCE.replace("return torch.where", "return torch.rand(1) + torch.where"), "is random"),
    "returns integers": (
        REFERENCE.replace("return torch.where(y > 0, y, slope * y)", "return y.argmax(-1)"),
        "out0",
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_file_that_cannot_be_a_reference_says_why(name: str, judge: JudgeClient, tmp_path: Path) -> None:
    from kernelwright.core.frozen import digest

    text, words = REFERENCES[name]
    path = tmp_path / "reference.py"
    path.write_text(text)
    found = judge.describe(f"file:{path}#{digest(text)}")
    assert (found.case, words in found.error) == (None, True), found.error


@pytest.mark.parametrize(
    ("formula", "role"),
    [("torch.log(x) * slope", Role.POSITIVE), ("torch.log1p(-x) + torch.log(x) * slope", Role.UNIT)],
)
def test_inputs_are_drawn_where_the_reference_is_defined(
    formula: str, role: Role, judge: JudgeClient, tmp_path: Path
) -> None:
    from kernelwright.core.frozen import digest

    body = "        y = self.linear(x) / torch.sqrt(self.spread)\n        return torch.where(y > 0, y, slope * y)\n"
    assert body in REFERENCE
    text = REFERENCE.replace(body, f"        return {formula}\n")
    path = tmp_path / "reference.py"
    path.write_text(text)
    found = judge.describe(f"file:{path}#{digest(text)}")
    assert found.case is not None, found.error
    assert read(found.case.inputs[0].name).role is role


def test_names_of_module_tensors_say_what_they_are() -> None:
    name = Named(True, "layers.0.weight", Role.POSITIVE)
    assert spelled(name) == "state:layers.0.weight:positive"
    assert read(spelled(name)) == name
    assert read("input:3") == Named(False, "3", Role.SIGNED)


def test_arguments_come_in_the_order_of_forward(problem: Problem) -> None:
    case = problem.cases[0].model_copy(update={"scalars": {"input:1": 2.0}})
    placed, state = arguments(case, {"input:2": "c", "state:w": "weight", "input:0:index": "a"})
    assert (placed, state) == (["a", 2.0, "c"], {"w": "weight"})


def test_a_judge_that_died_is_started_again_for_the_request(judge: JudgeClient, problem: Problem) -> None:
    candidate = seed("rmsnorm", "cpp", Origin.AUTHOR)
    assert candidate is not None
    before = judge.child.process.pid
    os.killpg(before, signal.SIGKILL)
    found = judge.evaluate(problem, candidate, Profile.QUICK)
    assert (found.status, judge.child.process.pid != before) == (Status.ACCEPTED, True)


def test_a_judge_that_dies_twice_over_a_request_is_an_error(judge: JudgeClient, problem: Problem) -> None:
    candidate = seed("rmsnorm", "cpp", Origin.AUTHOR)
    assert candidate is not None

    def kill(text: str) -> None:
        # Progress comes from the living judge: killing it there hits every attempt in the middle of its work.
        if text.startswith("cpp: "):
            os.killpg(judge.child.process.pid, signal.SIGKILL)

    shown, judge.show = judge.show, kill
    try:
        with pytest.raises(ServiceDied, match="twice over the same Evaluate"):
            judge.evaluate(problem, candidate, Profile.QUICK)
    finally:
        judge.show = shown
    assert judge.evaluate(problem, candidate, Profile.QUICK).status is Status.ACCEPTED


def test_an_interrupted_judgement_speaks_of_no_journal(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelwright", "judge", str(CPP), "--op", "rmsnorm"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any("smoke" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (ExitCode.INTERRUPTED, "")
    assert error.strip().splitlines()[-1] == "interrupted before the verdict; nothing is decided"


def test_the_types_a_reference_may_have_are_those_a_kernel_can_serve() -> None:
    from kernelwright.judge.user_module import FLOATS, NAMES

    assert set(FLOATS) == {DType.FP32, DType.FP16, DType.BF16}
    assert set(NAMES.values()) == {*FLOATS, DType.INT64, DType.INT32, DType.BOOL}
