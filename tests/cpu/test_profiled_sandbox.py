"""A profiled launcher is shut in before it reads anything of a candidate, and says how far that went."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.core.case import DType
from kernelwright.core.messages.profiler import ORDER, SANDBOX, Steady
from kernelwright.core.plan import LaunchPlan
from kernelwright.ops import rmsnorm
from kernelwright.worker.seccomp import ARCHITECTURES

LAYERS = """
import platform, sys
from pathlib import Path
from kernelwright.worker.sandbox import shut_in_profiled

print(shut_in_profiled(watched=sys.argv[1] == "watched"))
words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(words["NoNewPrivs"].strip(), words["Seccomp"].strip(), platform.machine())
"""


def in_a_process(*words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LAYERS, *words],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    return done.stdout.splitlines()


def test_a_launcher_alone_has_the_layers_it_names() -> None:
    reached, facts = in_a_process("alone")
    privileges, filtered, machine = facts.split()
    assert (reached.split("+")[-1], privileges) == ("limits", "1")
    assert ("seccomp" in reached, filtered) == (
        machine in ARCHITECTURES,
        "2" if machine in ARCHITECTURES else "0",
    )


def test_a_launcher_under_a_profiler_has_limits_only() -> None:
    reached, facts = in_a_process("watched")
    assert (reached, facts.split()[:2]) == ("limits", ["1", "0"])


@pytest.mark.parametrize("tracer", ["torch", "inside", "outside"])
def test_the_layers_are_written_down_before_anything_else_happens(tracer: str, tmp_path: Path) -> None:
    case = rmsnorm.case({"rows": 4, "cols": 8}, DType.FP32)
    order = Steady.model_validate(
        # A device nobody has: what comes after the layers fails here, as it would on a broken one.
        {"case": case, "plan": LaunchPlan(launches=()), "kernels": (), "device": 4096, "tracer": tracer}
    )
    (tmp_path / ORDER).write_text(order.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright.worker.profiled", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode != 0
    assert (tmp_path / SANDBOX).read_text().split("+")[-1] == "limits"
