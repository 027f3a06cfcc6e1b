"""What a compiler made of a candidate: the instructions of the artefact that was judged, and what they tell.

The artefact is the one in the run's blobs; it is read by a disassembler and never loaded. Registers and spills of GPU
kernels are what the compiler told the judge; of a CPU's they are counted in the instructions.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kernelwright.backends._cuda_compile import disassembled
from kernelwright.core.environment import child_environment
from kernelwright.core.errors import BadInput, PackageMissing
from kernelwright.core.frozen import Frozen
from kernelwright.core.tree import Node
from kernelwright.core.verdict import Evaluation
from kernelwright.store.blobs import Blobs

TOOL_S = 30.0
ENTRY = "kernel_fn"
Counts = tuple[dict[str, int], dict[str, dict[str, int]]]
"""Of the whole artefact, and by function."""
ELF, CUDA_MACHINE, AMD_MACHINE = b"\x7fELF", 190, 224
MACHINE = slice(18, 20)
"""Where an ELF file says what it is for."""
INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\t(?:[a-z]\w*\s+)??([a-z][\w.]*)\s*(.*)$", re.MULTILINE)
STACK = re.compile(r"\(%[re]?[sb]p[,)]|\[(?:sp|x29)\b")
VECTORS = {
    "vector_512": re.compile(r"%zmm"),
    "vector_256": re.compile(r"%ymm"),
    "vector_128": re.compile(r"%xmm|\bv\d+\."),
}
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$", re.MULTILINE)
RUNTIME = (
    "deregister_tm_clones",
    "register_tm_clones",
    "__do_global_dtors_aux",
    "frame_dummy",
    "_init",
    "_fini",
)
"""What every shared library holds, whoever wrote it."""
FUSED = re.compile(r"^v?fn?m(?:add|sub)|^fml[as]")


class Disassembled(Frozen):
    """The instructions of one artefact."""

    artefact: str
    """Which build: the hash of its parameters, or the name of a kernel's file."""
    kind: str
    """`sass`, `ptx` or `cpu`."""
    counts: dict[str, int]
    """Telling instructions by kind; registers and spilled bytes where the compiler told them."""
    functions: dict[str, dict[str, int]]
    """The same counts by function, where a listing has several."""
    text: str
    """The listing of the functions asked for, cut where that is said."""
    cut: int
    """Lines left out at the end."""


@dataclass(frozen=True)
class Extent:
    """How much of a listing is shown."""

    lines: int = 300
    function: str = ""
    """Only functions with this in their name."""


def disassembly(folder: Path, node: Node, extent: Extent) -> list[Disassembled]:
    """Return the instructions of every artefact of a candidate that was accepted."""
    verdict = next((one for one in reversed(node.evaluations) if one.artefact_hashes), None)
    if verdict is None:
        problem = f"candidate {node.candidate.hash[:12]} has no artefact"
        remedy = (
            "Only what was built, accepted and compiled to machine code has one; eager baselines have none."
        )
        raise BadInput("candidate", problem, remedy)
    blobs = Blobs(folder / "blobs")
    found = [
        one
        for name, blob in verdict.artefact_hashes.items()
        if (one := _disassembled(name, blobs.get(blob), verdict, extent))
    ]
    if not found:
        raise BadInput("candidate", "its artefact is no machine code", "Interpreted kernels have no listing.")
    return found


def _disassembled(name: str, content: bytes, verdict: Evaluation, extent: Extent) -> Disassembled | None:
    told = verdict.resources.get(name.partition(".")[0], {})
    machine = int.from_bytes(content[MACHINE], "little") if content[:4] == ELF else None
    if name.endswith(".ptx"):
        return _cut(name, "ptx", (told, {}), content.decode(errors="replace"), extent)
    if machine == CUDA_MACHINE:
        return _cut(name, "sass", (told, {}), _sass(content), extent)
    if machine in (None, AMD_MACHINE):  # text, or what no tool at hand reads
        return None
    parts = functions_in(_objdump(content))
    wanted = [text for title, text in parts.items() if extent.function in title]
    counts = {title: cpu_counts(text) for title, text in parts.items()}
    return _cut(name, "cpu", (cpu_counts("".join(parts.values())), counts), "\n".join(wanted), extent)


def _cut(name: str, kind: str, counts: Counts, text: str, extent: Extent) -> Disassembled:
    lines = text.splitlines()
    return Disassembled(
        artefact=name,
        kind=kind,
        counts=counts[0],
        functions=counts[1],
        text="\n".join(lines[: extent.lines]),
        cut=max(0, len(lines) - extent.lines),
    )


def functions_in(listing: str) -> dict[str, str]:
    """Return a CPU listing by function, without those of the C runtime; the entry of a kernel comes first."""
    starts = [(found.start(), found[1]) for found in FUNCTION.finditer(listing)]
    ends = [start for start, _ in starts[1:]] + [len(listing)]
    parts = {
        title: listing[start:end].rstrip() + "\n"
        for (start, title), end in zip(starts, ends, strict=True)
        if title not in RUNTIME
    }
    return dict(sorted(parts.items(), key=lambda part: part[0] != ENTRY))


def _sass(content: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(content)
        file.flush()
        found = disassembled(Path(file.name))
    if found is None:
        raise PackageMissing("nvdisasm", "the listing of a GPU kernel", "cuda")
    return found


def _objdump(content: bytes) -> str:
    """Return the code of a shared library; the file is a candidate's, so the tool gets nothing of ours."""
    tool = shutil.which("objdump")
    if tool is None:
        raise BadInput("objdump", "it is not on PATH", "Install binutils.")
    with tempfile.TemporaryDirectory(prefix="kernelwright-") as scratch:
        file = Path(scratch) / "artefact.so"
        file.write_bytes(content)
        try:
            done = subprocess.run(
                [tool, "-d", "-C", "--no-show-raw-insn", "-j", ".text", str(file)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TOOL_S,
                check=False,
                env=child_environment(os.environ, Path(scratch), Path(scratch), 1),
            )
        except subprocess.TimeoutExpired as error:
            raise BadInput(
                "candidate", f"objdump took more than {TOOL_S:g} s", "Look at a smaller one."
            ) from error
    if done.returncode:
        raise BadInput("candidate", "objdump cannot read its artefact", "Judge it again.")
    return "\n".join(line for line in done.stdout.splitlines() if str(file) not in line).strip()


def cpu_counts(listing: str) -> dict[str, int]:
    """Count the telling instructions of a CPU listing: vectors by width, fused multiply-adds, trips to the stack."""
    counts: Counter[str] = Counter()
    for mnemonic, operands in INSTRUCTION.findall(listing):
        counts["instructions"] += 1
        counts["fused_multiply_add"] += bool(FUSED.match(mnemonic))
        counts["calls"] += mnemonic.startswith(("call", "bl"))
        counts["stack_accesses"] += bool(STACK.search(operands))
        width = next((name for name, kind in VECTORS.items() if kind.search(operands)), None)
        if width:
            counts[width] += 1
    return {name: count for name, count in counts.items() if count}
