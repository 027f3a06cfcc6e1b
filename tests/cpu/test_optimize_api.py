"""`kernelwright.optimize` on a live module: how it travels, what comes back, and a GPU that is not here."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kernelwright
from kernelwright.core.errors import BadInput, ModelNotLoadable, UnknownName
from kernelwright.core.model_spec import parse_spec, refuse_foreign
from kernelwright.engine.planning import gpu_named
from kernelwright.model.load import load
from kernelwright.model.saved import save
from kernelwright.store.journal import Journal


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def drawn(seed: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(512, 1024, generator=torch.Generator().manual_seed(seed)),)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, calibrated: Callable[[Path], Path]) -> Path:
    return calibrated(tmp_path_factory.mktemp("home"))


def test_a_live_module_is_optimised_and_comes_back_whole(home: Path) -> None:
    module = Tiny().eval()
    result = kernelwright.optimize(
        module,
        drawn,
        author="none",
        against="eager",
        budget_hours=60 / 3600,
        max_pairs=2,  # proves nothing: what is tested is the way there and back
        hidden_shapes=0,
        threads=1,
        home=home,
    )
    (kernel,) = result.kernels
    assert (kernel.case, kernel.count, kernel.backend) == ("rmsnorm 512x1024 fp32", 1, "eager")
    assert (result.timed, result.shipped, result.ratio, kernel.stays) == (True, False, None, False)
    assert result.reason == "no candidate was proven faster than the baselines; nothing is spliced"
    assert result.folder is not None and (result.folder / "report.html").is_file()
    started = Journal.open(result.folder).tree().started
    assert started is not None and str(started.config["model"]).startswith("kernelwright.model.saved:build(")
    assert result.model() is module  # nothing pays, nothing is put in


def test_a_saved_module_computes_what_the_live_one_does(home: Path) -> None:
    torch.manual_seed(3)
    module = Tiny()
    nn.init.normal_(module.norm.weight)
    loaded = load(save(module, drawn, home))
    (x,) = loaded.sample_inputs(5)
    assert torch.equal(x, drawn(5)[0])
    assert torch.equal(loaded.module(x), module(x))
    given = load(save(module, {"x": x}, home))
    assert torch.equal(given.sets[0].make(9).kwargs["x"], x)


def place_of(spec: str) -> Path:
    return Path(parse_spec(spec).args[0])


def test_a_saved_module_is_for_its_user_alone_and_read_only_unchanged(home: Path) -> None:
    spec = save(Tiny(), drawn, home)
    place = place_of(spec)
    assert place.parent == home / "models"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    content = (place / "model.pt").read_bytes()
    (place / "model.pt").write_bytes(content + b" ")
    with pytest.raises(ModelNotLoadable, match="its content is not what was saved"):
        load(spec)
    (place / "model.pt").write_bytes(content)
    (place / "model.pt").chmod(0o666)
    with pytest.raises(ModelNotLoadable, match="can be changed by others"):
        load(spec)


class Trap:
    """What a hostile pickle does when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["TRAP"],)


def test_a_file_put_in_its_place_is_never_unpickled(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAP", str(tmp_path / "sprung"))
    spec = save(Tiny(), drawn, home)
    torch.save(Trap(), place_of(spec) / "model.pt")
    with pytest.raises(ModelNotLoadable):
        load(spec)
    assert not (tmp_path / "sprung").exists()


def test_a_module_saved_in_another_home_is_refused(home: Path, tmp_path: Path) -> None:
    spec = save(Tiny(), drawn, home)
    refuse_foreign(spec, home)
    refuse_foreign("model.py:build", tmp_path)
    with pytest.raises(ModelNotLoadable, match="another machine or user"):
        refuse_foreign(spec, tmp_path)


def test_what_no_other_process_can_import_is_refused_with_a_remedy(home: Path) -> None:
    class Local(Tiny):
        pass

    with pytest.raises(BadInput, match=r"it cannot be saved.*at the top of a file"):
        kernelwright.optimize(Local(), drawn, home=home)
    with pytest.raises(BadInput, match="it cannot be saved"):
        kernelwright.optimize(Tiny(), lambda seed: drawn(seed), home=home)
    assert not list((home / "models").glob(".*"))  # nothing half-written is left


@pytest.mark.parametrize("setting", ["budgett", "op_"])
def test_an_unknown_setting_is_refused_before_anything_is_saved(setting: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Unknown setting"):
        kernelwright.optimize(Tiny(), drawn, home=tmp_path, **{setting: 1})
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import sys
import torch
import kernelwright

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(256)

    def forward(self, x):
        return torch.softmax(self.norm(x), -1)

def optimise():
    found = kernelwright.optimize(Net(), (torch.randn(64, 256),), target_gpu="a10", backend="triton", home="home")
    for one in sorted(found.kernels, key=lambda one: one.case):
        print(one.case, one.compiles, one.floor_us > 0, one.ratio)
    print(found.timed, found.shipped, found.folder, found.reason)
"""


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    path = str(Path(kernelwright.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_gpu_that_is_not_here_gives_floors_and_compiles_for_a_class_of_the_script(tmp_path: Path) -> None:
    done = run_script(tmp_path, f"{SCRIPT}\nif __name__ == '__main__':\n    optimise()\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "rmsnorm 64x256 fp32 {'triton': True} True None",
        "softmax 64x256 fp32 {'triton': True} True None",
        "False False None A10 is not here: floors by its data sheet and static compiles, no times",
    ]


FUSED = """
import torch
import kernelwright

class Net(torch.nn.Module):
    def forward(self, x, y):
        return torch.tanh(x) * 2 + torch.sigmoid(x), y.abs() ** 1.7 - y

if __name__ == '__main__':
    given = (torch.randn(64, 256), torch.randn(32, 128))
    found = kernelwright.optimize(Net(), given, target_gpu="a10", backend="triton", home="home")
    for one in sorted(found.kernels, key=lambda one: one.case):
        print(one.case, one.compiles, f"{one.floor_us:.4f}", one.reason)
"""


def test_a_gpu_that_is_not_here_gives_floors_and_compiles_for_captured_regions_too(tmp_path: Path) -> None:
    done = run_script(tmp_path, FUSED)
    assert done.returncode == 0, done.stderr
    bytes_us = 1e6 / gpu_named("a10").bandwidth
    first, second = done.stdout.splitlines()
    assert (
        first
        == f"graph 32x128 fp32 {{}} {2 * 4096 * 4 * bytes_us:.4f} not written: no plain kernel for "
        + ("std::pow, in Triton")
    )
    assert second == f"graph 64x256 fp32 {{'triton': True}} {2 * 16384 * 4 * bytes_us:.4f} triton: 1 kernel"


def test_a_script_without_a_main_guard_is_told_so_and_does_not_run_itself(tmp_path: Path) -> None:
    done = run_script(tmp_path, f"{SCRIPT}\noptimise()\n")
    assert done.returncode == 1
    assert "Put the call under `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("h100", "H100 SXM"),
        ("H100 PCIe", "H100 PCIe"),
        ("a10", "A10"),
        ("l4", "L4"),
        ("rtx 4090", "RTX 4090"),
    ],
)
def test_a_gpu_is_found_by_what_people_call_it(name: str, part: str) -> None:
    assert gpu_named(name).part == part


def test_an_unknown_gpu_is_refused_with_the_known_ones(home: Path) -> None:
    with pytest.raises(BadInput, match=r"no GPU is called 'voodoo2'. Known: H100 SXM"):
        kernelwright.optimize(Tiny(), drawn, target_gpu="voodoo2", home=home)
