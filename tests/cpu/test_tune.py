"""`kernelwright.tune`: a certified winner where one was found, the function itself everywhere else."""

import json
import os
import pickle
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import kernelwright
from kernelwright.cli.screen import ExitCode
from kernelwright.core.errors import BadInput, KernelwrightError
from kernelwright.core.events import Evaluated
from kernelwright.core.frozen import digest
from kernelwright.core.manifest import FOLDER as KERNELS
from kernelwright.core.messages.function import DescribeCall
from kernelwright.core.messages.progress import Fault
from kernelwright.core.model_spec import parse_input
from kernelwright.core.tuned import CALL, FOLDER, NAME, CallFile, KernelStep, TextStep, TunedCall, call_key
from kernelwright.model.call import bound, described, place_name
from kernelwright.model.code_identity import identity
from kernelwright.model.function import build
from kernelwright.model.function_process import answer
from kernelwright.model.program_writing import write_program
from kernelwright.store.journal import Journal
from tests.cpu.splice_winners import cpp_winner, problem_of, written

FILE = '''"""A user's file."""

import torch

import kernelwright

EPS = 1e-6


@kernelwright.tune
def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Root-mean-square norm, written out."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


@kernelwright.tune
def between(x, weight, factor=2.0, *, names=("a", "b")):
    y = torch.nn.functional.rms_norm(x * factor, (64,), weight, EPS)
    return y + len(names), y.sum(-1)


WEIGHT = torch.rand(64, generator=torch.Generator().manual_seed(0))


@kernelwright.tune
def defaulted(x, weight=WEIGHT):
    return torch.nn.functional.rms_norm(x, (64,), weight, EPS)
'''
X, WEIGHT = torch.randn(32, 64), torch.rand(64) + 0.5


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home in which one call of each function was tuned, its kernels built here and certified by nobody."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def user(home: Path) -> ModuleType:
    (home / "mine.py").write_text(FILE)
    sys.path.insert(0, str(home))
    try:
        module = import_module("mine")
    finally:
        sys.path.remove(str(home))
    calls = ((module.norm, (X, WEIGHT)), (module.between, (X, WEIGHT)), (module.defaulted, (X,)))
    for function, given in calls:
        function.home = home
        tune_by_hand(home, function, given)
    return module


def tune_by_hand(home: Path, function: Any, given: tuple[Any, ...]) -> TunedCall:
    """Do what a search does that found a winner."""
    known = identity(function)
    call = described(*bound(function, given, {}), with_values=True)
    key = call_key(known.name, known.fingerprint, call, place_name(torch.device("cpu")))
    folder = home / FOLDER / key
    folder.mkdir(parents=True)
    spec = f"{home / 'mine.py'}:{function.__qualname__}"
    (folder / CALL).write_text(CallFile(spec=spec, call=call).model_dump_json())
    module = build(str(folder / CALL))
    found = problem_of(module, *module.sample_inputs(0))
    written(folder / KERNELS, cpp_winner(found.case, home / f"built-{key}"))
    program = write_program(module, folder / KERNELS)
    assert program.program is not None, program.reason
    tuned = TunedCall(
        key=key,
        function=known.name,
        call=call,
        device="cpu",
        run="by hand",
        reason="the winners pay end to end",
        manifest_hash=digest((folder / KERNELS / "manifest.json").read_bytes()),
        program=program.program,
    )
    (folder / NAME).write_text(tuned.model_dump_json(indent=1))
    return tuned


def fresh(user: ModuleType, home: Path, name: str = "norm") -> Any:
    """Return a function that has looked nothing up yet."""
    return kernelwright.tune(getattr(user, name).function, home=home)


SECOND = """
import json, sys, time
import torch
import kernelwright.model.tuning
import mine

x, weight = torch.load("x.pt"), torch.load("weight.pt")
found = [kernelwright.tune(mine.norm.function).winner(x, weight) for _ in range(5)]
served = mine.norm(x, weight)
original = mine.norm.function(x, weight)
print(json.dumps({
    "lookup_s": min(one.lookup_s for one in found),
    "served": mine.norm.calls.served,
    "error": float((served - original).abs().max()),
    "is_original": bool(torch.equal(served, original)),
    "captured": "torch._dynamo" in sys.modules,
    "key": found[0].tuned.key,
}))
"""


