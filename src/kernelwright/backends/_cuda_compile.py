"""The two compilers of CUDA C++, NVRTC and nvcc with ptxas, and where their headers and tools are found."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from kernelwright.core.environment import tool_environment
from kernelwright.core.errors import BackendUnavailable
from kernelwright.core.verdict import Status

NVCC_SECONDS = 120
TOOL_SECONDS = 60
INCLUDE_FOLDER = Path(__file__).parent / "include"
TARGET = re.compile(r"sm_(\d{2,3})[af]?")
TRITON_TOOLS = "backends/nvidia/bin"
"""Triton's wheel ships NVIDIA's disassembler there; the CUDA wheels ship none."""


class BuildFault(ValueError):
    """What a compiler refused and the status that names it; becomes a `BuildResult`."""

    def __init__(self, log: str, status: Status = Status.BUILD_FAILED) -> None:
        super().__init__(log)
        self.status = status


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of a source."""

    cubin: bytes
    ptx: str
    log: str
    compiler: str


def nvrtc_version() -> str | None:
    """Return the version of NVRTC's wheel or of the bindings alone; None if Python cannot call it."""
    found = None
    for package in ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package == "cuda-bindings":
                return None
    return found


def toolkit_root() -> Path | None:
    """Return the toolkit nvcc belongs to. nvcc on PATH may be a wrapper, so it is asked, not followed."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    try:
        said = subprocess.run(
            [nvcc, "--dryrun", "-c", "kernel.cu"],
            env=tool_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    top = re.search(r"^#\$ TOP=(.+)$", said.stderr, re.MULTILINE)
    return Path(top[1]).resolve() if top else None


def _package_folders(name: str) -> list[Path]:
    """Return where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def header_folders() -> list[Path]:
    """Return the include folders of the CUDA headers: the nvidia wheels', else the toolkit's, if any."""
    wheels = [
        folder
        for place in _package_folders("nvidia")
        for folder in (*sorted(place.glob("cu[0-9]*/include"), reverse=True), *place.glob("cuda_*/include"))
    ]
    folders = [folder for folder in wheels if (folder / "cuda_fp16.h").is_file()][:1]
    libcudacxx = [
        path for folder in wheels for path in (folder / "cccl", folder) if (path / "cuda/std").is_dir()
    ]
    if folders and libcudacxx:
        return [*folders, libcudacxx[0]]
    root = toolkit_root()
    if root is None:
        return folders
    return [*(folders or [root / "include"]), root / "include" / "cccl"]


def disassembler() -> Path | None:
    """Return nvdisasm: of PATH, of Triton's wheel or of the toolkit."""
    on_path = shutil.which("nvdisasm")
    places = [Path(on_path)] if on_path else []
    places += [place / TRITON_TOOLS / "nvdisasm" for place in _package_folders("triton")]
    if found := next((path for path in places if path.is_file()), None):
        return found
    root = toolkit_root()
    inside = root / "bin" / "nvdisasm" if root else None
    return inside if inside and inside.is_file() else None


def disassembled(cubin: Path) -> str | None:
    """Return the SASS of a cubin, or None where there is no disassembler."""
    tool = disassembler()
    if tool is None:
        return None
    try:
        said = subprocess.run(
            [tool, "-c", cubin],
            env=tool_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout if said.returncode == 0 else None


def _architecture(target: str, known: Sequence[int]) -> str:
    """Return the compiler's name of a target; from sm_90 on with the instructions only that very chip has."""
    match = TARGET.fullmatch(target)
    if match is None or int(match[1]) not in known:
        names = ", ".join(f"sm_{number}" for number in known)
        raise BuildFault(f"unknown target {target!r}; this compiler knows {names}")
    number = int(match[1])
    return f"{number}a" if number >= 90 else f"{number}"


def _refusal(log: str) -> BuildFault:
    """Give a compiler's refusal the status that names it."""
    too_big = re.search(r"uses too much (?:shared data|parameter space)|too many resources", log)
    return BuildFault(log, Status.TOO_BIG if too_big else Status.BUILD_FAILED)


def with_nvrtc(source: str, target: str, flags: Sequence[str]) -> Compiled:
    """Compile with NVRTC, whose messages name the program `kernel.cu`."""
    try:
        from cuda.bindings import nvrtc

        # The library itself is looked for at the first call.
        _, major, minor = nvrtc.nvrtcVersion()
        _, known = nvrtc.nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError) as error:
        remedy = "pip install 'kernelwright[cuda]' nvidia-cuda-nvrtc"
        raise BackendUnavailable("cuda", f"NVRTC ({error})", remedy) from error

    def text(size: int, fill: Callable[[bytes], object]) -> str:
        room = b" " * size
        fill(room)
        return room.decode(errors="replace").rstrip("\0 \n")

    options = [f"-arch=sm_{_architecture(target, known)}", *flags, "--ptxas-options=-v"]
    options += [f"-I{path}" for path in (INCLUDE_FOLDER, *header_folders())]
    encoded = [option.encode() for option in options]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    try:
        (outcome,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = text(
            nvrtc.nvrtcGetProgramLogSize(program)[1], lambda room: nvrtc.nvrtcGetProgramLog(program, room)
        )
        if outcome != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _refusal(log or f"NVRTC: {outcome.name}")
        cubin = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, cubin)
        ptx = text(nvrtc.nvrtcGetPTXSize(program)[1], lambda room: nvrtc.nvrtcGetPTX(program, room))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(cubin, ptx, log, f"nvrtc {major}.{minor}")


def with_nvcc(source: str, target: str, flags: Sequence[str]) -> Compiled:
    """Compile with nvcc to PTX and with ptxas to a cubin."""
    root, nvcc = toolkit_root(), shutil.which("nvcc")
    if root is None or nvcc is None:
        remedy = "Put nvcc of a CUDA toolkit on PATH, or take `NVCC = True` out of the source."
        raise BackendUnavailable("cuda", "nvcc on PATH; found none", remedy)
    with tempfile.TemporaryDirectory(prefix="kernelwright-nvcc-") as scratch:
        folder = Path(scratch)
        (folder / "kernel.cu").write_text(source)
        known = [int(number) for number in re.findall(r"sm_(\d+)\b", _run([nvcc, "--list-gpu-code"], folder))]
        arch = _architecture(target, sorted(set(known)))
        steps = (
            [
                nvcc,
                "-ptx",
                f"-arch=compute_{arch}",
                *flags,
                f"-I{INCLUDE_FOLDER}",
                "kernel.cu",
                "-o",
                "kernel.ptx",
            ],
            [
                str(root / "bin" / "ptxas"),
                "-v",
                "-lineinfo",
                f"-arch=sm_{arch}",
                "kernel.ptx",
                "-o",
                "kernel.cubin",
            ],
        )
        log = "".join(_run(step, folder) for step in steps)
        ptx = (folder / "kernel.ptx").read_text(errors="replace")
        return Compiled((folder / "kernel.cubin").read_bytes(), ptx, log, f"nvcc at {root}")


def _run(command: Sequence[str], folder: Path) -> str:
    """Return what a compiler said, or raise what it refused."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=NVCC_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        words = f"{command[0]} did not finish within {NVCC_SECONDS} s"
        raise BuildFault(words, Status.BUILD_TIMED_OUT) from error
    if done.returncode:
        raise _refusal(done.stdout)
    return done.stdout
