"""A model with kernels against the model without: what holds, what does not, and which kernel is to blame."""

import importlib.util
import json
import py_compile
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.cli.screen import ExitCode
from kernelwright.core.candidate import Origin
from kernelwright.core.errors import BadInput, BlobMissing
from kernelwright.core.messages.model import VerifyModel, Winner
from kernelwright.engine.diagnose import Diagnosis
from kernelwright.engine.seeds import seed
from kernelwright.engine.splicing import verification
from kernelwright.engine.verifying import checked, copied, kernels_folder
from kernelwright.hardware.detect import cpu_device
from kernelwright.hardware.lock import DeviceLock
from kernelwright.model import verify as verifying
from kernelwright.model.arguments import Arguments, InputSet
from kernelwright.model.capture import capture
from kernelwright.model.extract import extract
from kernelwright.model.load import Loaded, load, loaded_from
from kernelwright.model.verify import verify
from kernelwright.report import drop_in
from tests.cpu.splice_winners import CERTIFICATE, cpp_winner

MODEL = '''
import torch
from torch import nn


class Net(nn.Module):
    """A norm, a softmax, and a cache that every call writes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(64, eps=1e-6)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        self.register_buffer("seen", torch.zeros(64), persistent=False)

    def forward(self, x, scale):
        h = self.norm(x * 2)
        self.seen.add_(h.sum(0))
        return {"probabilities": (h + self.seen * scale).softmax(-1), "best": h.argmax(-1), "none": None}


def build():
    torch.manual_seed(0)
    return Net().eval()


def sample_inputs(seed):
    made = torch.Generator().manual_seed(seed)
    small, large = (torch.randn(rows, 64, generator=made) for rows in (8, 32))
    return [
        {"name": "small", "weight": 3, "args": (small, torch.tensor(0.5))},
        {"name": "large", "weight": 1, "args": (large, torch.tensor(0.5))},
    ]
'''
SCALE = "const float scale = 1.0f / "
NORM_LINE = MODEL.splitlines().index("        h = self.norm(x * 2)") + 1


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "net.py"
    path.write_text(MODEL)
    return f"{path}:build"


@pytest.fixture
def loaded(spec: str) -> Iterator[Loaded]:
    torch._dynamo.reset()
    yield load(spec)
    torch._dynamo.reset()


def made_winners(spec: str, folder: Path) -> dict[str, Winner]:
    """Return kernels for every case of the model, and a wrong one for the norm of the large set."""
    found = {}
    loaded = load(spec)
    source = seed("rmsnorm", "cpp", Origin.AUTHOR).source
    assert source.count(SCALE) == 1
    with torch.no_grad():
        for one in loaded.sets:
            given = one.make(0)
            for problem in extract(capture(loaded.module, given.args, given.kwargs), with_fusions=False):
                found[f"{problem.op} {one.name}"] = cpp_winner(
                    problem.case, folder / f"{problem.op}{one.name}"
                )
                if (problem.op, one.name) == ("rmsnorm", "large"):
                    bad = source.replace(SCALE, "const float scale = 1.001f / ")
                    found["wrong"] = cpp_winner(problem.case, folder / "wrong", bad)
    torch._dynamo.reset()
    return found


@pytest.fixture(scope="module")
def winners(spec: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Winner]:
    return made_winners(spec, tmp_path_factory.mktemp("winners"))


def asked(spec: str, chosen: list[Winner], **more: object) -> VerifyModel:
    fields: dict[str, object] = {"spec": spec, "threads": 1, "winners": tuple(chosen), "rounds": 0, "seed": 0}
    return VerifyModel.model_validate(fields | {"with_compiled": False, "other_sizes": True} | more)


def test_every_case_of_the_model_has_a_kernel(winners: dict[str, Winner]) -> None:
    assert sorted(winners) == ["rmsnorm large", "rmsnorm small", "softmax large", "softmax small", "wrong"]


def test_good_kernels_hold_on_every_set_and_size_and_the_cache_is_left_as_it_was(
    loaded: Loaded, winners: dict[str, Winner]
) -> None:
    good = [one for name, one in winners.items() if name != "wrong"]
    found = verify(loaded, asked(loaded.spec, good, rounds=2, checked_inputs=2), lambda _: None)
    assert {check.inputs for check in found.checks} == {
        "small",
        "small, batch 16",
        "large",
        "large, batch 64",
    }
    assert [check.problem for check in found.checks] == [""] * 4
    assert all(check.ratio <= check.allowed for check in found.checks)
    assert (found.spliced_calls[0] > 0, found.fallbacks) == (True, (0,))
    (mode,) = found.modes
    assert (mode.mode, mode.compiled_us) == ("plain", ())
    assert [len(times) for times in (mode.eager_us, mode.captured_us, *mode.spliced_us)] == [2, 2, 2]
    assert not loaded.module.seen.any()


