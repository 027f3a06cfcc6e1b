"""Counters without a GPU: the inputs of a profile, the kernels of known truth, and the verb's answer on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.counters import known

from kernelwright.core import plugins
from kernelwright.core.case import Distribution
from kernelwright.core.messages.profiler import Steady
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import first_values, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.verdict import Status
from kernelwright.engine.profiling import drawn
from kernelwright.hardware import perf
from kernelwright.hardware.counters import Workload, lay_out
from kernelwright.judge.drawn import SEED
from tests.devices import H200

CPP_SEED = Path(plugins.__file__).parents[1] / "seeds" / "softmax" / "cpp.cpp"


def test_inputs_of_a_profile_are_the_timings_own_in_the_cases_own_strides(tmp_path: Path) -> None:
    op = plugins.load("ops", "cross_entropy")
    case = op.public_cases()[0]
    logits, labels = case.inputs
    logits = logits.model_copy(update={"strides": (logits.shape[1] + 8, 1), "offset": 3})
    case = case.model_copy(update={"inputs": (logits, labels)})
    files = drawn(case, tmp_path)
    wanted = op.make_inputs(case, Distribution.SIGNED, SEED)
    size = logits.storage_elements
    stored = torch.from_file(str(tmp_path / files["logits"]), size=size, dtype=wanted["logits"].dtype)
    assert (tmp_path / files["logits"]).stat().st_size == size * logits.dtype.itemsize
    assert torch.equal(stored.as_strided(logits.shape, logits.strides, 3), wanted["logits"])
    indices = torch.from_file(str(tmp_path / files["labels"]), size=labels.numel, dtype=torch.int64)
    assert torch.equal(indices, wanted["labels"].flatten())


@pytest.mark.parametrize("one", known(), ids=lambda one: one.name)
def test_kernels_of_known_truth_compile_and_have_the_fault_they_are_known_for(one, tmp_path: Path) -> None:
    source, backend = one.source.read_text(), plugins.load("backends", one.backend)
    if not backend.available().usable:
        pytest.skip(backend.available().detail)
    plan = run_plan(parse_plan(source), one.case, first_values(source), H200)
    (launch,) = plan.launches
    unit = kernel_unit(launch, one.case)
    result = backend.compile_unit(source, unit, "sm_90", tmp_path)
    assert result.status is Status.ACCEPTED, result.log
    spilled = result.resources.get("spill_bytes", result.resources.get("spill_store_bytes", 0))
    assert (spilled > 256) == (one.name == "spilling")
    assert (launch.shared_bytes > H200.shared_bytes / 2) == (one.name == "low_occupancy")
    assert (result.resources.get("ld_global_16B", 0) > 0) == (
        one.name == "good_copy"
    ) or one.backend == "triton"

    (tmp_path / "laid").mkdir()
    key = unit.hash[:16]
    units = {key: (tmp_path / f"{key}.cubin", tmp_path / f"{key}.json")}
    lay_out(Workload(one.case, plan, units, H200), tmp_path / "laid")
    order = Steady.model_validate_json((tmp_path / "laid" / "steady.json").read_text())
    assert (order.case, order.plan) == (one.case, plan)
    assert (tmp_path / "laid" / order.kernels[0].binary).read_bytes() == units[key][0].read_bytes()


def test_on_a_cpu_the_verb_counts_what_the_kernel_offers_places_it_and_says_what_is_missing(
    tmp_path: Path,
) -> None:
    words = [str(CPP_SEED), "--op", "softmax", "--case", "64x128 fp32", "--json", "--home", str(tmp_path)]
    words += ["--timeline", str(tmp_path / "trace.json")]
    command = [sys.executable, "-m", "kernelwright", "counters", *words]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    answer = json.loads(said.stdout)
    assert (answer["status"], [kernel["name"] for kernel in answer["kernels"]]) == ("accepted", ["call"])
    assert bool(answer["missing"]) == bool(answer["reason"])
    told = {metric["name"]: metric["value"] for metric in answer["metrics"]}
    assert told["bytes_read"] == 64 * 128 * 4
    assert told["time_us"] > 0
    assert 0 < told["flops_pct"] < 100  # under the roofline that was measured for it
    assert told[perf.TASK_CLOCK] > 0
    assert set(told) & {event.name for event in perf.EVENTS} == {event.name for event in perf.EVENTS} - set(
        answer["missing"]
    )
    assert "there is none here" in answer["timeline"]["reason"]
    assert not (tmp_path / "trace.json").exists()
    refused = subprocess.run(
        [sys.executable, "-m", "kernelwright", "counters", str(CPP_SEED), "--op", "softmx"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode != 0
    assert "Did you mean 'softmax'" in refused.stderr
