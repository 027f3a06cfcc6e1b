"""`kernelwright new`: a folder whose candidate is judged as it is, and marked regions that go there and back."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import kernelwright
from kernelwright.cli.screen import ExitCode
from kernelwright.core.device import DeviceKind
from kernelwright.core.frozen import digest
from kernelwright.core.marked import outside
from kernelwright.core.messages.function import FunctionSketched, SketchFunction
from kernelwright.core.messages.progress import Fault
from kernelwright.core.model_spec import parse_input
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.own_baseline import own_baseline
from kernelwright.engine.service import JudgeClient
from kernelwright.engine.starting import ERROR_BUDGET
from kernelwright.hardware.detect import cpu_device, devices
from kernelwright.judge.error_budget import MAX_FACTOR, RMS_FACTOR
from kernelwright.model.function_process import answer
from tests.cpu.test_judge_verb import REFERENCE

FILE = '''import math

import torch
import torch.nn.functional as F

HALF = 0.5


def scaled(x):
    return x * HALF


def gated(x, weight, power=2):
    """Gate a norm."""
    return F.silu(scaled(x)) * weight / (1 + x.abs().pow(power).sum(-1, keepdim=True)).sqrt() * math.pi


def running(x):
    return x.cumsum(-1)


def typed(x):
    return (x.float() * 2).to(x.dtype)


def rounded(x):
    return x.long()


def local():
    def inner(x):
        return x + 1

    return inner


inner = local()
'''
ROOT = Path(__file__).parents[2]
MARKED = Path(kernelwright.__file__).parent / "seeds" / "rmsnorm" / "cpp.cpp"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "mine.py").write_text(FILE)
    return folder


def verb(*words: object, home: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KERNELWRIGHT_HOME": str(home)}
    command = [sys.executable, "-m", "kernelwright", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=cwd or home, check=False
    )


def sketch(spec: str, *inputs: str) -> FunctionSketched:
    found = answer(SketchFunction(spec=spec, inputs=tuple(map(parse_input, inputs))))
    assert isinstance(found, FunctionSketched), found
    return found


def documented() -> list[str]:
    """Return the commands docs/tuning.md gives for a function."""
    text = (ROOT / "docs" / "tuning.md").read_text()
    return text.split("## New")[1].split("```sh")[1].split("```")[0].strip().splitlines()


def test_a_new_folder_is_judged_with_the_command_it_prints(home: Path) -> None:
    begin, enter, look, compare = documented()
    # As the documentation has it, but for the function.
    words = shlex.split(begin.replace("mine.py:norm", "mine.py:gated"))[1:]
    done = verb(*words, "--json", home=home)
    assert done.returncode == ExitCode.OK, done.stderr
    told = json.loads(done.stdout)
    folder = home / told["folder"]
    assert (f"cd {told['folder']}", told["command"]) == (enter.replace("norm", "gated"), compare)
    assert told["files"] == ["baseline.cpp", "candidate.cpp", "reference.py", "README.md"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(told["files"])
    assert (told["todo"], told["regions"]) == ("", [])
    readme = (folder / "README.md").read_text()
    for part in (
        look,
        compare,
        "`x: 128x256 fp32`",
        "`out0: 128x256 fp32`",
        'extern "C" int kernel_fn',
        ERROR_BUDGET,
    ):
        assert part in readme
    # Everything but the comparison, which takes its minute: the candidate is the baseline still.
    judged = verb(*shlex.split(compare)[1:-2], "--json", home=home, cwd=folder)
    assert judged.returncode == ExitCode.OK, judged.stdout + judged.stderr
    verdict = json.loads(judged.stdout)
    assert (verdict["status"], verdict["cases"]) == ("accepted", ["module 128x256x256 fp32"])
    again = verb(*words, home=home)
    assert (again.returncode, "is not empty. Name another folder" in again.stderr) == (ExitCode.USAGE, True)


def test_the_reference_is_the_functions_own_source_where_that_runs_by_itself(home: Path) -> None:
    x, weight = torch.randn(4, 6), torch.rand(6)
    found = sketch(f"{home / 'mine.py'}:gated", "4,6", "6")
    assert found.reference_note == "the function's own source"
    assert '"""Gate a norm."""' in found.reference
    assert ("HALF = 0.5" in found.reference, "cumsum" in found.reference) == (True, False)
    space: dict[str, object] = {}
    exec(found.reference, space)
    model = space["Model"]()  # type: ignore[operator]
    import importlib.util

    spec = importlib.util.spec_from_file_location("mine_again", home / "mine.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert torch.equal(model(x, weight), module.gated(x, weight))
    assert [one.shape for one in space["get_inputs"]()] == [x.shape, weight.shape]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "why"),
    [("typed", "it computes in a type of its own"), ("inner", "it is defined inside something else")],
)
def test_otherwise_the_reference_is_the_captured_graph(name: str, why: str, home: Path) -> None:
    x = torch.randn(4, 6).half()
    found = sketch(f"{home / 'mine.py'}:{name}", "4,6:fp16")
    assert why in found.reference_note
    space: dict[str, object] = {}
    exec(found.reference, space)
    expected = {"typed": x * 2, "inner": x + 1}[name]
    assert torch.equal(space["Model"]()(x), expected)  # type: ignore[operator]


def test_a_frame_says_what_is_to_be_filled_in(home: Path) -> None:
    done = verb("new", "mine.py:running", "--input", "8,16", "--into", "frame", "--json", home=home)
    assert done.returncode == ExitCode.OK, done.stderr
    told = json.loads(done.stdout)
    todo = "no plain loops are known for aten.cumsum: write the loops that fill out0, then remove this line"
    assert (told["todo"], told["files"]) == (todo, ["candidate.cpp", "reference.py", "README.md"])
    judged = verb(*shlex.split(told["command"])[1:], "--json", home=home, cwd=home / "frame")
    verdict = json.loads(judged.stdout)
    assert (judged.returncode, verdict["status"]) == (ExitCode.NEGATIVE, "build_failed")
    assert todo in verdict["stages"][-1]["reason"]
    # Filled in, it passes.
    path = home / "frame" / "candidate.cpp"
    loops = """    for (int64_t i = 0; i < 8; ++i) {
        double total = 0;
        for (int64_t j = 0; j < 16; ++j) out0[i * 16 + j] = static_cast<float>(total += x[i * 16 + j]);
    }"""
    lines = [loops if line.startswith("#error") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    judged = verb(*shlex.split(told["command"])[1:], "--profile", "quick", home=home, cwd=home / "frame")
    assert judged.returncode == ExitCode.OK, judged.stdout


WITHOUT_A_GPU = {
    "python": (("128,256", "256"), "", "--against baseline.py"),
    "triton": (("32,64", "64"), "Triton's interpreter checks it, and nothing is timed", "--profile quick"),
}


@pytest.mark.skipif(any(one.kind is not DeviceKind.CPU for one in devices()), reason="there is a GPU")
@pytest.mark.parametrize("backend", WITHOUT_A_GPU)
def test_a_candidate_in_python_or_triton_passes_without_a_gpu(backend: str, home: Path) -> None:
    (rows, cols), note, ending = WITHOUT_A_GPU[backend]
    words = ("--input", rows, "--input", cols, "--into", f"plain_{backend}", "--backend", backend, "--json")
    told = json.loads(verb("new", "mine.py:gated", *words, home=home).stdout)
    assert (told["todo"], told["files"]) == ("", ["baseline.py", "candidate.py", "reference.py", "README.md"])
    assert (note in told["note"], told["command"].endswith(ending)) == (True, True), told
    readme = (home / told["folder"] / "README.md").read_text()
    assert note in readme and told["command"] in readme
    command = told["command"].partition(" --against")[0].removesuffix(" --profile quick")
    began = time.monotonic()
    judged = verb(*shlex.split(command)[1:], "--profile", "quick", home=home, cwd=home / told["folder"])
    assert judged.returncode == ExitCode.OK, judged.stdout + judged.stderr
    assert time.monotonic() - began < 60


def test_what_the_interpreter_cannot_check_is_said(home: Path) -> None:
    found = sketch(f"{home / 'mine.py'}:gated", "128,256", "256")
    assert found.not_interpreted.startswith("65792 elements take Triton's interpreter too long")
    assert not sketch(f"{home / 'mine.py'}:gated", "4,6", "6").not_interpreted


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "status"), [("triton", "unsupported"), ("python", "crashed")])
def test_a_frame_in_another_language_says_what_is_to_be_filled_in(
    backend: str, status: str, home: Path
) -> None:
    words = ("--input", "8,16", "--into", f"frame_{backend}", "--backend", backend, "--json")
    told = json.loads(verb("new", "mine.py:running", *words, home=home).stdout)
    judged = verb(
        *shlex.split(told["command"])[1:],
        "--profile",
        "quick",
        "--json",
        home=home,
        cwd=home / told["folder"],
    )
    verdict = json.loads(judged.stdout)
    assert (judged.returncode, verdict["status"]) == (ExitCode.NEGATIVE, status)
    why = {"triton": "no plain kernel is known", "python": "no plain loops are known"}[backend]
    what = "fill in kernels that write out0: 8x16 fp32 from x: 8x16 fp32"
    assert told["todo"] == f"{why} for aten.cumsum: {what}"
    assert told["todo"] in verdict["stages"][-1]["reason"]


def test_marked_regions_go_there_and_back_with_every_byte_outside_as_it_was(home: Path) -> None:
    marks = "// kernelwright: begin scaling\n{}        // kernelwright: end scaling\n"
    line = "        for (; i + LANES <= cols; i += LANES) store(target + i, load(source + i) * scale * load(w + i));\n"
    source = MARKED.read_text()
    assert line in source
    original = home / "kernel.cpp"
    text = source.replace(line, marks.format(line)).replace("\n", "\r\n")
    original.write_bytes(text.encode())
    done = verb("new", "--from", "kernel.cpp", "--op", "rmsnorm", "--into", "region", "--json", home=home)
    assert done.returncode == ExitCode.OK, done.stderr
    told = json.loads(done.stdout)
    assert (told["regions"], told["files"]) == (["scaling"], ["baseline.cpp", "candidate.cpp", "README.md"])
    candidate = home / "region" / "candidate.cpp"
    assert candidate.read_bytes() == original.read_bytes()
    # The region is left to the loop behind it: right, and slower.
    changed = text.replace(line.replace("\n", "\r\n"), "        // nothing\r\n")
    candidate.write_bytes(changed.encode())
    words = shlex.split(told["command"])[1:-2]
    judged = verb(*words, "--profile", "quick", home=home, cwd=home / "region")
    assert judged.returncode == ExitCode.OK, judged.stdout + judged.stderr
    back = ("new", "--from", "kernel.cpp", "--back", "region/candidate.cpp")
    assert verb(*back, home=home).returncode == ExitCode.OK
    after = original.read_bytes().decode()
    assert after == changed
    assert outside(after, "kernel.cpp") == outside(text, "kernel.cpp")
    candidate.write_bytes(changed.replace("Declared layout", "Layout").encode())
    refused = verb(*back, home=home)
    assert (refused.returncode, original.read_bytes().decode()) == (ExitCode.USAGE, changed)
    assert "it changes what lies before region 'scaling'" in refused.stderr


MISTAKES = {
    "nothing": ((), ExitCode.USAGE, "Give a function, or --from FILE with --op NAME"),
    "both": (("mine.py:gated", "--op", "rmsnorm"), ExitCode.USAGE, "what the kernel computes is not clear"),
    "no such language": (
        ("mine.py:gated", "--backend", "fortran"),
        ExitCode.USAGE,
        "cpp, cuda, triton, python",
    ),
    "no such op": (("--from", "mine.cpp", "--op", "rmsnrm"), ExitCode.MISTAKE, "Did you mean 'rmsnorm'?"),
    "no such source": (
        ("--from", "absent.cpp", "--op", "rmsnorm"),
        ExitCode.MISTAKE,
        "Name a .cpp or .cu file",
    ),
    "no source": (("--from", "mine.py", "--op", "rmsnorm"), ExitCode.USAGE, "no C++ or CUDA file"),
    "nowhere to put back": (("--back", "mine.cpp"), ExitCode.USAGE, "Give --from FILE"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_the_remedy(name: str, home: Path) -> None:
    words, code, expected = MISTAKES[name]
    done = verb("new", *words, home=home)
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, expected in last) == (code, True), done.stderr


def test_the_readme_names_the_judges_own_factors() -> None:
    assert f"{RMS_FACTOR:g} times that of the framework" in ERROR_BUDGET
    assert f"the largest single error {MAX_FACTOR:g} times" in ERROR_BUDGET


def test_a_reference_is_its_own_baseline(judge: JudgeClient, tmp_path: Path) -> None:
    path = tmp_path / "reference.py"
    path.write_text(REFERENCE)
    name = f"file:{path}#{digest(REFERENCE)}"
    case = judge.describe(name).case
    assert case is not None
    problem = Problem(op="module", cases=(case,), device=cpu_device(), reference=name)
    candidate = own_baseline(problem)
    assert candidate is not None
    found = judge.evaluate(problem, candidate, Profile.QUICK)
    assert (found.status, found.failure) == (Status.ACCEPTED, None)


def test_a_function_that_returns_integers_is_refused(home: Path) -> None:
    found = answer(SketchFunction(spec=f"{home / 'mine.py'}:rounded", inputs=(parse_input("4"),)))
    assert isinstance(found, Fault)
    assert "it returns torch.int64, which no kernel is judged on" in found.message
