"""A folder to start from: a function's reference, a candidate that one command judges, and what it must keep to.

Existing C++ or CUDA source comes in as it is: only its marked regions are meant to change, and they go back the same
way, with every byte outside as it was.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.device import DeviceKind
from kernelwright.core.errors import BadInput
from kernelwright.core.marked import put_back, regions
from kernelwright.core.messages.function import PYTHON_ON_GPU, FunctionSketched, SketchFunction
from kernelwright.engine.seeds import SOURCES, read_source
from kernelwright.engine.service import Show
from kernelwright.engine.tuning import TuneWish, ask_function
from kernelwright.hardware.detect import devices, usable_cores
from kernelwright.store.disk import disk_errors, make_folder

REFERENCE, README = "reference.py", "README.md"
LANGUAGES = ("cpp", "cuda", "triton", "python")


@dataclass(frozen=True)
class Started:
    """A folder that was written."""

    folder: Path
    files: tuple[str, ...]
    command: str
    """What judges the candidate, in the folder."""
    note: str = ""
    """What judging it on this machine cannot do."""
    todo: str = ""
    """What is to be filled in before it can pass; empty if it is complete."""
    regions: tuple[str, ...] = ()
    """Marked regions of the candidate."""


@dataclass(frozen=True)
class Beginning:
    """What a folder is to begin with."""

    into: Path
    backend: str
    source: Path | None = None
    """Existing source."""
    op: str | None = None
    """The op it implements, if no function is its reference."""


def begin(beginning: Beginning, wish: TuneWish | None, show: Show) -> Started:
    """Write a folder for a function, or for an op with existing source."""
    into = beginning.into
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise BadInput("--into", f"{str(into)!r} is there already and is not empty", "Name another folder.")
    given = read_source(beginning.source) if beginning.source else b""
    suffix = (
        beginning.source.suffix if beginning.source else plugins.load("backends", beginning.backend).EXTENSION
    )
    sketched = _sketched(wish, show) if wish else None
    todo, files = "", dict[str, bytes]()
    if beginning.source is not None:
        text, marked = given, tuple(one.name for one in regions(given.decode(), str(beginning.source)))
    else:
        assert sketched is not None, "a function or a file is given"
        source, todo = _source(sketched, beginning.backend)
        text, marked = source.encode(), ()
    candidate, baseline = f"candidate{suffix}", f"baseline{suffix}"
    files[candidate] = text
    if not todo:
        files[baseline] = text
    note = "" if todo else _note(SOURCES.get(suffix, beginning.backend), sketched)
    command = _command(candidate, beginning.op, None if todo or note else baseline)
    command += ["--profile", "quick"] if note else []
    if sketched:
        files[REFERENCE] = sketched.reference.encode()
    started = Started(into, (*sorted(files), README), shlex.join(command), note, todo, marked)
    files[README] = _readme(started, beginning, wish, sketched).encode()
    with disk_errors(into):
        make_folder(into)
        for name, content in files.items():
            (into / name).write_bytes(content)
    return started


def _sketched(wish: TuneWish, show: Show) -> FunctionSketched:
    show(f"looking at {wish.spec}")
    request = SketchFunction(spec=wish.spec, inputs=wish.inputs)
    return ask_function(request, FunctionSketched, usable_cores(), show)


def _has_gpu() -> bool:
    return any(one.kind is not DeviceKind.CPU for one in devices())


def _note(backend: str, sketched: FunctionSketched | None) -> str:
    """Return what judging a language here cannot do: kernels of a GPU are checked by an interpreter, or not at all."""
    if backend not in ("triton", "cuda") or _has_gpu():
        return ""
    if backend == "cuda":
        return "there is no GPU here, and CUDA is judged on one"
    if sketched is not None and sketched.not_interpreted:
        return (
            "there is no GPU here, and "
            f"{sketched.not_interpreted}; judge it on a GPU, or begin with smaller tensors (--input)"
        )
    return "there is no GPU here: Triton's interpreter checks it, and nothing is timed"


def _source(sketched: FunctionSketched, backend: str) -> tuple[str, str]:
    """Return the candidate in a language, and what is to be filled in."""
    written = PYTHON_ON_GPU if backend == "python" and _has_gpu() else backend
    if written in sketched.sources:
        return sketched.sources[written], sketched.notes.get(written, "")
    given, made = ([words.split(":")[0] for words in group] for group in (sketched.inputs, sketched.outputs))
    todo = (
        f"{sketched.notes[written]}: fill in kernels that write {'; '.join(sketched.outputs)} from "
        f"{'; '.join(sketched.inputs)}"
    )
    buffers = [*(f"input:{place}" for place in range(len(given))), *made]
    text = TEMPLATES[backend].format(
        todo=todo.replace("\\", "/").replace('"', "'"),
        buffers=", ".join(buffers),
        given=", ".join(given),
        made="".join(f"    {_allocated(words, given[0])}\n" for words in sketched.outputs),
        first=given[0],
        outs=", ".join(made),
        out=made[0],
    )
    return text, todo


def _allocated(words: str, like: str) -> str:
    """Return the line that allocates an output, from its name, shape and type in words."""
    name, rest = words.split(": ")
    shape, kind = rest.rsplit(" ", 1)
    sizes = "" if " " in shape else "".join(f"{extent}, " for extent in shape.split("x"))
    known = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    return f"{name} = torch.empty(({sizes.rstrip()}), dtype=torch.{known[kind]}, device={like}.device)"


def _command(candidate: str, op: str | None, baseline: str | None) -> list[str]:
    problem = ["--op", op] if op else ["--reference", REFERENCE]
    against = ["--against", baseline] if baseline else []
    return ["kernelwright", "judge", candidate, *problem, *against]


def put_into(original: Path, candidate: Path) -> bool:
    """Write the marked regions of a candidate into the file they came from; tell whether that changed it."""
    before, proposal = read_source(original), read_source(candidate)
    after = put_back(before.decode(), proposal.decode(), str(candidate)).encode()
    if after == before:
        return False
    with disk_errors(original):
        original.write_bytes(after)
    return True


def _readme(
    started: Started, beginning: Beginning, wish: TuneWish | None, sketched: FunctionSketched | None
) -> str:
    candidate = next(name for name in started.files if name.startswith("candidate"))
    title = wish.spec if wish else beginning.op
    parts = [f"# {title}", "", *_what_to_do(started, beginning, candidate), "", "```sh"]
    parts += [f"{_quick(started.command)}   # seconds: is it right at all?"]
    parts += [] if started.note else [f"{started.command}   # the verdict, times, a comparison"]
    parts += ["```", "", "Exit code 0: passed. 1: rejected, the last line says at which stage and why.", ""]
    if sketched:
        parts += ["## The contract", "", *_contract(sketched), ""]
        parts += _lines("Inputs", sketched.inputs) + _lines("Outputs, passed in", sketched.outputs)
    notes = str(plugins.load("backends", SOURCES.get(Path(candidate).suffix, beginning.backend)).NOTES)
    parts += ["## The language", "", "```text", notes.strip(), "```", ""]
    parts += ["## The error budget", "", ERROR_BUDGET, ""]
    return "\n".join(parts)


def _quick(command: str) -> str:
    """Return a command that judges as one that only looks whether the candidate is right."""
    return command if "--profile" in command else command.split(" --against")[0] + " --profile quick"


def _what_to_do(started: Started, beginning: Beginning, candidate: str) -> list[str]:
    if started.todo:
        return [f"`{candidate}` is a frame: {started.todo}. Then:"]
    if started.regions:
        names = ", ".join(f"`{name}`" for name in started.regions)
        back = shlex.join(["kernelwright", "new", "--from", str(beginning.source), "--back", candidate])
        return [
            f"Change `{candidate}` between the marks of {names} and nowhere else. `{back}` puts the regions back into "
            "the file they came from; bytes outside them stay, or it refuses."
        ]
    words = f"`{candidate}` is correct and plain. Make it faster; `baseline` is what it started as."
    note = f"{started.note[:1].upper()}{started.note[1:]}."
    return [words, "", note] if started.note else [words]


def _contract(sketched: FunctionSketched) -> list[str]:
    return [
        f"`{REFERENCE}` is {sketched.reference_note}. Tensors are dense; arguments that are no tensors are fixed in "
        "it. It is judged at these sizes and at no others, on inputs the judge draws."
    ]


def _lines(title: str, items: Sequence[str]) -> list[str]:
    return [f"{title}:", "", *(f"- `{item}`" for item in items), ""]


ERROR_BUDGET = (
    "The reference is asked in float64. The rms error of the candidate may be 1.5 times that of the framework in the "
    "inputs' own type, the largest single error 4 times, each with about one rounding on top. NaN and infinities must "
    "be where float64 has them, and errors must not lean to one side."
)
TEMPLATES = {
    "triton": """import triton
