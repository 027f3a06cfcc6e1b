"""A whole run on a GPU, and the model timed there as it is and from CUDA graphs. Needs an NVIDIA GPU.

Runs without pytest too, where there is none: `python tests/gpu/test_optimize_gpu.py` from the root of the repository.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kernelwright.core.candidate import Origin
from kernelwright.core.device import DeviceKind
from kernelwright.core.messages.model import ModelTimed, VerifyModel
from kernelwright.core.model_spec import ModelOptions
from kernelwright.core.verdict import Status
from kernelwright.engine.service import ask_model
from kernelwright.store.journal import Journal

try:
    import pytest
except ModuleNotFoundError:
    print("no pytest here: the tests run one after the other")
else:
    pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "examples/models/llama.py:build")


def test_every_arm_is_timed_as_it_is_and_from_a_cuda_graph() -> None:
    options = ModelOptions(device="cuda", dtype="bf16")
    request = VerifyModel(
        spec=MODEL, options=options, threads=2, winners=(), rounds=4, seed=0, other_sizes=True
    )
    found = ask_model(request, lambda _: None)
    assert isinstance(found, ModelTimed)
    assert [mode.mode for mode in found.modes] == ["plain", "graph"], found.notes
    for mode in found.modes:
        arms = (mode.eager_us, mode.captured_us, mode.compiled_us, *mode.spliced_us)
        assert [len(times) for times in arms] == [4] * 4
    plain, graph = found.modes
    assert min(graph.eager_us) < min(plain.eager_us), "a small model is bound by its launches"
    assert [check.problem for check in found.checks] == ["", ""]


def test_a_run_on_a_gpu_judges_triton_first_and_verifies_what_it_keeps() -> None:
    with tempfile.TemporaryDirectory() as home:
        check_run(optimized(Path(home)))


def optimized(home: Path) -> Path:
    words = [sys.executable, "-m", "kernelwright", "optimize", MODEL, "--device", "cuda", "--dtype", "bf16"]
    words += ["--top", "2", "--max-pairs", "30", "--processes", "3", "--author", "none"]
    command = [*words, "--json", "--home", str(home)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return Path(json.loads(done.stdout)["folder"])


def check_run(folder: Path) -> None:
    tree = Journal.open(folder).tree()
    assert tree.started is not None
    assert tree.started.device.kind is DeviceKind.CUDA
    assert 1 <= len(tree.problems) <= 2
    for key in tree.problems:
        own = [node.candidate for (owner, _), node in tree.nodes.items() if owner == key]
        assert [one.backend for one in own[:3]] == ["eager", "compiled", "triton"]
        assert [one.origin for one in own[:3]] == [Origin.BASELINE, Origin.BASELINE, Origin.AUTHOR]
        for one in own[:2]:
            verdict = tree.nodes[key, one.hash].evaluations[0]
            assert verdict.status is Status.ACCEPTED, (one.backend, verdict.failure)
    if tree.verified is not None:
        assert tree.verified.mode in ("plain", "graph")
        assert tree.verified.drift > 0
        assert set(tree.verified.winners) <= set(tree.problems)
        assert tree.tried
    else:
        assert tree.ended is not None
        assert "nothing is spliced" in tree.ended.reason


if __name__ == "__main__":
    test_every_arm_is_timed_as_it_is_and_from_a_cuda_graph()
    test_a_run_on_a_gpu_judges_triton_first_and_verifies_what_it_keeps()
    print("passed")