def test_a_wrong_kernel_breaks_the_arms_that_hold_it_on_the_set_it_serves(
    loaded: Loaded, winners: dict[str, Winner]
) -> None:
    chosen = [winners["rmsnorm small"], winners["wrong"], winners["softmax small"]]
    found = verify(loaded, asked(loaded.spec, chosen, arms=((0, 2), (0, 1, 2), (1,))), lambda _: None)
    failing = {(check.arm, check.inputs) for check in found.checks if check.problem}
    assert failing == {(1, "large"), (2, "large")}
    (worst, _) = [check for check in found.checks if check.problem]
    assert worst.output in ("['probabilities']", "buffer seen")
    assert worst.ratio > 100
    assert found.modes == ()


def test_an_arm_that_raises_is_refused_and_not_called_again_and_the_others_are_timed(
    loaded: Loaded, winners: dict[str, Winner], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising, good = winners["rmsnorm small"], winners["softmax small"]
    compiled_with, calls = verifying.compiled_with, list[int]()

    def stand_in(module: torch.nn.Module, own: tuple[Winner, ...], *rest: Any) -> Callable[..., Any]:
        def fail(*_: object) -> None:
            calls.append(1)
            raise RuntimeError("no such stream")

        return fail if raising in own else compiled_with(module, own, *rest)

    monkeypatch.setattr(verifying, "compiled_with", stand_in)
    request = asked(loaded.spec, [raising, good], arms=((0,), (1,)), rounds=3, other_sizes=False)
    found = verify(loaded, request, lambda _: None)
    assert [(check.arm, check.inputs, check.problem) for check in found.checks if check.problem] == [
        (0, "small", "raises RuntimeError: no such stream"),
        (0, "large", "raises RuntimeError: no such stream"),
    ]
    assert len(calls) == 2  # the two checks
    (mode,) = found.modes
    assert mode.spliced_us[0] == mode.captured_us
    assert (len(mode.spliced_us[1]), mode.spliced_us[1] == mode.captured_us) == (3, False)
    assert found.notes == (
        "where the model raises RuntimeError: no such stream with winners, nothing is timed: "
        "the captured graph's times stand there",
    )
    whole = verification([raising], [found], 0)
    assert (whole.shipped, whole.ratio) == (False, 1.0)
    assert whole.reason == "outputs drift: call on small: raises RuntimeError: no such stream"


def test_the_diagnosis_names_the_kernel_the_line_it_serves_and_the_inputs_on_which_it_shows(
    spec: str, winners: dict[str, Winner]
) -> None:
    chosen = [winners[name] for name in ("rmsnorm small", "softmax large", "wrong")]
    labels = [(f"{one.backend} {one.case.label}", one.candidate_hash) for one in chosen]
    (culprit,) = Diagnosis(asked(spec, chosen), labels, lambda _: None).culprits()
    assert culprit.kernels == ("cpp rmsnorm 32x64 fp32",)
    assert culprit.sites == ((f"{spec.partition(':')[0]}:{NORM_LINE}",),)
    assert (culprit.inputs, culprit.ratio > 100) == ("large", True)
    assert "times the framework's own" in culprit.problem


def test_kernels_that_hold_have_no_culprit(spec: str, winners: dict[str, Winner]) -> None:
    chosen = [winners["rmsnorm large"]]
    assert Diagnosis(asked(spec, chosen), [("cpp norm", "c")], lambda _: None).culprits() == []


def test_an_artefact_that_was_exchanged_is_an_error_and_no_wrong_answer(
    loaded: Loaded, winners: dict[str, Winner], tmp_path: Path
) -> None:
    path = tmp_path / "kernel.so"
    path.write_bytes(Path(winners["rmsnorm small"].artefact).read_bytes() + b" ")
    changed = winners["rmsnorm small"].model_copy(update={"artefact": str(path)})
    with pytest.raises(BlobMissing, match="certificate"):
        verify(loaded, asked(loaded.spec, [changed]), lambda _: None)


def test_nobody_is_timed_while_another_process_times_on_the_device(
    loaded: Loaded, winners: dict[str, Winner]
) -> None:
    told: list[str] = []
    held = DeviceLock(cpu_device())

    def show(text: str) -> None:
        told.append(text)
        if text.startswith("waiting for cpu"):
            held.__exit__()

    with held:
        found = verify(loaded, asked(loaded.spec, [winners["softmax small"]], rounds=1), show)
    assert any(text.startswith("waiting for cpu") for text in told)
    assert len(found.modes[0].eager_us) == 1


@pytest.fixture
def folder(winners: dict[str, Winner], tmp_path: Path) -> Path:
    chosen = [winners["rmsnorm small"], winners["wrong"]]
    drop_in.write(tmp_path / "kernels", chosen, {one.problem_hash: CERTIFICATE for one in chosen})
    return tmp_path / "kernels"


def test_a_folder_is_whole_only_as_long_as_every_file_is_what_it_was(folder: Path, tmp_path: Path) -> None:
    assert kernels_folder(tmp_path, str(folder)) == folder
    assert len(checked(copied(folder, tmp_path / "copy")).entries) == 2
    with pytest.raises(BadInput, match="is there already and is not empty"):
        copied(folder, tmp_path / "copy")
    artefact = next((folder / "artefacts").glob("*.so"))
    artefact.write_bytes(artefact.read_bytes() + b" ")
    with pytest.raises(BlobMissing, match="does not match its certificate"):
        checked(folder)


CHANGED = {
    "an op's module": ("rmsnorm.py", "does not match its certificate"),
    "the package itself": ("__init__.py", "does not match its certificate"),
    "what calls the kernels": ("_bare_launch.py", "does not match its certificate"),
    "the source of a kernel": ("artefacts/*.cpp", "does not match its certificate"),
    "a module nobody lists": ("torch.py", "its manifest says nothing of 'torch.py'"),
    "a package over a module": ("rmsnorm/__init__.py", "its manifest says nothing of 'rmsnorm/__init__.py'"),
    "compiled code of nobody's": (
        "artefacts/__pycache__/x.pyc",
        "its manifest says nothing of 'artefacts/__",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_folder_with_a_changed_or_a_further_file_is_not_whole(
    name: str, folder: Path, tmp_path: Path
) -> None:
    pattern, words = CHANGED[name]
    path = next(folder.glob(pattern), folder / pattern)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("\nimport os\n")
    with pytest.raises((BadInput, BlobMissing), match=words) as caught:
        checked(folder)
    assert "\n" not in str(caught.value)


def test_a_link_in_the_place_of_a_file_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "rmsnorm.py").rename(tmp_path / "elsewhere.py")
    (folder / "rmsnorm.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(BadInput, match=r"its manifest says nothing of 'rmsnorm\.py'"):
        checked(folder)


def test_what_somebody_compiled_of_a_module_does_not_outlive_the_check(folder: Path, tmp_path: Path) -> None:
    """Python runs compiled code in the place of a module without looking at it, if that says so of itself."""
    module = tmp_path / "evil.py"
    module.write_text("raise SystemExit('evil ran')\n")
    cached = Path(importlib.util.cache_from_source(str(folder / "__init__.py")))
    unread = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(module), str(cached), invalidation_mode=unread)
    words = [sys.executable, "-B", "-c", f"import {folder.name}"]
    before = subprocess.run(words, cwd=folder.parent, capture_output=True, text=True, check=False)
    assert (before.returncode, "evil ran" in before.stderr) == (1, True)
    checked(folder)
    assert not cached.parent.exists()
    subprocess.run(words, cwd=folder.parent, check=True)


def test_apply_prints_the_one_line_that_uses_the_kernels(folder: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "kernelwright",
        "apply",
        str(folder),
        "--to",
        str(tmp_path / "mine"),
        "--json",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["line"] == f'model = kernelwright.apply(model, "{tmp_path / "mine"}")'
    assert [(one["case"], one["backend"]) for one in answer["kernels"]] == [
        ("rmsnorm 8x64 fp32", "cpp"),
        ("rmsnorm 32x64 fp32", "cpp"),
    ]
    assert (tmp_path / "mine" / "manifest.json").is_file()


@pytest.mark.slow
def test_verify_ends_in_one_if_outputs_do_not_hold_and_says_which_kernel_it_is(
    spec: str, folder: Path, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "kernelwright", "verify", spec, str(folder), "--diagnose", "--json"]
    more = ["--processes", "3", "--home", str(tmp_path / "home")]
    done = subprocess.run([*words, *more], capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["holds"]) == (ExitCode.NEGATIVE, False)
    assert [one["kernels"] for one in answer["culprits"]] == [["cpp rmsnorm 32x64 fp32"]]
    assert answer["verified"]["compiled_ratio"] > 0
    assert answer["verified"]["shipped"] is False


class Box:
    """A cache that is an argument."""

    def __init__(self) -> None:
        self.total = torch.zeros(4)


class Boxed(torch.nn.Module):
    def forward(self, x: torch.Tensor, box: Box) -> torch.Tensor:
        box.total += x
        return box.total * 2


def test_an_argument_that_a_call_changes_is_made_anew_for_every_arm() -> None:
    torch._dynamo.reset()
    inputs = [InputSet("box", 1.0, lambda seed: Arguments((torch.full((4,), 1.0 + seed), Box())))]
    boxed = loaded_from(Boxed().eval(), inputs)
    found = verify(boxed, asked("boxed", [], rounds=1, checked_inputs=2, other_sizes=False), lambda _: None)
    assert [(check.error, check.problem) for check in found.checks] == [(0.0, "")]
    assert len(found.modes[0].spliced_us[0]) == 1
