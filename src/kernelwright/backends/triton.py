"""Triton and Gluon: device code and a launch plan, compiled with or without a GPU, interpreted on a CPU.

1. `check` reads the syntax tree: imports, constants, jitted kernels and `plan`, nothing else at module level.
2. `compile_unit` imports the file in the builder's process and compiles one kernel for a named target. It leaves
   the device binary and a JSON beside it that says how to launch it; the launcher needs neither Triton nor the file.
3. Without a GPU, `build` keeps source and parameters, and `bind` interprets the plans in a runner on the CPU, for
   correctness only.
"""

import ast
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

from kernelwright.backends._triton_guard import refusal
from kernelwright.backends._triton_interpret import INTERPRETED_AS as INTERPRETED_AS
from kernelwright.backends._triton_interpret import bind as bind
from kernelwright.backends._triton_interpret import interpret as interpret
from kernelwright.backends._triton_interpret import interpretable as interpretable
from kernelwright.backends._triton_report import (
    amd_parameter_bytes,
    amd_resources,
    nvidia_parameter_bytes,
    nvidia_resources,
)
from kernelwright.backends._triton_source import imported, kernel_named
from kernelwright.backends._triton_timeline import TIMELINE as TIMELINE
from kernelwright.backends._triton_timeline import recording
from kernelwright.core.candidate import ParamValue
from kernelwright.core.errors import BackendUnavailable
from kernelwright.core.frozen import digest
from kernelwright.core.plan import KernelUnit
from kernelwright.core.plan_language import PlanFault, parse_params, parse_plan
from kernelwright.core.ports import Availability, BuildResult
from kernelwright.core.verdict import Status

SUMMARY = "Triton and Gluon kernels with a launch plan; NVIDIA and AMD GPUs, the interpreter on CPUs"
EXTENSION = ".py"
TIER = "A"
BUILD_IMPORTS = (
    "triton.compiler",
    "triton.experimental.gluon._runtime",
    "triton.backends.nvidia.compiler",
    "triton.backends.amd.compiler",
)
"""What every build would import: a second and more, paid once by the parent of builders."""
NOTES = """\
One Python file: imports of triton, triton.language, triton.experimental.gluon and math; literal constants (those a
kernel reads as `NAME = tl.constexpr(value)`); `PARAMS`; functions under @triton.jit or @gluon.jit; `plan`.
- `args` of a launch are the kernel's parameters in order without those in `constants`; every tl.constexpr parameter
  must be in `constants`. An integer argument equal to 1 becomes a constant; a multiple of 16 is known to be one.
- A workspace arrives as a byte pointer: `p.to(tl.pointer_type(tl.float32))`.
- Options beside the launch: num_warps, num_stages, num_ctas, maxnreg, enable_fp_fusion; on AMD also waves_per_eu,
  matrix_instr_nonkdim, kpack.
- Use tensor descriptors (tl.make_tensor_descriptor), never block pointers: they are gone in Triton 3.9.
- fp32 products need input_precision="ieee"; the default rounds them to tf32.
- Works with Triton 3.6 and later. The interpreter serves fp32 and fp16 only and cannot run Gluon."""

SOURCE_LIMIT = 200_000
LOG_LIMIT = 8_000
OPTIONS = frozenset(
    {
        *("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion"),
        *("waves_per_eu", "matrix_instr_nonkdim", "kpack"),
    }
)
POINTEES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp64": "fp64", "int64": "i64", "int32": "i32"}
POINTEES |= {"bool": "i1", "u8": "u8"}
SHARED_LIMITS = {
    **dict.fromkeys(("sm_75",), 64 * 1024),
    **dict.fromkeys(("sm_80", "sm_87"), 163 * 1024),
    **dict.fromkeys(("sm_86", "sm_89", "sm_120"), 99 * 1024),
    **dict.fromkeys(("sm_90", "sm_100", "sm_103"), 227 * 1024),
    **dict.fromkeys(("gfx90a", "gfx942", "gfx1100", "gfx1101", "gfx1200", "gfx1201"), 64 * 1024),
    **dict.fromkeys(("gfx950",), 160 * 1024),
}
"""Bytes of shared memory one block may ask for, by target: the compiler itself does not refuse more."""
# What the compiler raises on bad source besides its own errors: assertions and look-ups deep inside it.
COMPILER_FAULTS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, TypeError, ValueError),
)
MAX_THREADS = 1024
MAX_TENSOR_MEMORY = 512


