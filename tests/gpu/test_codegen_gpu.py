"""Kernels written from a fusion, on a GPU: Triton and CUDA C++ under the full judge. Needs an NVIDIA GPU.

Runs without pytest too, where there is none: `python -m tests.gpu.test_codegen_gpu` from the root of the repository.
"""

import tempfile
from pathlib import Path

from kernelwright.core.device import DeviceKind
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.model_spec import ModelOptions
from kernelwright.core.verdict import Profile, Status
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import devices
from tests.cpu.fusions import MODULES, fusion, problem_of

try:
    import pytest
except ModuleNotFoundError:
    print("no pytest here: the tests run one after the other")
else:
    pytestmark = pytest.mark.gpu

ROWS = 64
"""How many times larger the first axis is than on a CPU."""
IN_ORDER = MODULES.keys() - {"strides and halves"}
"""What reads its rows in order: Triton serves these."""


def test_the_judge_accepts_the_kernels_written_from_a_fusion_on_a_gpu() -> None:
    gpu = next(device for device in devices() if device.kind is DeviceKind.CUDA)
    with tempfile.TemporaryDirectory() as home:
        settings = JudgeSettings(
            threads=2, max_pairs=4, alpha=0.001, hidden_shapes=2, gate_pairs=0,
            cache_folder=f"{home}/cache", blob_folder=f"{home}/blobs",
        )  # fmt: skip
        judge = JudgeClient(settings, lambda _: None)
        try:
            for name, (module, shapes) in MODULES.items():
                for dtype in ("fp32", "bf16"):
                    sizes = [(ROWS * shape[0], *shape[1:]) if name in IN_ORDER else shape for shape in shapes]
                    options = ModelOptions.model_validate({"device": "cuda", "dtype": dtype})
                    one = fusion(module(), *sizes, options=options)
                    problem = problem_of(one, Path(home) / "regions", gpu)
                    seeds = Seeds(("triton", "cuda"), 2).first(problem)
                    assert "cuda" in [seed.backend for seed in seeds], one.not_plain
                    for seed in seeds:
                        verdict = judge.evaluate(problem, seed, Profile.KEEP)
                        print(name, dtype, seed.backend, verdict.status.value, verdict.stages[-1].reason)
                        assert verdict.status is Status.ACCEPTED, (
                            name,
                            dtype,
                            seed.backend,
                            verdict.stages[-1],
                        )
        finally:
            judge.close()


if __name__ == "__main__":
    test_the_judge_accepts_the_kernels_written_from_a_fusion_on_a_gpu()
