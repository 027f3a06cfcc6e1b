"""The honest zoo: legitimate kernels that look strange, all of which the judge must accept.

Those for the CPU earn a certificate with a time. Those for the GPU are compiled for Hopper, every kernel of their
plans, and Triton's are also run by its interpreter.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kernelwright.backends._cuda_compile import nvrtc_version
from kernelwright.core import plugins
from kernelwright.core.case import Case, DType
from kernelwright.core.plan import Launch, kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.verdict import Profile, Status
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.stages.reordering import declares_reordering
from tests.cheats.conftest import Bar
from tests.cheats.specimen import author_candidate, problem_of
from tests.cheats.zoo import ANIMALS, Animal
from tests.devices import H200

EVERY_TIME = (
    "layernorm_welford.cpp",
    "matmul_split_k_atomic.cpp",
    "reduce_vectors_guided.cpp",
    "rmsnorm_avx2.cpp",
    "softmax_exceptions.cpp",
)
"""Judged by `make test`; the others by `make test-all`."""
SHIPPED = frozenset({"softmax_kept_workspace.cpp"})
"""What only `ship` looks at closely enough."""
SLOW_UNITS = frozenset(
    {"layernorm_welford.py", "matmul_split_k.py", "reduce_atomic_parts.py", "rmsnorm_two_kernels.py"}
)
"""Interpreted by `make test-all` only."""


def those(runs: str, backend: str, slow: frozenset[str] = frozenset()) -> list[object]:
    """Return the kernels of one backend as parameters of a test."""
    return [
        pytest.param(item, id=item.name, marks=[pytest.mark.slow] if item.name in slow else [])
        for item in ANIMALS
        if (item.runs, item.backend) == (runs, backend)
    ]


def some_cases(op: str) -> Iterator[Case]:
    """Yield a small size in every dtype, the largest public one and the longest edge."""
    module = plugins.load("ops", op)
    public, edges = module.public_cases(), module.edge_cases()
    for dtype in module.DTYPES:
        yield next(case for case in public if case.dtype is dtype)
    for cases in (public, [case for case in edges if case.dtype is DType.FP16]):
        yield max(cases, key=lambda case: module.work(case).bytes_moved)


def launches(item: Animal) -> list[tuple[Case, Launch]]:
    """Return the distinct launches of an animal's plans on some cases."""
    function, values = parse_plan(item.source), first_values(item.source)
    found = {}
    for case in some_cases(item.op):
        for launch in run_plan(function, case, values, H200).launches:
            found[json.dumps([case.dtype, launch.kernel, launch.constants])] = (case, launch)
    return list(found.values())


def check_compiled(item: Animal) -> None:
    """Fail unless the guards let it pass and every launch of its plans compiles and fits the device."""
    backend = plugins.load("backends", item.backend)
    assert backend.check(item.source) is None
    everything = launches(item)
    assert len(everything) >= len(plugins.load("ops", item.op).DTYPES)
    with TemporaryDirectory() as folder:
        for case, launch in everything:
            result = backend.compile_unit(item.source, kernel_unit(launch, case), H200.arch, Path(folder))
            assert result.status is Status.ACCEPTED, (case.label, launch.kernel, result.log)
            assert launch.shared_bytes <= H200.shared_bytes


def test_there_are_enough_kernels_of_every_kind() -> None:
    counts = {
        backend: sum(item.backend == backend for item in ANIMALS)
        for backend in ("cpp", "triton", "cuda", "python")
    }
    assert sum(counts.values()) == len(ANIMALS) >= 25
    assert counts["cpp"] >= 15 and counts["triton"] >= 5 and counts["cuda"] >= 5 and counts["python"] >= 2
    assert all(item.sentence.endswith(".") for item in ANIMALS)
    assert set(EVERY_TIME) <= {item.name for item in ANIMALS}


def test_only_kernels_with_atomic_sums_declare_reordering() -> None:
    declared = {item.name for item in ANIMALS if declares_reordering(item.source)}
    assert declared == {"matmul_split_k_atomic.cpp", "reduce_atomic_parts.py", "cross_entropy_atomics.cu"}


SLOW = frozenset(item.name for item in ANIMALS if item.runs == "cpu" and item.name not in EVERY_TIME)


@pytest.mark.parametrize("item", those("cpu", "cpp", SLOW) + those("cpu", "python", SLOW))
def test_an_awkward_kernel_earns_a_certificate_with_a_time(item: Animal, bar: Bar) -> None:
    candidate = author_candidate(item.op, item.backend, item.source)
    profile = Profile.SHIP if item.name in SHIPPED else Profile.KEEP
    found = bar.guarded.evaluate(problem_of(item.op, cpu_device()), candidate, profile)
    assert found.status is Status.ACCEPTED, found.failure
    assert found.timing is not None


@pytest.mark.parametrize("item", those("gpu", "triton"))
def test_an_awkward_triton_kernel_compiles_for_hopper(item: Animal) -> None:
    check_compiled(item)


@pytest.mark.skipif(nvrtc_version() is None, reason="cuda-core is not installed")
@pytest.mark.parametrize("item", those("gpu", "cuda"))
def test_an_awkward_cuda_kernel_compiles_for_hopper(item: Animal) -> None:
    check_compiled(item)


@pytest.mark.parametrize("item", those("gpu", "triton", SLOW_UNITS) + those("gpu", "python"))
def test_an_awkward_triton_kernel_is_right_in_the_interpreter(item: Animal, bar: Bar) -> None:
    candidate = author_candidate(item.op, item.backend, item.source)
    found = bar.guarded.evaluate(problem_of(item.op, cpu_device()), candidate, Profile.QUICK)
    assert found.status is Status.ACCEPTED, found.failure
