"""What a compiled CUDA kernel takes, needs and does, read from the compiler's log, its PTX and its SASS."""

import re
from collections import Counter

PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+\d+)\s[^,\[]*?(\[\d+\])?\s*(?:,|$)")
PTX_TYPES = {
    **dict.fromkeys(("i1", "i8"), ("u8", "s8", "b8")),
    "i16": ("u16", "s16", "b16"),
    **dict.fromkeys(("i32", "u32"), ("u32", "s32", "b32")),
    **dict.fromkeys(("i64", "u64"), ("u64", "s64", "b64")),
    "fp32": ("f32", "b32"),
    "fp64": ("f64", "b64"),
    "tensor_map": ("b8[128]",),
}
"""Types of a PTX parameter that fit a type of the plan; a pointer is a u64."""
REGISTERS_PER_BLOCK = 65536
MAX_THREADS = 1024
SASS_KINDS = {
    "wgmma": re.compile(r"[HIQ]GMMA\."),
    "mma": re.compile(r"[HIQD]MMA\."),
    "ldmatrix": re.compile(r"LDSM"),
    "tma_load": re.compile(r"UTMALDG"),
    "tma_store": re.compile(r"UTMASTG"),
    "cp_async": re.compile(r"LDGSTS"),
    "ld_global_16B": re.compile(r"LDG\.[\w.]*\b128\b"),
    "ld_global": re.compile(r"LDG\."),
    "st_global_16B": re.compile(r"STG\.[\w.]*\b128\b"),
    "st_global": re.compile(r"STG\."),
    "local": re.compile(r"(?:LDL|STL)\b"),
    "ffma": re.compile(r"FFMA"),
    "mufu": re.compile(r"MUFU"),
    "atomic": re.compile(r"(?:ATOMG|REDG?)\b"),
    "barrier": re.compile(r"BAR\.|SYNCS\."),
}
PTX_KINDS = {
    "wgmma": re.compile(r"wgmma\.mma_async"),
    "mma": re.compile(r"mma\.sync"),
    "ldmatrix": re.compile(r"ldmatrix"),
    "tma_load": re.compile(r"cp\.async\.bulk\.tensor\.\d+d\.shared"),
    "tma_store": re.compile(r"cp\.async\.bulk\.tensor\.\d+d\.global"),
    "cp_async": re.compile(r"cp\.async\.c[ag]\."),
    "ld_global_16B": re.compile(r"ld\.global\S*\.v4\.[usbf]32"),
    "ld_global": re.compile(r"ld\.global"),
    "st_global_16B": re.compile(r"st\.global\S*\.v4\.[usbf]32"),
    "st_global": re.compile(r"st\.global"),
    "local": re.compile(r"(?:ld|st)\.local"),
    "ffma": re.compile(r"fma\.rn\.(?:ftz\.)?f32"),
    "mufu": re.compile(r"(?:ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.approx"),
    "atomic": re.compile(r"(?:atom|red)\."),
    "barrier": re.compile(r"(?:bar|barrier)\.sync|mbarrier\.try_wait"),
}


def entries(ptx: str) -> list[str]:
    """Return the names of the kernels of a PTX text."""
    return re.findall(r"\.entry\s+(\w+)", ptx)


def _entry(ptx: str, kernel: str) -> re.Match[str] | None:
    """Find a kernel: its parameters, the directives behind them, its body up to the next function."""
    pattern = rf"\.entry\s+{re.escape(kernel)}\s*\((.*?)\)(.*?)^\{{(.*?)(?=\.entry\s|\.func\s|\Z)"
    return re.search(pattern, ptx, re.DOTALL | re.MULTILINE)


def parameter_fault(ptx: str, kernel: str, passed: tuple[str, ...]) -> str | None:
    """Return how the arguments a plan passes disagree with the parameters the kernel takes, or None."""
    found = _entry(ptx, kernel)
    if found is None:
        return f"no kernel named {kernel!r}; there are: {', '.join(entries(ptx)) or 'none'}"
    taken = [kind + count for kind, count in PARAMETER.findall(found[1].strip())]
    if len(taken) != len(passed):
        return f"kernel {kernel!r} takes {len(taken)} parameters; the plan passes {len(passed)}"
    for position, (parameter, given) in enumerate(zip(taken, passed, strict=True)):
        fitting = PTX_TYPES["u64"] if given.startswith("*") else PTX_TYPES[given]
        if parameter not in fitting:
            passes = f"the plan passes {given}, the kernel takes .{parameter}"
            return f"argument {position} of kernel {kernel!r}: {passes}"
    return None


def resources(ptx: str, ptxas_log: str, kernel: str) -> dict[str, int]:
    """Return registers, spills, stack, static shared memory and the most threads a block may have."""
    section = re.search(
        rf"Compiling entry function '{re.escape(kernel)}'.*?Compile time", ptxas_log, re.DOTALL
    )
    words = section[0] if section else ptxas_log

    def number(pattern: str) -> int:
        match = re.search(pattern, words)
        return int(match[1]) if match else 0

    registers = number(r"Used (\d+) registers")
    found = _entry(ptx, kernel)
    bound = re.search(r"\.maxntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", found[2]) if found else None
    # Registers are handed out to whole warps, eight per thread at a time.
    fitting = REGISTERS_PER_BLOCK // (-(-max(registers, 1) // 8) * 8) // 32 * 32
    threads = MAX_THREADS if bound is None else int(bound[1]) * int(bound[2] or 1) * int(bound[3] or 1)
    return {
        "registers": registers,
        "spill_bytes": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        "stack_bytes": number(r"(\d+) bytes stack frame"),
        "shared_static": number(r"(\d+) bytes smem"),
        "max_threads": min(threads, fitting),
    }


def sass_instructions(sass: str, kernel: str) -> dict[str, int]:
    """Count the telling instructions of one kernel in a disassembly."""
    start = re.search(rf"^\.text\.{re.escape(kernel)}:$", sass, re.MULTILINE)
    if start is None:
        return {}
    end = sass.find("\n\t.section", start.end())
    body = sass[start.end() : end if end > 0 else len(sass)]
    mnemonics = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", body, re.MULTILINE)
    return _counted(SASS_KINDS, mnemonics) | {"instructions": len(mnemonics)}


def ptx_instructions(ptx: str, kernel: str) -> dict[str, int]:
    """Count the telling instructions of one kernel in a PTX text."""
    found = _entry(ptx, kernel)
    words = re.findall(r"(?:^|[\s;{}])([a-z]\w*\.[\w.:]+)", found[3]) if found else []
    return _counted(PTX_KINDS, words)


def _counted(kinds: dict[str, re.Pattern[str]], words: list[str]) -> dict[str, int]:
    counts = Counter(words)
    totals = {name: sum(n for word, n in counts.items() if kind.match(word)) for name, kind in kinds.items()}
    return {name: total for name, total in totals.items() if total}