def available() -> Availability:
    """Tell whether Triton is installed and whether a GPU driver is there to run what it compiles."""
    remedy = "Install it: pip install triton (it comes with the CUDA and ROCm builds of torch on Linux)."
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return Availability(False, "the triton package is not installed", remedy)
    if importlib.util.find_spec("triton") is None:
        return Availability(False, f"triton {version} is registered but cannot be imported", remedy)
    drivers = {"NVIDIA": "/dev/nvidiactl", "AMD": "/dev/kfd", "NVIDIA (WSL)": "/dev/dxg"}
    found = [name for name, node in drivers.items() if Path(node).exists()]
    reach = f"{found[0]} driver present" if found else "no GPU driver: compile and interpreter only"
    return Availability(True, f"triton {version}; {reach}")


def fingerprint() -> str:
    """Return what decides a binary besides source and unit: the compiler's version."""
    return f"triton {metadata.version('triton')}"


def check(source: str) -> str | None:
    """Return why the source is refused, or None."""
    if len(source.encode()) > SOURCE_LIMIT:
        return f"{len(source.encode())} bytes of source; at most {SOURCE_LIMIT} are allowed"
    if TIMELINE in source:
        return f"{TIMELINE} is no option of a plan"
    try:
        parse_plan(source)
        parse_params(source)
        return refusal(ast.parse(source))
    except PlanFault as fault:
        return str(fault)


@dataclass(frozen=True)
class _Binding:
    """How the parameters of a unit map onto the kernel's signature."""

    signature: dict[str, str]
    constants: dict[tuple[int], Any]
    attributes: dict[tuple[int], list[list[object]]]
    folded: list[int]


def compile_unit(
    source: str, unit: KernelUnit, target: str, folder: Path, *, guarded: bool = True
) -> BuildResult:
    """Compile one kernel for a target into `folder`: the device binary and a JSON that says how to launch it."""
    if guarded and (reason := check(source)):
        return BuildResult(status=Status.REFUSED, log=reason)
    name = target.removesuffix("a") if target.startswith("sm_") else target
    if name not in SHARED_LIMITS:
        return _failed(f"unknown target {target!r}; known: {', '.join(SHARED_LIMITS)}")
    if unknown := unit.meta.keys() - OPTIONS - {TIMELINE}:
        return _failed(f"unknown option {sorted(unknown)[0]!r}; known: {', '.join(sorted(OPTIONS))}")
    try:
        from triton.errors import TritonError
    except ImportError as error:
        raise BackendUnavailable("triton", f"the triton package ({error})", "pip install triton") from error
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"candidate_{digest(source)[:16]}.py"
    _write(path, source.encode())
    with _contained(folder) as said:
        try:
            kernel = kernel_named(imported(path), unit.kernel)
            binding = _bind(kernel, unit)
            kept = int(unit.meta.get(TIMELINE, 0))
            records = recording(path, kept, SHARED_LIMITS[name]) if kept else _no_records()
            with records as scopes:
                compiled = _compiled(kernel, binding, unit, name)
        except (TritonError, *COMPILER_FAULTS) as error:
            return _failed(f"{_explained(error, path)}\n{said()}".replace(str(path), "candidate.py"))
        return _artefact(compiled, binding, unit, name, folder, said(), scopes)


def _no_records() -> AbstractContextManager[dict[int, str]]:
    return nullcontext({})


def interprets(source: str) -> bool:  # noqa: ARG001
    """Tell that on a CPU any source of this language runs under an interpreter."""
    return True


def build(
    source: str, values: Mapping[str, ParamValue], folder: Path, *, guarded: bool = True
) -> BuildResult:
    """Keep source and parameters for the interpreter: what a machine without a GPU can judge."""
    if guarded and (reason := check(source)):
        return BuildResult(status=Status.REFUSED, log=reason)
    _write(folder / "kernel.json", json.dumps({"source": source, "values": dict(values)}).encode())
    return BuildResult(status=Status.ACCEPTED, artefact="kernel.json")


def _failed(log: str) -> BuildResult:
    """Return a build failure with a bounded log: head and tail of a long one."""
    text = log.strip()
    if len(text) > LOG_LIMIT:
        half, gone = LOG_LIMIT // 2, len(text) - LOG_LIMIT
        text = f"{text[:half]}\n[... {gone} characters left out ...]\n{text[-half:]}"
    return BuildResult(status=Status.BUILD_FAILED, log=text)