def test_a_second_process_looks_the_winner_up_and_evaluates_nothing(user: ModuleType, home: Path) -> None:
    torch.save(X, home / "x.pt")
    torch.save(WEIGHT, home / "weight.pt")
    before = sorted(path.name for path in home.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", SECOND],
        cwd=home,
        env={**os.environ, "KERNELWRIGHT_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["served"], told["captured"]) == (1, False)
    assert told["lookup_s"] < 0.05
    assert told["error"] < 1e-5
    assert (home / FOLDER / told["key"] / NAME).is_file()
    # No run, no journal, no cache: nothing was evaluated.
    assert sorted(path.name for path in home.iterdir()) == before
    assert not (home / "runs").exists()


def test_what_lies_between_kernels_runs_as_it_was_written(user: ModuleType, home: Path) -> None:
    function = fresh(user, home, "between")
    winner = function.winner(X, WEIGHT)
    assert [type(step) for step in winner.tuned.program.steps[:2]] == [TextStep, KernelStep]
    ours, theirs = function(X, WEIGHT, names=("a", "b")), function.function(X, WEIGHT)
    assert function.calls.served == 1
    assert type(ours) is tuple
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)
        assert one.stride() == other.stride()


def test_arguments_by_keyword_in_any_order_find_the_same_winner(user: ModuleType, home: Path) -> None:
    function = fresh(user, home)
    expected = function(X, WEIGHT)
    assert torch.equal(function(weight=WEIGHT, x=X), expected)
    assert torch.equal(function(X, weight=WEIGHT), expected)
    assert function.calls.served == 3


def test_a_tensor_that_is_a_default_is_handed_over(user: ModuleType, home: Path) -> None:
    function = fresh(user, home, "defaulted")
    assert torch.allclose(function(X), function.function(X), rtol=1e-5, atol=1e-6)
    assert torch.allclose(function(X, WEIGHT), function.function(X, WEIGHT), rtol=1e-5, atol=1e-6)
    assert function.calls.served == 2


OTHER_CALLS = {
    "rows": lambda x, w: (x[:7], w),
    "type": lambda x, w: (x.half(), w.half()),
    "strides": lambda x, w: (x.t().contiguous().t(), w),
    "a step": lambda x, w: (torch.randn(32, 128)[:, ::2], w),
    "more axes": lambda x, w: (x[None], w),
}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_a_call_never_seen_runs_the_original(name: str, user: ModuleType, home: Path) -> None:
    function = fresh(user, home)
    given = OTHER_CALLS[name](X, WEIGHT)
    assert torch.equal(function(*given), function.function(*given))
    assert (function.calls.served, dict(function.calls.originals)) == (0, {"never tuned": 1})


def test_where_a_kernel_cannot_answer_the_original_does(user: ModuleType, home: Path) -> None:
    function = fresh(user, home)
    weight = WEIGHT.clone().requires_grad_()
    function(X, weight).sum().backward()
    expected = WEIGHT.clone().requires_grad_()
    function.function(X, expected).sum().backward()
    assert torch.equal(weight.grad, expected.grad)
    with torch.autocast("cpu"):
        function(X, WEIGHT)
    torch.vmap(function, (0, None))(X[None], WEIGHT)
    odd = torch.empty(32 * 64 + 1)[1:].view(32, 64).copy_(X)
    assert torch.equal(function(odd, WEIGHT), function.function(odd, WEIGHT))
    assert function.calls.originals == {"gradient": 1, "autocast": 1, "vmap": 1, "alignment": 1}
    with torch.no_grad():
        function(X, weight)
    assert function.calls.served == 1


def test_compilers_and_tracers_see_the_function_itself(user: ModuleType, home: Path) -> None:
    function = fresh(user, home)
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(X, WEIGHT), function.function(X, WEIGHT))
    traced = torch.jit.trace(function, (X, WEIGHT), check_trace=False)
    assert torch.equal(traced(2 * X, WEIGHT), function.function(2 * X, WEIGHT))
    assert function.calls.served == 0


def test_a_global_that_changed_is_another_function(
    user: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = fresh(user, home)
    function(X, WEIGHT)
    monkeypatch.setattr(user, "EPS", 1.0)
    assert torch.equal(function(X, WEIGHT), function.function(X, WEIGHT))
    monkeypatch.setattr(user, "EPS", 1e-6)
    function(X, WEIGHT)
    assert (function.calls.served, dict(function.calls.originals)) == (2, {"never tuned": 1})


def test_threads_find_the_same_winner(user: ModuleType, home: Path) -> None:
    function = fresh(user, home)
    expected, found = function.function(X, WEIGHT), []

    def call() -> None:
        for _ in range(20):
            found.append(function(X, WEIGHT))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), function.calls.originals) == (80, {})
    assert all(torch.allclose(one, expected, rtol=1e-5, atol=1e-6) for one in found)


