"""A call as steps, ready to run: kernels behind their guards, the text of what lies between them.

Nothing is captured or compiled for that: the steps were written when the call was tuned. Where a guard does not hold,
the answer is its name, and the caller runs the original function from the beginning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelwright.core.messages.model import Winner
from kernelwright.core.ports import Match, View
from kernelwright.core.tuned import KernelStep, LayoutStep, Program, TextStep
from kernelwright.model.graph import Region, loaded_text
from kernelwright.model.launching import Kernel, check, open_winner
from kernelwright.model.regraph import laid_out
from kernelwright.model.spliced import SplicedKernel
from kernelwright.model.tally import Tally
from kernelwright.model.winner_files import winners_of
from kernelwright.ops._draw import torch_dtype

Run = Callable[..., Any]
"""Takes the tensors of a call; answers what the function returns, or the name of what does not hold."""


@dataclass(frozen=True, eq=False)
class _Given:
    """Stands for a value of the captured graph: the guards ask a node for its tensor, and for nothing else."""

    meta: dict[str, torch.Tensor]


def spliced(
    step: KernelStep, winner: Winner, kernel: Kernel, device: torch.device, tally: Tally
) -> SplicedKernel:
    """Return a winner behind the guards of a step."""
    nodes = []
    for spec in step.given:
        kind = torch_dtype(spec.dtype)
        nodes.append(
            _Given({"val": torch.empty_strided(spec.shape, spec.element_strides, dtype=kind, device=device)})
        )
    views = {one.name: View(nodes[one.place], one.steps) for one in step.made}
    outputs = tuple(View(None, steps) for steps in step.returned)
    # Without nodes of its own: what runs where a guard does not hold is the whole function, not a region's text.
    region = Region((), tuple(nodes), ())
    made = SplicedKernel(winner.case, kernel, (region, Match(winner.case, views, outputs)), tally)
    made.given = []  # the memory that showed how the inputs lie
    return made


def loaded(program: Program, folder: Path, device: torch.device, tally: Tally) -> Run:
    """Return a program ready to run on a device, its kernels loaded and checked."""
    winners = winners_of(folder) if any(isinstance(step, KernelStep) for step in program.steps) else ()
    kernels: dict[int, Kernel] = {}
    calls: list[Callable[..., Any]] = []
    for step in program.steps:
        if isinstance(step, KernelStep):
            winner = winners[step.entry]
            if step.entry not in kernels:
                check(winner)
                kernels[step.entry] = open_winner(winner, device)
            calls.append(spliced(step, winner, kernels[step.entry], device, tally).answer)
        else:
            calls.append(loaded_text(step.source) if isinstance(step, TextStep) else laid_out)
    return written_out(program, calls)


def written_out(program: Program, calls: Sequence[Callable[..., Any]]) -> Run:
    """Return the steps as one function, each call spelled out: a loop over them would cost more than the guards."""
    lines = []
    for number, step in enumerate(program.steps):
        given = "".join(f"v{place}, " for place in step.inputs)
        answers = "".join(f"v{place}, " for place in step.outputs)
        if isinstance(step, LayoutStep):
            lines.append(f"v{step.outputs[0]} = call{number}(v{step.inputs[0]}, {step.strides!r})")
        elif isinstance(step, TextStep):
            lines.append(f"{answers}= call{number}({given})")
        else:
            lines += [
                f"answer = call{number}(({given}))",
                "if answer.__class__ is str: return answer",
                f"{answers}= answer",
            ]
    values = "".join(f"v{place}, " for place in program.outputs)
    ends = {"tensor": f"v{program.outputs[0]}", "tuple": f"({values})", "list": f"[{values}]"}
    body = "\n".join(f"    {line}" for line in (*lines, f"return {ends[program.form]}"))
    given = ", ".join(f"v{place}" for place in range(program.tensors))
    names: dict[str, Any] = {f"call{number}": call for number, call in enumerate(calls)}
    exec(compile(f"def run({given}):\n{body}\n", "<tuned function>", "exec"), names)
    run: Run = names["run"]
    return run
