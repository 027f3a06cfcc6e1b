"""`optimized_kernels/` works where Kernelwright is not installed, and refuses what was not certified."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from kernelwright.core.errors import BadInput, BlobMissing, NotFound
from kernelwright.core.frozen import digest
from kernelwright.core.manifest import FOLDER, FORMAT, Manifest, parse
from kernelwright.core.messages.model import Winner
from kernelwright.core.verdict import Profile, Status
from kernelwright.model.apply import winners_of
from kernelwright.model.launching import open_winner
from kernelwright.report import drop_in
from kernelwright.store.manifest import read_manifest
from tests.cheats.test_catalogue import H200
from tests.cpu.splice_winners import CERTIFICATE, Normed, cpp_winner, gpu_winner, problem_of, written

HEAD = """
import sys
sys.modules["kernelwright"] = None  # whoever imports it fails
sys.path.insert(0, {folder!r})
import torch
from optimized_kernels import rmsnorm
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    cases = [problem_of(Normed(), torch.randn(batch, 8, 64)).case for batch in (2, 5)]
    written(folder / FOLDER, *(cpp_winner(case, folder / f"b{place}") for place, case in enumerate(cases)))
    return folder


def said(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that has torch and the folder, and of Kernelwright nothing."""
    text = HEAD.format(folder=str(folder)) + code
    return subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, text=True, check=False)


def test_a_module_runs_without_kernelwright(kernels: Path) -> None:
    code = """
x, weight = torch.randn(40, 64), torch.rand(64)
with torch.no_grad():
    found = rmsnorm.call(x, weight, eps=1e-6)
    again = rmsnorm.call(x[:16], weight)
print(float((found - torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)).abs().max()))
print(tuple(again.shape))
"""
    done = said(kernels, code)
    assert done.returncode == 0, done.stderr
    error, shape = done.stdout.splitlines()
    assert (float(error) < 1e-5, shape) == (True, "(16, 64)")


REFUSED = {
    "a size nobody certified": (
        "torch.randn(7, 64), torch.rand(64)",
        "no kernel for 7x64 float32, 64 float32",
    ),
    "another type": ("torch.randn(40, 64).half(), torch.rand(64).half()", "no kernel for 40x64 float16"),
    "another layout": ("torch.randn(64, 40).T, torch.rand(64)", "another layout or alignment"),
    "an odd address": (
        "torch.randn(40 * 64 + 1)[1:].view(40, 64), torch.rand(64)",
        "another layout or alignment",
    ),
    "a gradient": ("torch.randn(40, 64, requires_grad=True), torch.rand(64)", "no gradient for 40x64"),
    "another scalar": ("torch.randn(40, 64), torch.rand(64), eps=0.5", "with (0.5,)"),
}


def test_what_does_not_fit_is_named_in_one_line_or_goes_to_the_reference(kernels: Path) -> None:
    code = "".join(
        f"""
try:
    rmsnorm.call({given})
except RuntimeError as error:
    print(str(error).replace(chr(10), "|"))