def test_a_damaged_winner_is_not_run(user: ModuleType, home: Path) -> None:
    folder = fresh(user, home).winner(X, WEIGHT).folder
    library = next((folder / KERNELS).rglob("*.so"))
    for path in (folder / NAME, folder / KERNELS / "manifest.json", library):
        # Another file under its name: the library itself is mapped by this process.
        aside = path.rename(path.with_suffix(".aside"))
        path.write_bytes(aside.read_bytes()[:-1] + b"?")
        try:
            function = fresh(user, home)
            assert torch.equal(function(X, WEIGHT), function.function(X, WEIGHT))
            ((reason, number),) = function.calls.originals.items()
            assert (reason.startswith("not looked up: "), number) == (True, 1)
        finally:
            aside.replace(path)
    assert fresh(user, home).winner(X, WEIGHT) is not None


def test_a_decorated_function_is_still_a_function(user: ModuleType) -> None:
    assert (user.norm.__name__, user.norm.__doc__) == ("norm", "Root-mean-square norm, written out.")
    assert pickle.loads(pickle.dumps(user.norm)) is user.norm

    class Owner:
        @kernelwright.tune
        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    assert torch.equal(Owner().twice(X), 2 * X)
    with pytest.raises(BadInput, match="no function of Python"):
        kernelwright.tune(torch.relu)


def test_the_function_of_the_documentation_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    space: dict[str, Any] = {"__name__": "documented"}
    exec(text.split("```python")[1].split("```")[0], space)
    norm = kernelwright.tune(space["norm"].function, home=tmp_path)
    expected = torch.nn.functional.rms_norm(X, (64,), WEIGHT, 1e-6)
    assert torch.allclose(norm(X, WEIGHT), expected, rtol=1e-5, atol=1e-6)
    assert (norm.winner(X, WEIGHT), norm.calls.originals) == (None, {"never tuned": 1})


def test_a_call_that_was_tuned_is_not_searched_again(user: ModuleType, home: Path) -> None:
    found = user.norm.tune(X, WEIGHT)
    assert found.key == user.norm.winner(X, WEIGHT).tuned.key
    done = verb("tune", "mine.py:norm", "--input", "32,64", "--input", "64:fp32", "--json", home=home)
    assert done.returncode == ExitCode.OK, done.stderr
    told = json.loads(done.stdout)
    assert (told["known"], told["served"], told["key"]) == (True, True, found.key)
    assert [one["case"] for one in told["kernels"]] == ["rmsnorm 32x64 fp32"]
    assert not (home / "runs").exists()