import triton.language as tl

# Buffers of a launch, by name: {buffers}


@triton.jit
def kernel(source, target, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    tl.store(target + place, tl.load(source + place, mask=inside), mask=inside)


def plan(case, params, device):
    # Return {{"launches": [{{"kernel": "kernel", "grid": (...), "args": ["input:0", "out0", ...], ...}}]}}
    return {{"unsupported": "{todo}"}}
""",
    "cuda": """#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    # Buffers of a launch, by name: {buffers}
    # Return {{"launches": [{{"kernel": "fill", "grid": (...,), "block": (256,), "args": ["input:0", "out0", ...]}}]}}
    return {{"unsupported": "{todo}"}}
*/

extern "C" __global__ void fill(const float* source, float* target, int count) {{
    const int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place < count) target[place] = source[place];
}}
""",
    "python": """import torch
import triton
import triton.language as tl

TODO = "{todo}"


@triton.jit
def kernel(source, target, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    tl.store(target + place, tl.load(source + place, mask=inside), mask=inside)


def kernel_fn({given}):
    # torch allocates and takes views; only kernels of this file may compute.
    if TODO:
        raise RuntimeError(TODO)
{made}    kernel[(triton.cdiv({out}.numel(), 1024),)]({first}, {out}, {out}.numel(), BLOCK=1024)
    return {outs}
""",
}
