"""CUDA C++: device code and a launch plan, compiled by NVRTC straight to a cubin, with or without a GPU.

1. `check` reads the text: the plan, at least one kernel, headers of an allow-list.
2. `compile_unit` compiles the file for one kernel and one target (NVRTC, or nvcc and ptxas) and compares the
   kernel's parameters with what the plan passes. It leaves the cubin and a JSON beside it that says how to launch
   it; the launcher needs neither the compiler nor the file.
"""

import ast
import ctypes.util
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from kernelwright.backends._cuda_compile import (
    BuildFault,
    disassembled,
    header_folders,
    nvrtc_version,
    with_nvcc,
    with_nvrtc,
)
from kernelwright.backends._cuda_report import (
    parameter_fault,
    ptx_instructions,
    resources,
    sass_instructions,
)
from kernelwright.core.candidate import ParamValue
from kernelwright.core.plan import KernelUnit
from kernelwright.core.plan_language import OPENING, PlanFault, parse_params, parse_plan, python_part
from kernelwright.core.ports import Availability, BuildResult
from kernelwright.core.verdict import Status

SUMMARY = "CUDA C++ kernels with a launch plan, through NVRTC; NVIDIA GPUs"
EXTENSION = ".cu"
TIER = "A"
BUILD_IMPORTS = ("cuda.bindings.nvrtc",)
"""What every build would import, paid once by the parent of builders."""
NOTES = """\
One file of device code: `extern "C" __global__` kernels; `PARAMS` and `plan` in a block comment /*kernelwright */.
- `constants` of a launch become macros behind the included headers. KW_KERNEL_<name> is defined for the kernel
  being built: guard kernels with it (#ifdef) to leave them out of each other's builds. Every launch gives `block`.
- `args` are the kernel's parameters in order: buffers as pointers, ints as int, ("i64", n) as long long, floats as
  float, booleans as bool, tensor maps as `const __grid_constant__ kw_tensor_map`; all checked against the code.
- #include "kernelwright.cuh" names the hardware's instructions: packs of 16 bytes, reductions, cp.async, mma.sync,
  mbarriers, TMA, wgmma, setmaxnreg. sm_90 is built as sm_90a; guard its code with KW_HAS_TMA or KW_HAS_WGMMA.
- Shared memory above 48 kB must be dynamic: `shared_bytes` in the plan, kw_shared in the code.
- No host headers: <cuda/std/cstdint>, not <cstdint>; no <cuda.h>. Options of a launch: maxrregcount, fast_math.
- `NVCC = True` beside PARAMS builds with nvcc instead of NVRTC, several times slower."""

