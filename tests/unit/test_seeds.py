"""What a search begins with: when torch.compile is judged, and that it is judged at all."""

import pytest

from kernelwright.core.config import RunConfig
from kernelwright.core.device import DeviceKind
from kernelwright.engine.seeds import Seeds, is_hurried


@pytest.mark.parametrize(
    ("kind", "hurried", "is_late"),
    [
        (DeviceKind.CPU, False, True),
        (DeviceKind.CPU, True, True),
        (DeviceKind.CUDA, False, False),
        (DeviceKind.CUDA, True, True),
    ],
)
def test_torch_compile_is_judged_at_once_or_at_the_end_and_never_left_out(
    make, kind: DeviceKind, hurried: bool, is_late: bool
) -> None:
    problem, seeds = make.problem(device=make.device(kind=kind)), Seeds(("triton",), 2, hurried=hurried)
    late = seeds.late_baseline(problem)
    at_once = [one.backend for one in seeds.baselines(problem)]
    assert (at_once, late and late.backend) == (
        (["eager"], "compiled") if is_late else (["eager", "compiled"], None)
    )


@pytest.mark.parametrize(
    ("model", "budget", "expected"),
    [("m.py:build", "4m30s", True), ("m.py:build", "10m", False), (None, "2m", False)],
)
def test_only_a_model_on_a_short_budget_is_in_a_hurry(model: str | None, budget: str, expected: bool) -> None:
    single = {} if model else {"op": "softmax", "shape": ("4096x50257 bf16",)}
    config = RunConfig.model_validate({"model": model, "budget_s": budget, **single})
    assert is_hurried(config) is expected