def _write(path: Path, content: bytes) -> None:
    """Put a file in place whole, so that parallel builders never see half of one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


@contextmanager
def _contained(folder: Path) -> Iterator[Callable[[], str]]:
    """Keep Triton's cache, temporary files and chatter inside `folder`; yields a function: what was said."""
    from triton import knobs

    said = StringIO()
    with (
        tempfile.TemporaryDirectory(prefix=".triton-", dir=folder) as scratch,
        knobs.cache.scope(),
        knobs.nvidia.scope(),
    ):
        knobs.cache.dir = scratch
        # ptxas runs with -v anyway; its log has the spills of exactly the binary that is kept.
        knobs.nvidia.dump_ptxas_log = True
        errors = Path(scratch) / "stderr"
        previous, saved = tempfile.tempdir, os.dup(2)
        sys.stderr.flush()
        # MLIR writes its diagnostics, with the candidate's lines, to descriptor 2; it raises only "pass failed".
        with errors.open("w") as sink:
            os.dup2(sink.fileno(), 2)
        tempfile.tempdir = scratch
        try:
            with redirect_stdout(said):
                yield lambda: said.getvalue() + errors.read_text(errors="replace")
        finally:
            tempfile.tempdir = previous
            os.dup2(saved, 2)
            os.close(saved)


def _bind(kernel: Any, unit: KernelUnit) -> _Binding:
    """Give each parameter of the kernel its type or its constant, as Triton's own launcher would."""
    if not hasattr(kernel, "params"):
        raise RuntimeError("TRITON_INTERPRET is set in this process: nothing can be compiled in it")
    if stray := unit.constants.keys() - set(kernel.arg_names):
        raise LookupError(f"constant {sorted(stray)[0]!r} is no parameter of kernel {unit.kernel!r}")
    runtime = [item for item in kernel.params if item.name not in unit.constants]
    if missing := [item.name for item in runtime if item.is_constexpr]:
        raise LookupError(f"kernel {unit.kernel!r} needs a constant {missing[0]!r}; the plan gives none")
    if len(runtime) != len(unit.parameters):
        names = ", ".join(item.name for item in runtime)
        passed = f"the plan passes {len(unit.parameters)}"
        raise TypeError(f"kernel {unit.kernel!r} takes {len(runtime)} arguments ({names}); {passed}")
    signature = dict.fromkeys(kernel.arg_names, "constexpr")
    constants: dict[tuple[int], Any] = {
        (kernel.arg_names.index(key),): value for key, value in unit.constants.items()
    }
    attributes: dict[tuple[int], list[list[object]]] = {}
    folded = []
    for position, (item, given) in enumerate(zip(runtime, unit.parameters, strict=True)):
        if given.is_one and not item.do_not_specialize:
            constants[(item.num,)] = 1
            folded.append(position)
            continue
        signature[item.name] = _type_name(given.type)
        if given.divisible_by_16 and not (item.do_not_specialize or item.do_not_specialize_on_alignment):
            attributes[(item.num,)] = [["tt.divisibility", 16]]
    return _Binding(signature, constants, attributes, folded)


def _type_name(name: str) -> str:
    """Return Triton's spelling of a parameter's type."""
    if name == "tensor_map":
        raise TypeError(
            "tensor maps cannot be passed to Triton kernels; call tl.make_tensor_descriptor in the kernel"
        )
    if not name.startswith("*"):
        return name
    if name[1:] not in POINTEES:
        raise TypeError(f"Triton has no pointer type for {name[1:]!r}; known: {', '.join(POINTEES)}")
    return f"*{POINTEES[name[1:]]}"


