"""torch.compile: the strongest baseline PyTorch itself offers, a candidate of a trusted origin.

1. The builder exports the eager source for one case and has Inductor compile it ahead of time into a shared object;
   mode, threads and case are parameter values, so a candidate's table of choices names what is compiled.
2. A runner loads that object like any other artefact: no compiler, no cache and no new process exist there.
3. A GPU is out of the builder's reach: there the process that runs it compiles the cases of the table, and what the
   first such process compiled is given to the later ones.
4. Shapes outside the table run eagerly, as torch.compile does past its own limit of recompilations.
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kernelwright.backends._baseline import (
    Calls,
    closures,
    compiled_function,
    function_of,
    input_tensors,
    missing_entry,
    torch_availability,
)
from kernelwright.backends._tensors import torch_dtype
from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.frozen import digest
from kernelwright.core.ports import Availability, BuildResult
from kernelwright.core.verdict import Status

SUMMARY = "torch.compile, default and max-autotune: the baseline to beat"
EXTENSION = ".py"
TIER = "B"
NOTES = "The eager baseline's file, compiled by Inductor. Only for baselines."

MODES = ("default", "max-autotune")
VALUES = frozenset({"mode", "threads", "case", "jit"})
RUN_IMPORTS = ("torch._dynamo", "torch._inductor.compile_fx")
"""What a runner on a GPU needs besides: 6 s of imports, in each of a dozen processes."""
COMPILED = "compiled"
"""Folder in a runner's own where Inductor leaves what it compiles."""
COMPILERS = ("g++", "clang++")
LOG_LIMIT = 8_000
ELF = b"\x7fELF"
FASTER_BUILD = {
    # One object is built per process: headers precompiled for the next one cost 20 s and serve nobody.
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
    # The probe compiles and loads a test object per instruction set, 10 s; a set torch lacks fails to load anyway.
    "cpp.vec_isa_ok": True,
}


def available() -> Availability:
    """Tell whether torch and a C++ compiler for Inductor are installed."""
    found = torch_availability()
    if found.usable and _compiler() is None:
        remedy = "Install a C++ compiler, for example `apt-get install g++`."
        return Availability(False, f"none of {', '.join(COMPILERS)} on PATH: Inductor needs one", remedy)
    return found


def _compiler() -> str | None:
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def fingerprint() -> str:
    """Return what decides the code besides the source: torch, compiler, and the processor it is compiled for."""
    found = _compiler()
    command = [found or "true", "-dumpfullversion"]
    release = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else [platform.processor()]
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    return f"{torch_availability().detail} {found} {release} {digest(flags)[:16]}"


def check(source: str) -> str | None:
    """Return why the source is refused, or None."""
    return missing_entry(source)


def build(source: str, values: Mapping[str, ParamValue], folder: Path) -> BuildResult:
    """Compile for the case among the values; without one, leave the source to whoever runs it."""
    if stray := values.keys() - VALUES:
        return _failed(f"compiled has no parameter {sorted(stray)[0]!r}; known: {', '.join(sorted(VALUES))}")
    mode = str(values.get("mode", MODES[0]))
    if mode not in MODES:
        return _failed(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    if "case" not in values:
        kept = {"source": source, "mode": mode, "jit": bool(values.get("jit", False))}
        (folder / "kernel.json").write_text(json.dumps(kept))
        return BuildResult(status=Status.ACCEPTED, artefact="kernel.json")
    case = Case.model_validate_json(str(values["case"]))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    try:
        _compile_ahead(source, case, mode, int(values.get("threads", 1)), folder / "kernel.so")
    except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, ImportError) as error:
        return _failed(f"{type(error).__name__}: {error}")
    return BuildResult(status=Status.ACCEPTED, artefact="kernel.so")


def _failed(log: str) -> BuildResult:
    return BuildResult(status=Status.BUILD_FAILED, log=log[:LOG_LIMIT])


def _compile_ahead(source: str, case: Case, mode: str, threads: int, target: Path) -> None:
    """Have Inductor write the shared object of one case."""
    import torch
    from torch._inductor import aot_compile, list_mode_options

    torch.set_num_threads(threads)  # Inductor bakes the number into its loops
    function, scalars = function_of(source), tuple(case.scalars.values())

    class Baseline(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return function(*tensors, *scalars)

    examples = tuple(_example(spec) for spec in case.inputs)
    options: dict[str, Any] = {**FASTER_BUILD, "aot_inductor.output_path": str(target)}
    if mode != MODES[0]:
        options |= {name: value for name, value in list_mode_options(mode).items() if "cudagraph" not in name}
    with torch.no_grad():
        graph = torch.export.export(Baseline(), examples, strict=False).module()
        aot_compile(graph, examples, options=options)


def _example(spec: TensorSpec) -> Any:
    """Return a tensor of the spec's own shape and strides to trace with."""
    import torch

    kind = torch_dtype(spec.dtype)
    storage = torch.zeros(max(1, spec.storage_elements - spec.offset), dtype=kind)
    if storage.is_floating_point():
        storage.normal_()
    return storage.as_strided(spec.shape, spec.element_strides)


def bind(artefact: Path, cases: Sequence[Case], calls: Calls, device: str = "cpu") -> list[Callable[[], Any]]:
    """Return one closure per call, each returning the outputs as tensors."""
    import torch

    content = artefact.read_bytes()
    if content.startswith(ELF):
        loaded = torch._C._aoti.AOTIModelContainerRunnerCpu(str(artefact), 1)
        return [
            partial(_run_ahead, loaded, input_tensors(cases[index], addresses, device))
            for index, addresses in calls
        ]
    kept = json.loads(content)
    if not kept["jit"]:
        return closures(function_of(kept["source"]), cases, calls, device)
    from torch._inductor import config

    config.compile_threads = 1  # a pool of processes takes longer to start than a kernel to compile
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"/proc/self/cwd/{COMPILED}"
    return closures(compiled_function(kept["source"], kept["mode"]), cases, calls, device)


def _run_ahead(loaded: Any, tensors: list[Any]) -> tuple[Any, ...]:
    return tuple(loaded.run(tensors))