SOURCE_LIMIT = 256 * 1024
LOG_LIMIT = 8_000
STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of static shared memory a block may have on every target; NVRTC 13.0 itself does not refuse more."""
OPTIONS = frozenset(("maxrregcount", "fast_math"))
NAMED_HEADERS = (
    *("kernelwright.cuh", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h", "cooperative_groups.h"),
    *("cuda/std/*", "cuda/ptx", "cuda/barrier", "cuda/pipeline", "cuda/atomic"),
)
"""What a refusal names; `HEADERS` is the whole list."""
HEADERS = re.compile(
    r"kernelwright\.cuh|cuda_(fp16|bf16|fp8|fp6|fp4|pipeline|awbarrier)\.h|mma\.h|(math_constants|vector_types)\.h"
    r"|cooperative_groups\.h|cooperative_groups/\w+\.h|cuda/std/\w+|cuda/(ptx|barrier|pipeline|atomic)"
)
DIRECTIVE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(include\w*|import|embed)\b[ \t]*(.*)$", re.MULTILINE)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
KERNEL = re.compile(r'extern\s*"C"\s*__global__')
HOST_LAUNCH = re.compile(r"<<<[^;{}]*>>>\s*\(")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
CHATTER = re.compile(
    r"bytes (gmem|stack frame)|Compiling entry|Function properties|Used \d+ reg|Compile time"
)


def available() -> Availability:
    """Tell whether NVRTC or nvcc is installed and whether a driver is there to run what they compile."""
    remedy = "Install it: pip install 'kernelwright[cuda]', or put nvcc of a CUDA toolkit on PATH."
    nvrtc, nvcc = nvrtc_version(), shutil.which("nvcc")
    if nvrtc is None and nvcc is None:
        return Availability(False, "neither cuda-bindings (for NVRTC) nor nvcc is installed", remedy)
    if nvrtc is not None and not header_folders():
        remedy = "Install them: pip install nvidia-cuda-runtime nvidia-cuda-cccl, of NVRTC's own version."
        return Availability(False, f"NVRTC {nvrtc} is installed but the CUDA headers are not", remedy)
    reach = "driver present" if ctypes.util.find_library("cuda") else "no NVIDIA driver: compile only"
    return Availability(True, f"{f'NVRTC {nvrtc}' if nvrtc else f'nvcc at {nvcc}'}; {reach}")


def fingerprint() -> str:
    """Return what decides a cubin besides source and unit: compiler, version and our header."""
    header = (Path(__file__).parent / "include" / "kernelwright.cuh").read_text()
    return f"nvrtc {nvrtc_version()} nvcc {shutil.which('nvcc')}\n{header}"


def check(source: str) -> str | None:
    """Return why the source is refused, or None."""
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        return "the source cannot be encoded as UTF-8"
    if size > SOURCE_LIMIT:
        return f"{size} bytes of source; at most {SOURCE_LIMIT} are allowed"
    if "\0" in source:
        return "the source holds a NUL character"
    if OPENING not in source:
        return f"no block comment {OPENING} ... */ with PARAMS and plan"
    try:
        parse_plan(source)
        parse_params(source)
    except PlanFault as fault:
        return str(fault)
    code = _without_comments(source)
    if not KERNEL.search(code):
        return 'no kernel: at least one `extern "C" __global__` function is needed'
    if match := HOST_LAUNCH.search(code):
        return f"line {_line(code, match)}: device code only: launches belong in plan, not in <<< >>>"
    # A comment can hide a directive from the one reading, a string from the other: both must be clean.
    return _forbidden_include(source) or _forbidden_include(code)


def _without_comments(source: str) -> str:
    """Return the source with its comments blanked, line numbers kept."""

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        return text if text.startswith('"') else " " + "\n" * text.count("\n")

    return COMMENT_OR_STRING.sub(blank, source)


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def _forbidden_include(text: str) -> str | None:
    """Name the first directive that reaches beyond the device headers; a continued line is one line."""
    joined = re.sub(r"\\[ \t]*\r?\n", "", text)
    for match in DIRECTIVE.finditer(joined):
        named = re.match(r'<([^>]+)>|"([^"]+)"', match[2])
        header = (named[1] or named[2]).strip() if named else match[2].strip()
        if match[1] != "include" or not named or not HEADERS.fullmatch(header):
            where = f"line {_line(joined, match)}: #{match[1]} of {header!r} is not allowed"
            return f"{where}; device headers only: {', '.join(NAMED_HEADERS)}"
    return None


def compile_unit(
    source: str, unit: KernelUnit, target: str, folder: Path, *, guarded: bool = True
) -> BuildResult:
    """Compile one kernel for a target into `folder`: the cubin and a JSON that says how to launch it."""
    if guarded and (reason := check(source)):
        return BuildResult(status=Status.REFUSED, log=reason)
    try:
        compiler = with_nvcc if _wants_nvcc(source) or nvrtc_version() is None else with_nvrtc
        compiled = compiler(_with_constants(source, unit), target, _flags(unit))
    except BuildFault as fault:
        return BuildResult(status=fault.status, log=_bounded(str(fault)))
    types = tuple(item.type for item in unit.parameters)
    if problem := parameter_fault(compiled.ptx, unit.kernel, types):
        return BuildResult(status=Status.BUILD_FAILED, log=problem)
    needs = resources(compiled.ptx, compiled.log, unit.kernel)
    if needs["shared_static"] > STATIC_SHARED_LIMIT:
        asked = f"{needs['shared_static']} bytes of static shared memory; {STATIC_SHARED_LIMIT} is the limit"
        log = f"kernel {unit.kernel!r} has {asked}. Make it dynamic: kw_shared and `shared_bytes`."
        return BuildResult(status=Status.TOO_BIG, log=log, resources=needs)
    stem = unit.hash[:16]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{stem}.cubin", compiled.cubin)
    sass = disassembled(folder / f"{stem}.cubin")
    counts = sass_instructions(sass, unit.kernel) if sass else ptx_instructions(compiled.ptx, unit.kernel)
    facts: dict[str, object] = {
        **needs,
        "entry": unit.kernel,
        "target": target,
        "compiler": compiled.compiler,
        "parameters": len(unit.parameters),
        "trailing_pointers": 0,
        "folded": [],
        "instructions": counts,
        "instructions_from": "sass" if sass else "ptx",
    }
    _write(folder / f"{stem}.json", json.dumps(facts, indent=1, sort_keys=True).encode())
    log, artefact = _bounded(_warnings(compiled.log)), f"{stem}.cubin"
    return BuildResult(status=Status.ACCEPTED, log=log, artefact=artefact, resources=needs | counts)


def build(
    source: str,  # noqa: ARG001
    values: Mapping[str, ParamValue],  # noqa: ARG001
    folder: Path,  # noqa: ARG001
    *,
    guarded: bool = True,  # noqa: ARG001
) -> BuildResult:
    """Say that CUDA C++ cannot run on a CPU: this is what a machine without a GPU is answered."""
    return BuildResult(status=Status.UNSUPPORTED, log="CUDA C++ needs an NVIDIA GPU to run on; no GPU here")


def _flags(unit: KernelUnit) -> list[str]:
    """Return the options both compilers take, the author's own among them."""
    if unknown := unit.meta.keys() - OPTIONS:
        raise BuildFault(f"unknown option {sorted(unknown)[0]!r}; known: {', '.join(sorted(OPTIONS))}")
    flags = ["-std=c++17", "-lineinfo"]
    if "maxrregcount" in unit.meta:
        flags.append(f"--maxrregcount={int(unit.meta['maxrregcount'])}")
    if unit.meta.get("fast_math"):
        flags.append("--use_fast_math")
    return flags


