"""A real judge with real children, started once per test module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice
from kernelwright.core.case import DType
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.plan_language import first_values
from kernelwright.core.problem import Problem
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.evaluate import Judge
from kernelwright.ops import rmsnorm
from tests.cpu.interpreter import Interpreter


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeClient]:
    home: Path = tmp_path_factory.mktemp("judge")
    settings = JudgeSettings(
        threads=2,
        max_pairs=16,
        alpha=0.001,
        hidden_shapes=4,
        gate_pairs=0,  # test_unfair_clock.py shows the A/A gate; every file would pay its 14 pairs again
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
    )
    client = JudgeClient(settings, lambda _: None)
    yield client
    client.close()


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    """Return a process that interprets Triton."""
    found = Interpreter()
    yield found
    found.close()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Keep torch on one thread, as the judge's own process does: for small tensors two cost 8x the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def room(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Return a judge in this very process, for tests of single stages."""
    home = tmp_path_factory.mktemp("judge")
    settings = JudgeSettings(
        threads=2,
        max_pairs=1,
        alpha=0.001,
        hidden_shapes=2,
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
    )
    found = Judge(settings, lambda _: None)
    yield found
    found.close()


@pytest.fixture(scope="session")
def problem() -> Problem:
    case = rmsnorm.case({"rows": 256, "cols": 256}, DType.FP32)
    return Problem(op="rmsnorm", cases=(case,), device=cpu_device())


def cpp(source: str) -> Candidate:
    return Candidate(
        op="rmsnorm",
        backend="cpp",
        source=source,
        choices=(ParamChoice(values=first_values(source)),),
        origin=Origin.AUTHOR,
        author=Author(name="test"),
    )
