"""A profile on a GPU: kernels belong to regions, idle time is the gap, torch.compile's kernels are traced.

Runs without pytest too, where there is none: `python tests/gpu/test_profile_gpu.py` from the root of the repository.
"""

import math
import tempfile
from pathlib import Path

from kernelwright.core.account import LARGEST_REST, Account, Kind
from kernelwright.core.case import DType
from kernelwright.core.messages.model import ModelProfiled, ProfileModel
from kernelwright.core.model_spec import ModelOptions
from kernelwright.model.load import load
from kernelwright.model.profile import profile

try:
    import pytest
except ModuleNotFoundError:
    print("no pytest here: the tests run one after the other")
else:
    pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]


def profiled(factory: str, memory_file: Path | None = None) -> ModelProfiled:
    options = ModelOptions(device="cuda", dtype=DType.BF16)
    loaded = load(f"{ROOT}/examples/models/llama.py:{factory}", options)
    snapshot = None if memory_file is None else str(memory_file)
    request = ProfileModel(spec=loaded.spec, options=options, threads=1, seconds=5.0, memory_file=snapshot)
    return profile(loaded, request, lambda _: None)


def check_accounts(found: ModelProfiled) -> None:
    """Fail unless regions, gaps and rest add up to the time measured, and the rest is small, every way of running."""
    captured = sum(one.captured_us for one in found.regions)
    assert found.compile_error == ""
    assert found.compiled is not None
    compiled = sum(one.compiled_us or 0.0 for one in found.regions)
    accounts: dict[str, tuple[Account, float]] = {
        "eager": (found.eager, captured),
        "captured": (found.captured, captured),
        "compiled": (found.compiled, compiled),
    }
    for name, (account, inside) in accounts.items():
        added = inside + account.gaps_us + account.rest_us
        assert math.isclose(added, account.total_us, rel_tol=1e-6), (name, added, account)
        assert account.rest_share <= LARGEST_REST, (name, account)
        assert account.gaps_us > 0, f"{name}: a small model leaves a large GPU idle"
    assert found.linked >= 0.9 * found.kernels > 0, (found.linked, found.kernels)


def test_the_time_of_a_gpu_is_attributed_to_regions_and_gaps(tmp_path: Path) -> None:
    snapshot = tmp_path / "memory.pickle"
    found = profiled("build(layers=2)", snapshot)
    check_accounts(found)
    ops = {one.op for one in found.regions if one.kind is Kind.OP and one.captured_us > 0}
    assert {"rmsnorm", "attention", "swiglu_mlp"} <= ops
    assert snapshot.stat().st_size > 0


def test_a_token_behind_a_cache_is_attributed_too(tmp_path: Path) -> None:
    found = profiled("build_decode(layers=2)")
    check_accounts(found)
    names = {one.op for one in found.regions if one.captured_us > 0}
    assert {"rmsnorm", "swiglu_mlp"} <= names
    assert len(found.sets) == 2


def main() -> None:
    """Run the tests of this file."""
    for test in (
        test_the_time_of_a_gpu_is_attributed_to_regions_and_gaps,
        test_a_token_behind_a_cache_is_attributed_too,
    ):
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))
        print(f"passed: {test.__name__}", flush=True)


if __name__ == "__main__":
    main()
