"""Numbers in Triton's interpreter: loop variables and floats are tensors there, as they are to the compiler."""

import json
import os
import subprocess
import sys
import textwrap

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def count(out, rows, eps, STEP: tl.constexpr):
    place = 0
    for turn in range(-7, rows, 4):
        tl.store(out + place, (turn // 2).to(tl.float32))
        place += 1
    for turn in tl.range(
        rows.to(tl.int64), step=STEP
    ):
        tl.static_assert(turn.dtype == tl.int64)
        tl.store(out + place, turn.to(tl.float32) + 100)
        place += 1
    for turn in tl.static_range(2):
        tl.store(out + place, 200 + turn)
        place += 1
    tl.store(out + place, (eps.to(tl.float32) == eps).to(tl.float32))
    tl.store(out + place + 1, eps)


def plan(case, params, device):
    return {
        "launches": [
            {"kernel": "count", "grid": (1,), "args": ["out", 6, 0.1], "constants": {"STEP": params.step}}
        ]
    }
"""
SCRIPT = """
import json, sys, torch
from kernelwright.backends import triton as backend
from kernelwright.core.case import DType
from kernelwright.core.plan_language import parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.ops import softmax

source = sys.stdin.read()
case = softmax.case({"rows": 1, "cols": 16}, DType.FP32)
tensors = {name: torch.full((1, 16), 0.5) for name in ("x", "out")}
plan = run_plan(parse_plan(source), case, {"step": 4}, backend.INTERPRETED_AS)
backend.interpret(source, plan, case, tensors)
print(json.dumps(tensors["out"].flatten().tolist()))
"""


def interpreted(source: str) -> subprocess.CompletedProcess[str]:
    """Carry out a plan in a process of its own: the interpreter is chosen when triton is imported."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        input=source,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        text=True,
        capture_output=True,
        check=False,
    )


def test_loops_count_in_tensors_that_divide_as_compiled_ones_do() -> None:
    done = interpreted(KERNEL)
    assert done.returncode == 0, done.stderr
    # -7 // 2 and -3 // 2 are cut towards zero, as on a GPU; Python would round them down to -4 and -2.
    counted = [-3.0, -1.0, 0.0, 2.0, 100.0, 104.0, 200.0, 201.0]
    tenth_in_fp32 = 0.10000000149011612
    assert json.loads(done.stdout) == [*counted, 1.0, tenth_in_fp32, *[0.5] * 6]


def test_a_mistake_in_a_kernel_is_told_with_the_line_it_has_in_the_file() -> None:
    source = KERNEL.replace("(turn // 2)", "(turn // 2).no_such_method()")
    line = 1 + next(n for n, text in enumerate(source.splitlines()) if "no_such_method" in text)
    done = interpreted(source)
    assert (done.returncode, f"line {line}, in count" in done.stderr) == (1, True), done.stderr
