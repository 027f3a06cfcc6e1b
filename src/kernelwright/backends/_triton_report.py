"""What a compiled Triton kernel needs and does, read from its text: registers, spills, parameters, instructions."""

import re
from collections import Counter

GLOBAL_ACCESS = re.compile(r"\b(ld|st)\.(?:volatile\.)?global((?:\.[\w:]+)*)")
WIDTH = re.compile(r"\.(?:b|u|s|f|bf)(8|16|32|64|128)(?!\w)")
VECTOR = re.compile(r"\.v([248])(?!\w)")
PTX_KINDS = {
    "wgmma": re.compile(r"\bwgmma\.mma_async"),
    "tcgen05": re.compile(r"\btcgen05\.mma"),
    "mma": re.compile(r"\bmma\.sync"),
    "ldmatrix": re.compile(r"\bldmatrix"),
    "cp_async": re.compile(r"\bcp\.async\.c[ag]\."),
    "tma_load": re.compile(r"\bcp\.async\.bulk\.tensor\.\d+d\.shared"),
    "tma_store": re.compile(r"\bcp\.async\.bulk\.tensor\.\d+d\.global"),
    "atomic": re.compile(r"\b(?:atom|red)\.(?:\w+\.)*global"),
    "barrier": re.compile(r"\b(?:bar\.sync|barrier\.sync|mbarrier\.try_wait)"),
}
AMD_ACCESS = re.compile(r"\b(?:global|buffer|flat)_(load|store)_(\w+)")
AMD_BYTES = {
    "dwordx4": 16,
    "b128": 16,
    "dwordx3": 12,
    "b96": 12,
    "dwordx2": 8,
    "b64": 8,
    "dword": 4,
    "b32": 4,
}
AMD_KINDS = {
    "mfma": re.compile(r"\bv_s?mfma\w*"),
    "wmma": re.compile(r"\bv_s?wmmac?\w*"),
    "atomic": re.compile(r"\b(?:global|buffer|flat)_atomic"),
    "barrier": re.compile(r"\bs_barrier"),
}
PTXAS_LOG = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
}
AMD_METADATA = {
    "registers": re.compile(r"\.vgpr_count:\s+(\d+)"),
    "scalar_registers": re.compile(r"\.sgpr_count:\s+(\d+)"),
    "stack_bytes": re.compile(r"\.private_segment_fixed_size:\s+(\d+)"),
    "spilled_registers": re.compile(r"\.vgpr_spill_count:\s+(\d+)"),
}


def _integers(patterns: dict[str, re.Pattern[str]], text: str) -> dict[str, int]:
    """Return the first integer each pattern finds; a silent one is left out."""
    found = {name: pattern.search(text) for name, pattern in patterns.items()}
    return {name: int(match.group(1)) for name, match in found.items() if match}


def _nvidia_instructions(ptx: str) -> Counter[str]:
    """Count matrix, copy and global-memory instructions of a PTX text, the latter by bytes per thread."""
    counts = Counter({name: len(pattern.findall(ptx)) for name, pattern in PTX_KINDS.items()})
    for kind, modifiers in GLOBAL_ACCESS.findall(ptx):
        width, vector = WIDTH.search(modifiers), VECTOR.search(modifiers)
        if width:
            counts[f"{kind}_global_{int(width[1]) // 8 * (int(vector[1]) if vector else 1)}B"] += 1
    return +counts


def _amd_instructions(assembly: str) -> Counter[str]:
    """Count matrix and global-memory instructions of an AMD assembly text."""
    counts = Counter({name: len(pattern.findall(assembly)) for name, pattern in AMD_KINDS.items()})
    for kind, form in AMD_ACCESS.findall(assembly):
        size = AMD_BYTES.get(form, 1 if "byte" in form or "8" in form else 2)
        counts[f"{'ld' if kind == 'load' else 'st'}_global_{size}B"] += 1
    return +counts


def nvidia_resources(ptx: str, ptxas_log: str) -> dict[str, int]:
    """Return what ptxas said of the kernel and what its PTX contains."""
    version = re.search(r"^\s*\.version (\d+)\.(\d+)", ptx, re.MULTILINE)
    named = {"ptx_version": int(version[1]) * 10 + int(version[2])} if version else {}
    # ptxas says so in passing: the tensor cores then wait after every product and half of the speed is gone.
    serialized = ptxas_log.count("wgmma.mma_async instructions are serialized")
    return (
        _integers(PTXAS_LOG, ptxas_log)
        | named
        | {"wgmma_serialized": serialized}
        | dict(_nvidia_instructions(ptx))
    )


def amd_resources(assembly: str) -> dict[str, int]:
    """Return what the code object's metadata says and what its assembly contains."""
    found = _integers(AMD_METADATA, assembly)
    spilled = 4 * found.pop("spilled_registers", 0)
    return found | {"spill_store_bytes": spilled} | dict(_amd_instructions(assembly))


def nvidia_parameter_bytes(ptx: str) -> list[int]:
    """Return the size of each parameter of the entry point, in order."""
    head = re.search(r"\.visible \.entry \w+\((.*?)\)", ptx, re.DOTALL)
    sizes = (
        re.findall(r"\.param\s+(?:\.align \d+ )?\.[a-z]+(\d+)[^,]*?(?:\[(\d+)\])?\s*(?:,|$)", head[1])
        if head
        else []
    )
    return [int(bits) // 8 * int(count or 1) for bits, count in sizes]


def amd_parameter_bytes(assembly: str) -> list[int]:
    """Return the size of each explicit argument of the code object, in order."""
    head = re.search(
        r"^amdhsa\.kernels:.*?^\s+\.group_segment_fixed_size", assembly, re.DOTALL | re.MULTILINE
    )
    fields = re.findall(r"\.size:\s+(\d+)\s+\.value_kind:\s+(\w+)", head[0]) if head else []
    return [int(size) for size, kind in fields if not kind.startswith("hidden")]
