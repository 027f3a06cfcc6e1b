"""Every C++ seed through the judge's own stages: right on small, hidden, hard and awkward cases in every dtype."""

from collections.abc import Iterator

import pytest

from kernelwright.core import plugins
from kernelwright.core.candidate import Origin
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import REQUIRED_STAGES, Profile, Stage
from kernelwright.engine.seeds import seed
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.stages import input_elements, run_stage

CHECKED = tuple(stage for stage in REQUIRED_STAGES[Profile.KEEP] if stage is not Stage.TIMING)
SHIPPED = (Stage.REBUILD, Stage.SANITIZER)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    home = tmp_path_factory.mktemp("judge")
    settings = JudgeSettings(
        threads=2,
        max_pairs=1,
        alpha=0.001,
        hidden_shapes=8,
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
    )
    room = Judge(settings, lambda _: None)
    yield room
    room.close()


OPS = [name for name in plugins.names("ops") if plugins.load("ops", name).public_cases()]
"""All but the one that comes with a file of the user's."""


@pytest.mark.parametrize("op_name", OPS)
def test_the_cpp_seed_is_right(op_name: str, judge: Judge) -> None:
    pass_stages(op_name, judge, CHECKED)


@pytest.mark.slow
@pytest.mark.parametrize("op_name", OPS)
def test_the_cpp_seed_can_be_built_again_and_is_clean_under_sanitizers(op_name: str, judge: Judge) -> None:
    pass_stages(op_name, judge, (Stage.BUILD, *SHIPPED))


def pass_stages(op_name: str, judge: Judge, stages: tuple[Stage, ...]) -> None:
    """Fail at the first stage the seed of an op does not pass."""
    candidate = seed(op_name, "cpp", Origin.AUTHOR)
    assert candidate is not None, f"{op_name} has no C++ seed"
    op = plugins.load("ops", op_name)
    case = min(op.public_cases(), key=input_elements)
    bench = judge.bench(Problem(op=op_name, cases=(case,), device=cpu_device()), candidate)
    for stage in stages:
        result, failure = run_stage(stage, bench)
        assert result.passed, f"{stage.value}: {failure}"
        assert result.checked > 0 or stage is Stage.ALIASING