def _with_constants(source: str, unit: KernelUnit) -> str:
    """Put the unit's constants before the source as macros, but behind the headers it includes.

    A macro given on the command line would also rewrite NVIDIA's headers: `T` alone breaks NVRTC's built-in one.
    """
    if not IDENTIFIER.fullmatch(unit.kernel):
        raise BuildFault(f"{unit.kernel!r} is no name of a kernel")
    lines = []
    code = _without_comments(source)
    for match in DIRECTIVE.finditer(code):
        lines += [f'#line {_line(code, match)} "kernel.cu"', f"#include {match[2]}"]
    lines.append(f"#define KW_KERNEL_{unit.kernel} 1")
    for name, value in unit.constants.items():
        if not IDENTIFIER.fullmatch(name) or not str(value).isprintable():
            raise BuildFault(f"constant {name!r} = {value!r} cannot be a macro")
        lines.append(f"#define {name} {_spelled(value)}")
    return "\n".join((*lines, '#line 1 "kernel.cu"', source))


def _spelled(value: ParamValue) -> str:
    """Return a constant as C++ spells it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return f"{value!r}f" if isinstance(value, float) else str(value)


def _wants_nvcc(source: str) -> bool:
    """Tell whether `NVCC = True` stands beside the plan."""
    return any(ast.unparse(node) == "NVCC = True" for node in ast.parse(python_part(source)).body)


def _warnings(log: str) -> str:
    """Return the log without what the resources say already; ptxas gives its advice as `info` too."""
    return "\n".join(line for line in log.splitlines() if line.strip() and not CHATTER.search(line))


def _bounded(log: str) -> str:
    """Return the first messages of a long log: later ones are mostly their consequences."""
    text = log.strip()
    return (
        text
        if len(text) <= LOG_LIMIT
        else f"{text[:LOG_LIMIT]}\n[{len(text) - LOG_LIMIT} characters left out]"
    )


def _write(path: Path, content: bytes) -> None:
    """Put a file in place whole, so that parallel builders never see half of one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)
