"""A spliced kernel runs only where everything it was certified on holds; each refusal has a name and is counted."""

import os
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from kernelwright.backends import cpp
from kernelwright.backends._bare_launch import KernelRefused, NativeKernel, library_of
from kernelwright.core.errors import BlobMissing, DeviceMissing
from kernelwright.core.frozen import digest
from kernelwright.core.messages.model import Winner
from kernelwright.model.launching import open_winner
from kernelwright.model.operators import as_operator
from kernelwright.model.splice import Splicer, Tally, compiled_with
from kernelwright.model.spliced import SplicedKernel
from tests.cpu.splice_winners import Normed, cpp_winner, problem_of

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Spliced = tuple[SplicedKernel, torch.nn.RMSNorm, Tally]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one built kernel for rows of 64."""
    folder = tmp_path_factory.mktemp("winner")
    cpp_winner(problem_of(Normed(), torch.randn(8, 64)).case, folder / "kernel")
    return folder / "kernel" / "kernel.so"


@pytest.fixture
def spliced(built: Path) -> Spliced:
    torch.manual_seed(0)
    model, tally = torch.nn.RMSNorm(64, eps=1e-6), Tally()
    one = problem_of(model, torch.randn(8, 64))
    site = one.sites[0]
    assert site.match is not None
    kernel = NativeKernel(built.read_bytes(), one.case.model_dump(mode="json"))
    return SplicedKernel(one.case, kernel, (site.region, site.match), tally), model, tally


def misaligned() -> torch.Tensor:
    return torch.randn(8 * 64 + 1)[1:].view(8, 64)


@pytest.mark.parametrize(
    ("reason", "make"),
    [
        ("shape", lambda: torch.randn(9, 64)),
        ("dtype", lambda: torch.randn(8, 64).double()),
        ("device", lambda: torch.randn(8, 64, device="meta")),
        ("stride", lambda: torch.randn(64, 8).T),
        ("alignment", misaligned),
    ],
)
def test_each_refusal_has_a_name(reason: str, make: object, spliced: Spliced) -> None:
    call, model, tally = spliced
    assert callable(make)
    other = make()
    with torch.no_grad():
        weight = model.weight.to(other.dtype).to(other.device)
        (answer,) = call(other, weight)
    (count,) = tally.winners.values()
    assert (count.calls, count.fallbacks) == (0, Counter({reason: 1}))
    if other.device.type == "cpu":
        assert torch.equal(answer, F.rms_norm(other, (64,), weight, 1e-6))


def test_gradients_and_autocast_run_the_original(spliced: Spliced) -> None:
    call, model, tally = spliced
    x = torch.randn(8, 64)
    (answer,) = call(x, model.weight)
    answer.sum().backward()
    (expected,) = torch.autograd.grad(model(x).sum(), (model.weight,))
    assert torch.equal(model.weight.grad, expected)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        call(x, model.weight)
    (count,) = tally.winners.values()
    assert count.fallbacks == Counter({"gradient": 1, "autocast": 1})
    with torch.no_grad():
        (answer,) = call(x, model.weight)
        assert float((answer - model(x)).abs().max()) < 1e-5
    assert (count.calls, tally.spliced, tally.fallbacks) == (1, 1, 2)


def test_a_gradient_through_the_operator_is_the_originals(spliced: Spliced) -> None:
    call, model, tally = spliced
    made = as_operator(call, "content")
    x = torch.randn(8, 64)
    (answer,) = made.operator([x, model.weight], made.key)
    answer.sum().backward()
    (expected,) = torch.autograd.grad(model(x).sum(), (model.weight,))
    assert torch.equal(model.weight.grad, expected)
    assert (tally.spliced, tally.fallbacks) == (0, 1)
    with torch.no_grad():
        (answer,) = made.operator([x, model.weight], made.key)
        assert float((answer - model(x)).abs().max()) < 1e-5
    assert (tally.spliced, tally.fallbacks) == (1, 1)


def test_the_operator_announces_what_it_returns(spliced: Spliced) -> None:
    call, model, tally = spliced
    made = as_operator(call, "content")
    x, weight = torch.randn(8, 64), model.weight.detach()
    torch.library.opcheck(
        made.operator, ([x, weight], made.key), test_utils=("test_schema", "test_faketensor")
    )
    with torch.no_grad():
        (answer,) = made.operator(
            [torch.randn(64, 8).T, weight], made.key
        )  # the original would lie otherwise
    assert (answer.stride(), tally.fallbacks) == ((64, 1), 1)


def test_two_alike_with_counts_of_their_own_have_two_keys(spliced: Spliced, built: Path) -> None:
    call, model, tally = spliced
    one, others = problem_of(model, torch.randn(8, 64)), Tally()
    site = one.sites[0]
    assert site.match is not None
    twin = SplicedKernel(
        one.case,
        NativeKernel(built.read_bytes(), one.case.model_dump(mode="json")),
        (site.region, site.match),
        others,
    )
    first, second, again = as_operator(call, "c"), as_operator(twin, "c"), as_operator(call, "c")
    assert (first.key == again.key, first.key == second.key) == (True, False)
    with torch.no_grad():
        first.operator([torch.randn(8, 64), model.weight], second.key)
    assert (tally.spliced, others.spliced) == (0, 1)


def test_threads_do_not_write_into_each_others_calls(spliced: Spliced) -> None:
    call, model, tally = spliced
    inputs = [torch.full((8, 64), float(number)) + torch.arange(64) for number in range(4)]
    wrong = []

    def work(x: torch.Tensor) -> None:
        with torch.no_grad():
            expected = model(x)
            for _ in range(300):
                (answer,) = call(x, model.weight)
                if float((answer - expected).abs().max()) > 1e-5:
                    wrong.append(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert (wrong, tally.fallbacks) == ([], 0)


def test_a_library_that_is_exchanged_after_it_was_checked_is_not_the_one_that_is_loaded(
    built: Path, tmp_path: Path
) -> None:
    """A pipe gives the certified content to whoever reads first, and another file lies there once it is read."""
    one = problem_of(torch.nn.RMSNorm(64, eps=1e-6), torch.randn(8, 64))
    content, pipe = built.read_bytes(), tmp_path / "kernel.so"
    os.mkfifo(pipe)

    def serve() -> None:
        (tmp_path / "other").write_bytes(b"exchanged")
        with pipe.open("wb") as stream:
            stream.write(content)
            (tmp_path / "other").replace(pipe)

    threading.Thread(target=serve, daemon=True).start()
    whose = {"problem_hash": "p", "candidate_hash": "c", "backend": "cpp", "case": one.case}
    winner = Winner.model_validate(whose | {"artefact": str(pipe), "artefact_hash": digest(content)})
    kernel = open_winner(winner)
    assert pipe.read_bytes() == b"exchanged"
    x, weight, out = torch.randn(8, 64), torch.ones(64), torch.empty(8, 64)
    assert kernel(x.data_ptr(), weight.data_ptr(), out.data_ptr()) == 0
    torch.testing.assert_close(out, F.rms_norm(x, (64,), weight, 1e-6))


@pytest.mark.parametrize("memory", [True, False], ids=["in memory", "in a file of its own"])
def test_libraries_loaded_one_after_the_other_are_told_apart_by_their_content(
    memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not memory:
        monkeypatch.delattr(os, "memfd_create")
    contents = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        source = f'extern "C" int kernel_fn() {{ static int calls; return {number}0 + calls++; }}'
        assert cpp.build(source, {}, folder).artefact == "kernel.so"
        contents.append((folder / "kernel.so").read_bytes())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    first, second = (library_of(content) for content in contents)
    assert (first.kernel_fn(), second.kernel_fn(), first.kernel_fn()) == (10, 20, 11)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    with pytest.raises(KernelRefused, match="mine cannot be loaded"):
        NativeKernel(b"no library", {}, "mine")


def test_the_c_struct_is_the_same_as_the_judges(built: Path) -> None:
    one = problem_of(Normed(), torch.randn(8, 64))
    structs, _ = NativeKernel(built.read_bytes(), one.case.model_dump(mode="json"))._laid_out()
    specs = (*one.case.inputs, *one.case.outputs)
    assert [bytes(struct) for struct in structs] == [bytes(cpp.tensor_struct(spec, 0)) for spec in specs]


def test_a_kernel_that_declines_is_not_used(tmp_path: Path) -> None:
    model, x = Normed(), torch.randn(8, 64)
    one = problem_of(model, x)
    refusing = (
        '#include "kernelwright.h"\n'
        'extern "C" int kernel_fn(const kw_tensor*, const kw_tensor*, double, const kw_tensor*) { return 3; }\n'
    )
    tally = Tally()
    compiled = compiled_with(model, [cpp_winner(one.case, tmp_path / "no", refusing)], tally)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    (count,) = tally.winners.values()
    assert count.fallbacks == Counter({"declined by the kernel": 1})


def test_a_winner_from_another_processor_is_refused(tmp_path: Path) -> None:
    made = cpp_winner(problem_of(Normed(), torch.randn(8, 64)).case, tmp_path / "kernel")
    assert made.device is not None
    elsewhere = made.model_copy(update={"device": made.device.model_copy(update={"name": "Z80"})})
    with pytest.raises(DeviceMissing, match="certified on Z80"):
        Splicer([elsewhere], Tally())


def test_a_winner_whose_file_was_exchanged_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    made = cpp_winner(problem_of(Normed(), torch.randn(8, 64)).case, tmp_path / "kernel")
    Path(made.artefact).write_bytes(b"something else")
    with pytest.raises(BlobMissing, match="certificate"):
        compiled_with(Normed(), [made], Tally())
    with pytest.raises(BlobMissing, match="certificate"):
        open_winner(made)
