"""`kernelwright.apply`, `remove` and `torch.compile(backend="kernelwright")`: sizes, gradients, and back again."""

import copy
import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import kernelwright
from kernelwright.core.errors import BadInput, BlobMissing, NotFound
from kernelwright.core.manifest import FOLDER
from kernelwright.model.apply import winners_of
from kernelwright.model.splice import Tally, compiled_with
from tests.cpu.splice_winners import Normed, cpp_winner, problem_of, written

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

BATCHES = (2, 5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run's folder with kernels for two batch sizes."""
    folder = tmp_path_factory.mktemp("run")
    cases = [problem_of(Normed(), torch.randn(batch, 8, 64)).case for batch in BATCHES]
    winners = [cpp_winner(case, folder / f"built{place}") for place, case in enumerate(cases)]
    written(folder / FOLDER, *winners)
    return folder


def inputs(batch: int) -> torch.Tensor:
    return torch.randn(batch, 8, 64, generator=torch.Generator().manual_seed(batch))


def test_every_size_gets_its_own_winner_and_other_sizes_the_original(run: Path) -> None:
    model = Normed()
    order = (2, 5, 3, 7, 5, 2, 3)
    with torch.no_grad():
        expected = {batch: model(inputs(batch)) for batch in set(order)}
        assert kernelwright.apply(model, run) is model
        for batch in order:
            found = model(inputs(batch))
            assert found.shape == expected[batch].shape
            assert float((found - expected[batch]).abs().max()) < 1e-5
    tally = kernelwright.spliced(model)
    calls = {count.label: count.calls for count in tally.winners.values()}
    assert calls == {"rmsnorm 16x64 fp32": 2, "rmsnorm 40x64 fp32": 2}
    assert (tally.fallbacks, tally.unserved, tally.aside) == (0, 3, 0)
    assert any("no winner has their size" in line for line in tally.lines())


def test_fixed_sizes_look_their_winner_up_too(run: Path) -> None:
    model, tally = Normed(), Tally()
    compiled = compiled_with(model, winners_of(run / FOLDER), tally)
    with torch.no_grad():
        for batch in (2, 5, 3):
            assert float((compiled(inputs(batch)) - model(inputs(batch))).abs().max()) < 1e-5
    assert [count.calls for count in tally.winners.values()] == [1, 1]
    assert all(
        "test" in site or "splice_winners" in site for one in tally.winners.values() for site in one.sites
    )


def test_a_model_trains_as_before(run: Path) -> None:
    model, twin = Normed(), Normed()
    twin.load_state_dict(model.state_dict())
    kernelwright.apply(model, run)
    for batch in (2, 5):
        for one in (model, twin):
            one.zero_grad()
            one(inputs(batch)).square().sum().backward()
        assert torch.equal(model.norm.weight.grad, twin.norm.weight.grad)
    tally = kernelwright.spliced(model)
    assert (tally.aside, tally.spliced) == (2, 0)
    with torch.no_grad():
        model(inputs(2))
    assert tally.spliced == 1


def test_an_input_that_wants_a_gradient_gets_it(run: Path) -> None:
    model = Normed().requires_grad_(False)
    x = inputs(2).requires_grad_()
    (expected,) = torch.autograd.grad(model(x).sum(), (x,))
    kernelwright.apply(model, run)
    (found,) = torch.autograd.grad(model(x).sum(), (x,))
    assert torch.equal(found, expected)
    assert kernelwright.spliced(model).spliced == 0


def test_a_misaligned_input_runs_the_original_and_says_so(run: Path) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(64, eps=1e-6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x)

    model = Bare()
    odd = torch.randn(2 * 8 * 64 + 1)[1:].view(2, 8, 64)
    expected = model(odd).detach()
    kernelwright.apply(model, run)
    with torch.no_grad():
        model(inputs(2))
        assert torch.equal(model(odd), expected)
    counts = kernelwright.spliced(model).winners.values()
    assert sum((one.fallbacks for one in counts), Counter()) == Counter({"alignment": 1})
    assert sum(one.calls for one in counts) == 1


def test_autocast_gives_what_it_gave(run: Path) -> None:
    model = Normed()
    with torch.no_grad():
        kernelwright.apply(model, run)(inputs(2))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, expected = model(inputs(2)), model.forward(inputs(2))
    assert found.dtype is expected.dtype
    assert float((found - expected).abs().max()) < 1e-5


def test_removing_restores_the_model_exactly(run: Path) -> None:
    model = Normed().eval()
    before, expected = dict(vars(model)), model(inputs(2))
    kernelwright.apply(model, run)
    with torch.no_grad():
        model(inputs(2))
    assert isinstance(model, Normed)
    assert kernelwright.remove(model) is model
    assert vars(model) == before
    assert type(model) is Normed
    assert model.forward.__func__ is Normed.forward
    assert torch.equal(model(inputs(2)), expected)
    assert kernelwright.remove(model) is model
    with pytest.raises(BadInput, match="no kernels were put into it"):
        kernelwright.spliced(model)


def test_a_copy_of_a_spliced_model_is_the_original(run: Path) -> None:
    model = kernelwright.apply(Normed(), run)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert "_compiled_call_impl" not in vars(twin)
        assert torch.equal(twin(inputs(3)), kernelwright.remove(model)(inputs(3)))


def test_what_the_user_compiled_before_comes_back(run: Path) -> None:
    model = Normed()
    model.compile(backend="eager")
    own = model._compiled_call_impl
    kernelwright.apply(kernelwright.apply(model, run), run)
    assert model._compiled_call_impl is not own
    assert kernelwright.remove(model)._compiled_call_impl is own


def test_calls_torch_compile_gave_up_on_are_counted(run: Path) -> None:
    model = kernelwright.apply(Normed(), run)
    with torch._dynamo.config.patch(recompile_limit=1):
        with torch.no_grad():
            model(inputs(2))
        model(inputs(2)).sum().backward()
    tally = kernelwright.spliced(model)
    assert model.norm.weight.grad is not None
    assert (tally.spliced, tally.aside, tally.unseen) == (1, 0, 1)
    assert any("gave up" in line for line in tally.lines())


def test_torch_compile_finds_the_backend_by_its_name(run: Path) -> None:
    model, options = Normed(), {"kernels": str(run)}
    compiled = torch.compile(model, backend="kernelwright", options=options)
    with torch.no_grad():
        for batch in (5, 2, 3):
            assert float((compiled(inputs(batch)) - model(inputs(batch))).abs().max()) < 1e-5
    tally = options["tally"]
    assert isinstance(tally, Tally)
    assert (tally.spliced, tally.fallbacks, tally.unserved) == (2, 0, 1)


def test_what_cannot_be_applied_is_refused_in_one_line(run: Path, tmp_path: Path) -> None:
    model = Normed()
    with pytest.raises(BadInput, match="neither 'eager' nor 'inductor'"):
        kernelwright.apply(model, run, rest="jit")
    with pytest.raises(NotFound, match=r"manifest\.json"):
        kernelwright.apply(model, tmp_path)
    copied = tmp_path / "kernels"
    copied.mkdir()
    for path in (run / FOLDER).rglob("*"):
        if path.is_file():
            target = copied / path.relative_to(run / FOLDER)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    next((copied / "artefacts").glob("*.so")).write_bytes(b"other")
    with pytest.raises(BlobMissing, match="certificate"):
        kernelwright.apply(model, copied)
    assert "_compiled_call_impl" not in vars(model)


def test_inductor_compiles_the_rest_around_a_kernel(run: Path) -> None:
    import torch._inductor.config as inductor

    # The same code; headers precompiled for later compilations and the probe of instruction sets cost half a minute.
    quick = inductor.patch({"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": True})
    model = Normed()
    with quick, torch.no_grad():
        expected = model(inputs(2))
        kernelwright.apply(model, run, rest="inductor")
        for _ in range(2):
            found = model(inputs(2))
            assert (found.stride(), float((found - expected).abs().max()) < 1e-5) == (expected.stride(), True)
    tally = kernelwright.spliced(model)
    assert (tally.spliced, tally.fallbacks) == (2, 0)
    model(inputs(2)).sum().backward()
    gradient, model.norm.weight.grad = model.norm.weight.grad, None
    kernelwright.remove(model)(inputs(2)).sum().backward()
    assert torch.allclose(gradient, model.norm.weight.grad, rtol=1e-5)
    assert (tally.spliced, tally.aside) == (2, 1)