def verb(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KERNELWRIGHT_HOME": str(home)}
    command = [sys.executable, "-m", "kernelwright", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home, check=False)


def test_a_function_another_process_cannot_import_is_refused(home: Path) -> None:
    def local(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(BadInput, match="Define it at the top of a file"):
        kernelwright.tune(local, home=home).tune(X)


MISTAKES = {
    "no file": ("absent.py:f", ["4"], "absent.py does not exist"),
    "no module": ("absent.module:f", ["4"], "there is no module 'absent'"),
    "no function": ("{file}:f", ["4"], "It has: norm, between, defaulted"),
    "no inputs": ("{file}:norm", [], "--input 1024,1024:fp32"),
    "too few inputs": ("{file}:norm", ["4,4"], "missing a required argument: 'weight'"),
    "other shapes": ("{file}:norm", ["4,4", "5"], "norm(4x4 fp32, 5 fp32) raises RuntimeError"),
    "no tensor": ("{odd}:words", ["4"], "returns str, not a tensor"),
    "a global object": ("{odd}:configured", ["4"], "reads 'CONFIG', a dict that is no argument"),
    "a class": ("{odd}:Holder", ["4"], "'Holder' is no function"),
}
ODD = """
import torch

CONFIG = {"scale": 2}


class Holder:
    pass


def words(x):
    return "no"


def configured(x):
    return x * CONFIG["scale"]
"""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_the_remedy(name: str, user: ModuleType, home: Path) -> None:
    spec, inputs, words = MISTAKES[name]
    (home / "odd.py").write_text(ODD)
    spec = spec.format(file=home / "mine.py", odd=home / "odd.py")
    found = answer(DescribeCall(spec=spec, inputs=tuple(parse_input(text) for text in inputs)))
    assert isinstance(found, Fault)
    assert (words in found.message, "\n" in found.message) == (True, False), found.message


def test_the_verb_ends_a_mistake_with_its_code(home: Path) -> None:
    done = verb("tune", "absent.py:f", "--input", "4", home=home)
    assert (done.returncode, "absent.py does not exist" in done.stderr) == (ExitCode.MISTAKE, True), (
        done.stderr
    )


LEFT_ALONE = {
    "writes to its arguments": "x.add_(1)\n    return torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)",
    "draws random numbers": "return torch.nn.functional.rms_norm(x + torch.rand_like(x), (64,), weight, 1e-6)",
    "is captured in 2 graphs": "y = torch.rms_norm(x, (64,), weight, 1e-6)\n    return y if y.sum() > 0 else -y",
    "no kernel of the folder has a place": "return torch.nn.functional.rms_norm(x, (64,), weight, 1e-3)",
}


@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_a_function_that_does_more_than_compute_is_left_alone(
    reason: str, user: ModuleType, home: Path, tmp_path: Path
) -> None:
    source = f"import torch\n\n\ndef f(x, weight):\n    {LEFT_ALONE[reason]}\n"
    (tmp_path / "f.py").write_text(source)
    call = described((X, WEIGHT), {})
    (tmp_path / CALL).write_text(CallFile(spec=f"{tmp_path / 'f.py'}:f", call=call).model_dump_json())
    folder = fresh(user, home).winner(X, WEIGHT).folder
    found = write_program(build(str(tmp_path / CALL)), folder / KERNELS)
    assert (found.program, reason in found.reason) == (None, True), found.reason


def test_steps_that_give_another_answer_are_left_alone(user: ModuleType, home: Path, tmp_path: Path) -> None:
    winner = fresh(user, home).winner(X, WEIGHT)
    module = build(str(winner.folder / CALL))
    case = problem_of(module, *module.sample_inputs(0)).case
    seed = (Path(kernelwright.__file__).parent / "seeds" / "rmsnorm" / "cpp.cpp").read_text()
    wrong = seed.replace("load(source + i) * scale", "load(source + cols - LANES - i) * scale")
    assert wrong != seed
    written(tmp_path / KERNELS, cpp_winner(case, tmp_path / "built", wrong))
    found = write_program(module, tmp_path / KERNELS)
    assert (found.program, found.reason) == (None, "with the kernels its answer is another one")


def changed(text: str, name: str = "f") -> str:
    space: dict[str, Any] = {"torch": torch}
    exec(text, space)
    return identity(space[name]).fingerprint


def test_identity_follows_code_and_not_its_looks() -> None:
    plain = changed("K = 2\ndef g(x):\n    return x * K\ndef f(x):\n    return g(x) + 1\n")
    assert plain == changed(
        "K = 2\n\n\n# a comment\ndef g(x):\n    return (x * K)\n\ndef f(x):\n    return g(x) + 1\n"
    )
    others = [
        "K = 2\ndef g(x):\n    return x * K\ndef f(x):\n    return g(x) + 2\n",
        "K = 3\ndef g(x):\n    return x * K\ndef f(x):\n    return g(x) + 1\n",
        "K = 2\ndef g(x):\n    return x - K\ndef f(x):\n    return g(x) + 1\n",
        "K = 2.0\ndef g(x):\n    return x * K\ndef f(x):\n    return g(x) + 1\n",
    ]
    assert len({plain, *map(changed, others)}) == 5


def test_a_search_that_fails_is_an_error_in_its_own_words(home: Path, user: ModuleType) -> None:
    function = kernelwright.tune(user.norm.function, home=home, backend="fortran")
    with pytest.raises(KernelwrightError, match="'fortran'"):
        function.tune(X[:5], WEIGHT)


@pytest.mark.slow
def test_a_search_is_made_once_and_its_answer_serves(tmp_path: Path) -> None:
    """Whether anything is proven faster is up to the machine; that the answer is kept and used is not."""
    (tmp_path / "mine.py").write_text(FILE)
    words = ("tune", "mine.py:norm", "--input", "512,1024", "--input", "1024", "--budget", "90s", "--json")
    first = verb(*words, home=tmp_path)
    assert first.returncode in (ExitCode.OK, ExitCode.NEGATIVE), first.stderr
    told = json.loads(first.stdout)
    assert (told["known"], told["served"]) == (False, first.returncode == ExitCode.OK)
    (run,) = (tmp_path / "runs").iterdir()
    judged = [event for event in Journal.open(run).events() if isinstance(event.body, Evaluated)]
    assert (run.name, len(judged) >= 2) == (told["run"], True)
    second = verb(*words, home=tmp_path)
    again = json.loads(second.stdout)
    assert again == told | {"known": True}
    assert list((tmp_path / "runs").iterdir()) == [run]
    after = [event for event in Journal.open(run).events() if isinstance(event.body, Evaluated)]
    assert len(after) == len(judged)
    space: dict[str, Any] = {"__name__": "searched", "__file__": str(tmp_path / "mine.py")}
    exec(compile(FILE, str(tmp_path / "mine.py"), "exec"), space)
    function = kernelwright.tune(space["norm"].function, home=tmp_path)
    x, weight = torch.randn(512, 1024), torch.rand(1024)
    assert torch.allclose(function(x, weight), function.function(x, weight), rtol=1e-5, atol=1e-5)
    reason = {} if told["served"] else {"nothing was proven faster": 1}
    assert (function.calls.served, function.calls.originals) == (int(told["served"]), reason)
