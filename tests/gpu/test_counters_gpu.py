"""Hardware counters on a GPU whose counters can be read. Needs one NVIDIA GPU and Nsight Compute."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.core import plugins
from kernelwright.core.counters import TIME
from kernelwright.core.device import DeviceKind
from kernelwright.hardware import bottleneck_rules as names
from kernelwright.hardware import ncu
from kernelwright.hardware.detect import devices

pytestmark = pytest.mark.gpu
SEED = Path(plugins.__file__).parents[1] / "seeds" / "softmax" / "triton.py"


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict:
    if not any(device.kind is DeviceKind.CUDA for device in devices()) or ncu.found() is None:
        pytest.skip("no NVIDIA GPU or no Nsight Compute here")
    home = tmp_path_factory.mktemp("home")
    words = [str(SEED), "--op", "softmax", "--case", "16384x16384 fp16", "--json", "--home", str(home)]
    command = [sys.executable, "-m", "kernelwright", "counters", *words]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    if found["lack"] in ("not_permitted", "not_supported"):
        pytest.skip(found["reason"])
    return found


def test_counters_are_of_the_judged_kernel_and_its_bytes(answer: dict) -> None:
    assert answer["lack"] == "", answer["reason"]
    told = {metric["name"]: metric["value"] for metric in answer["metrics"]}
    (kernel,) = answer["kernels"]
    assert kernel["share"] == 1.0
    assert kernel["metrics"][TIME] / 1e3 == pytest.approx(told["time_us"], rel=0.25)
    assert told[names.DRAM_READ] == pytest.approx(told["bytes_read"], rel=0.05)


def test_the_diagnosis_of_a_good_softmax_is_the_memory_bus(answer: dict) -> None:
    assert answer["diagnoses"][0]["category"] == "memory bandwidth"
    assert {"metric", "value", "relation", "threshold"} <= set(answer["diagnoses"][0]["evidence"][0])
