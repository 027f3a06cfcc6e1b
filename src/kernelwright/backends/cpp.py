"""C++ for CPUs: compiled by the machine's own compiler, called through a plain C ABI (tier B, native host code)."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kernelwright.backends._bare_launch import DTYPE_CODES, MAX_AXES, KwTensor, c_number
from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.plan_language import PlanFault, parse_params
from kernelwright.core.ports import Availability, BuildResult
from kernelwright.core.verdict import Status

SUMMARY = "C++ with OpenMP on the host's cores"
EXTENSION = ".cpp"
TIER = "B"
NOTES = """Include "kernelwright.h" and export one function:
    extern "C" int kernel_fn(<inputs>, <scalars>, <outputs>)
tensors as `const kw_tensor*`, floats as double, integers as int64_t, booleans as int32_t. Outputs are passed in.
Return KW_OK or a named refusal. "kernelwright_vec.h" offers float vectors with loads and stores for every dtype.
Built with -O3 -march=native -fopenmp; PARAMS become macros.
Use mathematics, OpenMP, memory, C++ containers and exceptions only: files, printing, clocks, signals, threads of your
own, objects of namespace scope with constructors (<iostream> has one), ifunc and target_clones are refused."""

SIGNATURE_FILES = (Path(__file__).parent / "include" / "kernelwright.h",)
"""What an author without an example has to read."""

COMPILERS = ("g++", "clang++")
FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wno-maybe-uninitialized",
)
SANITIZED = "KW_SANITIZED"
"""Beside the parameters, it asks for a build that checks itself; no macro of the candidate's."""
SANITIZERS = (
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-U__SANITIZE_ADDRESS__",  # a source that knows it is being watched may behave
)
OPT_OUTS = ("no_sanitize", "no_address_safety_analysis", "disable_sanitizer_instrumentation")
"""What a source asks a compiler for that is to leave a function of it unwatched."""
MAX_SOURCE_BYTES = 1 << 20
MAX_LOG_BYTES = 8192
BUILD_SECONDS = 120
PREPROCESSED = ("-x", "c++-cpp-output", "-")

REFUSALS = {1: "dtype", 2: "layout", 3: "shape"}


def compiler() -> str | None:
    """Return the path of the first compiler found."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def available() -> Availability:
    """Tell whether a C++ compiler is installed."""
    found = compiler()
    if found is None:
        return Availability(
            False,
            f"none of {', '.join(COMPILERS)} on PATH",
            "Install a C++ compiler, for example `apt-get install g++`.",
        )
    return Availability(True, found)


def fingerprint() -> str:
    """Return what decides the machine code besides the source: compiler, version, flags, CPU."""
    found = compiler() or "none"
    command = [found, "-v", "-E", "-x", "c++", "-march=native", "-"]
    version = subprocess.run(command, input="", text=True, capture_output=True, check=False)
    # The driver prints the CPU it resolved -march=native to: two machines never share a build by accident.
    resolved = next((line for line in version.stderr.splitlines() if "cc1plus" in line), "")
    headers = [path.read_text() for path in sorted(include_folder().glob("*.h"))]
    return "\n".join([found, *FLAGS, *SANITIZERS, *OPT_OUTS, resolved, *headers])


def include_folder() -> Path:
    """Return the folder of `kernelwright.h` and `kernelwright_vec.h`."""
    return Path(__file__).parent / "include"


def check(source: str) -> str | None:
    """Return why the source is refused before building, or None."""
    if len(source.encode()) > MAX_SOURCE_BYTES:
        return f"source of {len(source.encode())} bytes; at most {MAX_SOURCE_BYTES} are allowed"
    if "kernel_fn" not in source or 'extern "C"' not in source:
        return 'no `extern "C" int kernel_fn(...)` of its own'
    try:
        parse_params(source)
    except PlanFault as fault:
        return str(fault)
    return None


def build(source: str, values: Mapping[str, ParamValue], folder: Path) -> BuildResult:
    """Compile into `folder/kernel.so`; messages carry the candidate's own line numbers."""
    found = compiler()
    if found is None:
        return BuildResult(status=Status.BUILD_FAILED, log=f"no compiler: {available().remedy}")
    (folder / "kernel.cpp").write_text(source)
    macros = [f"-D{name}={_macro(value)}" for name, value in values.items() if name != SANITIZED]
    watched = bool(values.get(SANITIZED))
    command = [found, *FLAGS, *(SANITIZERS if watched else ()), f"-I{include_folder()}", *macros]
    try:
        if watched:
            done = _run([*command, "-E", "kernel.cpp"], folder)
            if asked := next((word for word in OPT_OUTS if word in done.stdout), None):
                return BuildResult(status=Status.SANITIZER, log=f"the source asks for {asked!r}")
            # Compiled is what was searched, and by a pipe: `__has_include` of a file would tell this build from others.
            if done.returncode == 0:
                done = _run([*command, *PREPROCESSED, "-o", "kernel.so"], folder, done.stdout)
        else:
            done = _run([*command, "kernel.cpp", "-o", "kernel.so"], folder)
    except subprocess.TimeoutExpired:
        return BuildResult(status=Status.BUILD_TIMED_OUT, log=f"no result after {BUILD_SECONDS} s")
    log = done.stderr[:MAX_LOG_BYTES]
    if done.returncode != 0:
        return BuildResult(status=Status.BUILD_FAILED, log=log)
    return BuildResult(status=Status.ACCEPTED, log=log, artefact="kernel.so")


def _run(command: Sequence[str], folder: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        input=text,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=BUILD_SECONDS,
        check=False,
    )


def sanitizer_runtime() -> Path | None:
    """Return the library a process must load first to run a sanitized artefact, or None if there is none."""
    found = compiler()
    if found is None:
        return None
    command = [found, "-print-file-name=libasan.so"]
    said = subprocess.run(command, text=True, capture_output=True, check=False).stdout.strip()
    return Path(said) if Path(said).is_absolute() and Path(said).exists() else None


def _macro(value: ParamValue) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def tensor_struct(spec: TensorSpec, address: int) -> KwTensor:
    """Return the C view of a tensor whose first element lies at `address`."""
    axes = len(spec.shape)
    shape, stride = (
        (ctypes.c_int64 * MAX_AXES)(*spec.shape),
        (ctypes.c_int64 * MAX_AXES)(*spec.element_strides),
    )
    return KwTensor(address, shape, stride, axes, DTYPE_CODES[spec.dtype])


def open_kernel(artefact: Path) -> Callable[..., int]:
    """Return `kernel_fn` of a built library."""
    function = ctypes.CDLL(str(artefact)).kernel_fn
    function.restype = ctypes.c_int
    return function


def bind(
    artefact: Path, cases: Sequence[Case], calls: Sequence[tuple[int, Mapping[str, int]]]
) -> list[Callable[[], int]]:
    """Return one closure per call; a call is a case index and the address of each tensor's first element."""
    function = open_kernel(artefact)

    def closure(case: Case, addresses: Mapping[str, int]) -> Callable[[], int]:
        tensors = [tensor_struct(spec, addresses[spec.name]) for spec in (*case.inputs, *case.outputs)]
        references = [ctypes.byref(tensor) for tensor in tensors]
        scalars = [c_number(value) for value in case.scalars.values()]
        split = len(case.inputs)
        arguments = (*references[:split], *scalars, *references[split:])
        return lambda: function(*arguments)

    return [closure(cases[index], addresses) for index, addresses in calls]
