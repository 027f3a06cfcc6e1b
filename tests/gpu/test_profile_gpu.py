"""A profile on a GPU: kernels belong to regions, idle time is the gap, torch.compile's kernels are traced."""

from pathlib import Path

import pytest

from kernelwright.core.account import LARGEST_REST, Kind
from kernelwright.core.case import DType
from kernelwright.core.messages.model import ProfileModel
from kernelwright.core.model_spec import ModelOptions
from kernelwright.model.load import load
from kernelwright.model.profile import profile

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def test_the_time_of_a_gpu_is_attributed_to_regions_and_gaps(tmp_path: Path) -> None:
    options = ModelOptions(device="cuda", dtype=DType.BF16)
    loaded = load(f"{ROOT}/examples/models/llama.py:build(layers=2)", options)
    snapshot = tmp_path / "memory.pickle"
    request = ProfileModel(spec=loaded.spec, options=options, threads=1, memory_file=str(snapshot))
    found = profile(loaded, request, lambda _: None)
    inside = sum(one.captured_us for one in found.regions)
    account = found.captured
    assert inside + account.gaps_us + account.rest_us == pytest.approx(account.total_us, rel=1e-6)
    assert account.rest_share <= LARGEST_REST
    assert account.gaps_us > 0, "a small model leaves a large GPU idle"
    ops = {one.op for one in found.regions if one.kind is Kind.OP and one.captured_us > 0}
    assert {"rmsnorm", "attention", "swiglu_mlp"} <= ops
    assert found.compile_error == ""
    assert found.linked >= 0.9 * found.kernels > 0
    assert snapshot.stat().st_size > 0