def _compiled(kernel: Any, binding: _Binding, unit: KernelUnit, target: str) -> Any:
    """Run the compiler; the result is Triton's own object."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile, make_backend
    from triton.experimental.gluon._runtime import GluonASTSource

    if target.startswith("sm_"):
        device = GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    else:
        device = GPUTarget("hip", target, 64 if target.startswith("gfx9") else 32)
    known = vars(make_backend(device).parse_options({}))
    options = {name: value for name, value in unit.meta.items() if name != TIMELINE}
    if stray := options.keys() - known.keys():
        raise ValueError(f"option {sorted(stray)[0]!r} does not exist for {target}")
    build = GluonASTSource if kernel.is_gluon() else ASTSource
    source = build(kernel, binding.signature, binding.constants, binding.attributes)
    return compile(source, target=device, options=options)


def _explained(error: BaseException, path: Path) -> str:
    """Return the compiler's words with the line numbers of the candidate's file, outermost call first."""
    lines = path.read_text().splitlines()
    parts = []
    seen: BaseException | None = error
    while seen is not None:
        node, excerpt = getattr(seen, "node", None), getattr(seen, "src", None)
        if node is not None and isinstance(excerpt, str) and hasattr(node, "lineno"):
            # Triton counts lines from the function's `def`.
            number = _first_line(excerpt, lines) + node.lineno - 1
            text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
            words = getattr(seen, "error_message", None) or ""
            parts.append(f"line {number}, column {node.col_offset + 1}: {text}\n  {words}")
        else:
            where = [frame for frame in _frames(seen) if frame[0] == str(path)]
            prefix = f"line {where[-1][1]}: " if where else ""
            parts.append(f"{prefix}{type(seen).__name__}: {seen}")
        seen = seen.__cause__
    return "\n".join(part.rstrip() for part in parts)


def _first_line(function: str, lines: list[str]) -> int:
    """Return the line in the file on which a function's own source starts."""
    head = function.splitlines()[0]
    return next((number for number, line in enumerate(lines, 1) if line.strip() == head.strip()), 1)


def _frames(error: BaseException) -> list[tuple[str, int]]:
    frames, step = [], error.__traceback__
    while step is not None:
        frames.append((step.tb_frame.f_code.co_filename, step.tb_lineno))
        step = step.tb_next
    return frames


def _artefact(
    compiled: Any,
    binding: _Binding,
    unit: KernelUnit,
    target: str,
    folder: Path,
    words: str,
    scopes: Mapping[int, str],
) -> BuildResult:
    """Write binary and launch facts, or refuse what the target cannot hold."""
    is_nvidia = target.startswith("sm_")
    extension = "cubin" if is_nvidia else "hsaco"
    meta = compiled.metadata
    text = compiled.asm["ptx" if is_nvidia else "amdgcn"]
    sizes = nvidia_parameter_bytes(text) if is_nvidia else amd_parameter_bytes(text)
    resources = nvidia_resources(text, words) if is_nvidia else amd_resources(text)
    runtime = len(unit.parameters) - len(binding.folded)
    launch = {
        "threads": meta.num_warps * meta.warp_size,
        "shared_bytes": meta.shared,
        "num_warps": meta.num_warps,
        "num_ctas": meta.num_ctas,
        "global_scratch_size": getattr(meta, "global_scratch_size", 0) or 0,
        "global_scratch_align": getattr(meta, "global_scratch_align", 1) or 1,
        "profile_scratch_size": getattr(meta, "profile_scratch_size", 0) or 0,
        "profile_scratch_align": getattr(meta, "profile_scratch_align", 1) or 1,
        "parameters": runtime,
        "trailing_pointers": len(sizes) - runtime,
    }
    resources = resources | launch
    if problem := _too_big(launch, getattr(meta, "tmem_size", 0) or 0, target):
        return BuildResult(
            status=Status.TOO_BIG, log=f"kernel {unit.kernel!r}: {problem}", resources=resources
        )
    stem = unit.hash[:16]
    facts = launch | {
        "entry": meta.name,
        "target": target,
        "triton": metadata.version("triton"),
        "folded": binding.folded,
        "parameter_bytes": sizes,
        "resources": resources,
    }
    if scopes:
        facts["scopes"] = {str(number): name for number, name in scopes.items()}
    _write(folder / f"{stem}.{extension}", compiled.asm[extension])
    _write(folder / f"{stem}.json", json.dumps(facts, indent=1, sort_keys=True).encode())
    return BuildResult(status=Status.ACCEPTED, artefact=f"{stem}.{extension}", resources=resources)


def _too_big(launch: Mapping[str, int], tensor_memory: int, target: str) -> str | None:
    """Return what the kernel asks for beyond what a block of the target may have."""
    limits = {
        "shared_bytes": (SHARED_LIMITS[target], "bytes of shared memory"),
        "threads": (MAX_THREADS, "threads in a block"),
    }
    for name, (limit, words) in limits.items():
        if launch[name] > limit:
            return f"asks for {launch[name]} {words}; {target} has {limit}"
    if tensor_memory > MAX_TENSOR_MEMORY:
        return f"asks for {tensor_memory} columns of tensor memory; {target} has {MAX_TENSOR_MEMORY}"
    return None