print(rmsnorm.call({given}, reference=lambda x, weight, eps: (tuple(x.shape), eps)))
"""
        for given, _ in REFUSED.values()
    )
    done = said(kernels, code)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(REFUSED)
    for (name, (_, words)), line, answer in zip(REFUSED.items(), lines[::2], lines[1::2], strict=True):
        assert words in line, name
        assert answer.startswith("((") and "rmsnorm" not in answer, name


def copied(kernels: Path, target: Path) -> Path:
    for path in (kernels / FOLDER).rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            place = target / FOLDER / path.relative_to(kernels / FOLDER)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return target


def test_an_exchanged_library_is_not_loaded(kernels: Path, tmp_path: Path) -> None:
    folder = copied(kernels, tmp_path)
    for library in (folder / FOLDER / "artefacts").glob("*.so"):
        library.write_bytes(library.read_bytes() + b" ")
    done = said(folder, "rmsnorm.call(torch.randn(40, 64), torch.rand(64))")
    assert done.returncode == 1
    assert "is not the file that was certified" in done.stderr.splitlines()[-1]


def test_another_processor_is_refused(kernels: Path, tmp_path: Path) -> None:
    folder = copied(kernels, tmp_path)
    manifest = folder / FOLDER / "manifest.json"
    told = json.loads(manifest.read_text())
    for entry in told["entries"]:
        entry["device"]["name"] = "Z80"
    manifest.write_text(json.dumps(told))
    done = said(folder, "rmsnorm.call(torch.randn(40, 64), torch.rand(64))")
    assert done.returncode == 1
    assert "certified on Z80" in done.stderr.splitlines()[-1]


def test_a_kernel_that_was_not_accepted_under_ship_is_not_loaded(kernels: Path, tmp_path: Path) -> None:
    folder = copied(kernels, tmp_path)
    manifest = folder / FOLDER / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"profile": "ship"', '"profile": "quick"'))
    done = said(folder, "rmsnorm.call(torch.randn(40, 64), torch.rand(64))")
    assert done.returncode == 1
    assert "is accepted under quick, not accepted under ship" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "changes", [{"status": Status.WRONG}, {"profile": Profile.KEEP}], ids=["wrong", "not audited"]
)
def test_a_winner_without_a_full_certificate_is_not_written(
    changes: dict[str, object], tmp_path: Path
) -> None:
    one = cpp_winner(problem_of(Normed(), torch.randn(8, 64)).case, tmp_path / "built")
    certificate = CERTIFICATE.model_copy(update=changes)
    with pytest.raises(BadInput, match="not accepted under ship"):
        drop_in.write(tmp_path / FOLDER, (one,), {one.candidate_hash: certificate})
    assert not (tmp_path / FOLDER).exists()


def test_the_manifest_says_everything_and_comes_back_whole(kernels: Path) -> None:
    manifest = read_manifest(kernels / FOLDER)
    assert [entry.case.axes["rows"] for entry in manifest.entries] == [16, 40]
    assert [entry.certificate for entry in manifest.entries] == [CERTIFICATE, CERTIFICATE]
    assert manifest.versions["torch"] == version("torch")
    for entry in manifest.entries:
        assert entry.library is not None and entry.source is not None
        for file in (entry.library, entry.source):
            assert digest((kernels / FOLDER / file.name).read_bytes()) == file.hash
    assert parse(manifest.model_dump_json(), "here") == manifest
    listed = {file.name for file in manifest.files} | {"manifest.json"}
    found = [path for path in (kernels / FOLDER).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.relative_to(kernels / FOLDER).as_posix() for path in found} == listed
    text = (kernels / FOLDER / "rmsnorm.py").read_text()
    assert "1.50 times as fast as torch eager (1.40 to 1.60)" in text


BROKEN = {
    "no JSON": (lambda told: "{", "Invalid JSON"),
    "a newer form": (lambda told: json.dumps(told | {"format": FORMAT + 1}), "reads up to"),
    "no certificate": (
        lambda told: json.dumps(told).replace('"certificate"', '"verdict"'),
        "certificate: Field required",
    ),
    "a path that leads out": (
        lambda told: json.dumps(told).replace("artefacts/", "../", 1),
        "no plain file name",
    ),
    "a key nobody knows": (lambda told: json.dumps(told | {"more": 1}), "more"),
    "an older form": (
        lambda told: json.dumps({name: told[name] for name in told if name != "modules"} | {"format": 1}),
        "it has format 1, which leaves out the modules beside it. Remove the folder and write it again: "
        "`kernelwright apply RUN`",
    ),
    "no modules": (
        lambda told: json.dumps({name: told[name] for name in told if name != "modules"}),
        "modules: Field required",
    ),
    "a kernel that is wrong": (
        lambda told: json.dumps(told).replace('"status": "accepted"', '"status": "wrong"'),
        "its certificate says wrong under ship, not accepted under ship",
    ),
    "a kernel nobody audited": (
        lambda told: json.dumps(told).replace('"profile": "ship"', '"profile": "keep"'),
        "its certificate says accepted under keep, not accepted under ship",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_manifest_is_refused_in_one_line(name: str, kernels: Path) -> None:
    change, words = BROKEN[name]
    told = json.loads((kernels / FOLDER / "manifest.json").read_text())
    with pytest.raises(BadInput, match=words) as caught:
        parse(change(told), "manifest.json")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_manifest_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_writing_again_replaces_the_folder_whole(tmp_path: Path) -> None:
    one = cpp_winner(problem_of(Normed(), torch.randn(8, 64)).case, tmp_path / "built")
    folder = tmp_path / FOLDER
    written(folder, one)
    (folder / "stray.txt").write_text("from before")
    written(folder, one)
    assert not (folder / "stray.txt").exists()
    Path(one.artefact).write_bytes(b"other")
    with pytest.raises(BlobMissing, match="certificate"):
        drop_in.write(folder, (one,), {one.candidate_hash: CERTIFICATE})
    assert len(read_manifest(folder).entries) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"built", FOLDER}


def test_gpu_winners_are_written_with_plan_and_kernels_and_come_back(tmp_path: Path) -> None:
    one = problem_of(Normed().half(), torch.randn(8, 64).half())
    made = gpu_winner(one.case, "triton", H200, tmp_path / "units")
    manifest: Manifest = written(tmp_path / FOLDER, made)
    (entry,) = manifest.entries
    assert [unit.key for unit in entry.units] == list(entry.launched)
    (back,) = winners_of(tmp_path / FOLDER)
    assert back.plan == made.plan
    assert (back.source, back.device, back.values) == (made.source, made.device, made.values)
    done = said(tmp_path, "rmsnorm.call(torch.randn(8, 64).half(), torch.rand(64).half())")
    assert "this kernel is for cuda" in done.stderr.splitlines()[-1]


def test_a_winner_is_a_library_or_a_plan(tmp_path: Path) -> None:
    one = problem_of(Normed().half(), torch.randn(8, 64).half())
    made = gpu_winner(one.case, "triton", H200, tmp_path / "units")
    for update in ({"plan": None}, {"artefact": "kernel.so"}):
        with pytest.raises(ValueError, match="not both or neither"):
            Winner.model_validate(made.model_dump() | update)


def test_a_plan_whose_kernel_is_missing_is_not_opened(tmp_path: Path) -> None:
    one = problem_of(Normed().half(), torch.randn(8, 64).half())
    made = gpu_winner(one.case, "triton", H200, tmp_path / "units")
    with pytest.raises(BlobMissing, match="not among its files"):
        open_winner(made.model_copy(update={"units": ()}))
    Path(made.units[0].binary).write_bytes(b"other")
    with pytest.raises(BlobMissing, match="certificate"):
        open_winner(made)
