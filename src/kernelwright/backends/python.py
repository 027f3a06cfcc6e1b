"""Plain Python files with kernels of their own: `kernel_fn(...)` that returns tensors, or a KernelBench `ModelNew`.

1. `check` and `delegates` read the syntax tree against an allow-list (`_python_guard`).
2. `build` compiles the C++ sources the file passes through its door and packs them with the file.
3. `bind` imports the file in a runner and calls it under a census of torch's dispatcher (`_python_census`). On a CPU
   its Triton kernels run in the interpreter, for correctness only.
"""

import ast
import base64
import json
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kernelwright.backends._baseline import closures
from kernelwright.backends._python_census import counted, watched_threads
from kernelwright.backends._python_doors import native
from kernelwright.backends._python_guard import CPP_DOOR, ENTRY, MODEL, examine
from kernelwright.backends._python_kernels import jitted, kernels_besides
from kernelwright.backends._python_model import model_calls
from kernelwright.backends._triton_interpret import DECLINED_DTYPE, VARIABLE, declined
from kernelwright.backends._triton_interpret import interpretable as interpretable
from kernelwright.core import plugins
from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case
from kernelwright.core.frozen import digest
from kernelwright.core.ports import Availability, BuildResult
from kernelwright.core.verdict import Status

SUMMARY = "plain Python with kernels of its own (Triton, C++): kernel_fn or KernelBench's ModelNew"
EXTENSION = ".py"
TIER = "B"
NOTES = f"""\
One Python file with `{ENTRY}(inputs..., scalars...)` that returns the outputs as tensors, or `class {MODEL}`. Imports:
torch, torch.nn, triton, triton.language, triton.experimental.gluon, math.
- The work is done by kernels of the file's own: functions under @triton.jit or @gluon.jit, launched as
  `kernel[grid](...)`, or `NAME = {CPP_DOOR}(SOURCE)` at module level, C++ with the C ABI of the cpp backend, called as
  `NAME(x, eps, out)`. torch may only allocate (empty, zeros) and take views; everything else is delegation.
- No state between calls, no try, no getattr, eval, exec or open, no names with two underscores. A case is declined by
  raising NotImplementedError.
- `{MODEL}` is built with the reference's init inputs; its parameters are replaced, by name or by position, with the
  reference's own. Modules of torch.nn may hold parameters, never be called."""

SOURCE_LIMIT = 200_000
RUN_IMPORTS = (
    "torch._dynamo",
    "triton.backends.nvidia.driver",
    "triton.backends.nvidia.compiler",
    "triton.compiler",
)
"""What a runner on a GPU needs besides; the census of torch's dispatcher alone loads 900 modules in 2 s."""
COMPILED = "compiled"
"""Folder, in a runner's own, where Triton leaves what the file's kernels are compiled to on a GPU."""


def available() -> Availability:
    """Tell whether Triton is installed, without importing it."""
    found: Availability = plugins.load("backends", "triton").available()
    return found


def fingerprint() -> str:
    """Return what decides the behaviour besides the source: torch, Triton and the C++ compiler."""
    parts = [plugins.load("backends", name).fingerprint() for name in ("eager", "triton", "cpp")]
    return "\n".join(parts)


def check(source: str) -> str | None:
    """Return why the source is refused, or None."""
    if len(source.encode()) > SOURCE_LIMIT:
        return f"{len(source.encode())} bytes of source; at most {SOURCE_LIMIT} are allowed"
    found = examine(source)
    return found.reason if found and found.status is Status.REFUSED else None


def delegates(source: str) -> str | None:
    """Return why the work is not done by a kernel of the file's own, or None."""
    found = examine(source)
    return found.reason if found and found.status is Status.DELEGATION else None


def interprets(source: str) -> bool:
    """Tell whether a CPU runs the file's kernels under Triton's interpreter."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] == "triton" for name in names)


def doors(source: str) -> dict[str, str]:
    """Return the C++ sources a file passes through its door, by the name each is given."""
    texts, found = {}, {}
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                texts[name] = text
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=door), args=[given])
            ) if door == CPP_DOOR:
                literal = (
                    given.value if isinstance(given, ast.Constant) else texts.get(ast.unparse(given), "")
                )
                found[name] = str(literal)
    return found


def build(source: str, values: Mapping[str, ParamValue], folder: Path) -> BuildResult:
    """Pack the file, its parameters and the C++ it brings, compiled."""
    objects = {}
    cpp = plugins.load("backends", "cpp")
    watched = {name: value for name, value in values.items() if name == cpp.SANITIZED}
    for name, text in doors(source).items():
        if reason := cpp.check(text):
            return BuildResult(status=Status.REFUSED, log=f"{name}: {reason}")
        place = folder / name
        place.mkdir()
        result: BuildResult = cpp.build(text, watched, place)
        if result.artefact is None:
            return result.model_copy(update={"log": f"{name}: {result.log}"})
        objects[name] = base64.b64encode((place / result.artefact).read_bytes()).decode()
    packed = {"source": source, "values": dict(values), "objects": objects}
    (folder / "kernel.json").write_text(json.dumps(packed))
    return BuildResult(status=Status.ACCEPTED, artefact="kernel.json")


def objects(artefact: Path) -> list[bytes]:
    """Return the machine code an artefact carries."""
    packed = json.loads(artefact.read_text())
    return [base64.b64decode(text) for text in packed["objects"].values()]


def bind(
    artefact: Path,
    cases: Sequence[Case],
    calls: Sequence[tuple[int, Mapping[str, int]]],
    device: str = "cpu",
) -> list[Callable[[], Any]]:
    """Import the file and return one closure per call, each under the census."""
    packed = json.loads(artefact.read_text())
    interpreted = device == "cpu" and interprets(packed["source"])
    if interpreted:
        if "triton" in sys.modules:
            raise RuntimeError(f"triton was imported before {VARIABLE} could be set")
        os.environ[VARIABLE] = "1"
    elif device != "cpu":
        os.environ["TRITON_CACHE_DIR"] = f"/proc/self/cwd/{COMPILED}"
    threads = watched_threads()
    module = _loaded(packed["source"], packed["objects"])
    if hasattr(module, ENTRY):
        made = closures(getattr(module, ENTRY), cases, calls, device)
    else:
        made = model_calls(getattr(module, MODEL), packed["values"], cases, calls, device)
    return [
        partial(declined, reason, DECLINED_DTYPE)
        if interpreted and (reason := interpretable(cases[index]))
        else counted(call, threads)
        for (index, _), call in zip(calls, made, strict=True)
    ]


def foreign_kernels(artefact: Path, call: Callable[[], Any]) -> list[str]:
    """Return the kernels a call has the GPU run that are none of the file's own."""
    return kernels_besides(jitted(json.loads(artefact.read_text())["source"]), call)


def _loaded(source: str, objects: Mapping[str, str]) -> types.ModuleType:
    """Execute the file as a module of a real file (jitted functions need one), its doors already open."""
    # Relative: the folders above may be closed to the user this runs as.
    path = Path(f"candidate_{digest(source)[:16]}.py")
    path.write_text(source)
    tree = ast.parse(source)
    tree.body = [
        ast.copy_location(ast.Pass(), node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in objects
        else node
        for node in tree.body
    ]
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module  # where Triton looks up the globals of a kernel
    for name, text in objects.items():
        module.__dict__[name] = native(base64.b64decode(text), name)
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module
