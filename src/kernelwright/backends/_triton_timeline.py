"""A Triton kernel that writes down when each of its steps begins and ends: Proton's records, put in after optimisation.

Scopes in the source would change what is measured: the compiler pipelines and reorders around them, which is why Proton
itself refuses them in Triton. So the records go into the optimised TTGIR, the last form in which a load is a load, and
the copy made from it is used for the timeline alone. Proton's own compiler passes turn records into clock readings in
a buffer of global memory; neither its run time nor a GPU is needed to compile.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMELINE = "KW_TIMELINE"
"""Beside a launch's options: bytes of records a warp keeps. Never an option of a candidate's own plan."""
RECORD_BYTES = 8
MOST_SCOPES = 120
"""A record's tag has room for 256 numbers; kernels with more steps leave their last ones untold."""
KINDS = {
    "load": ("tt.load", "tt.descriptor_load", "tt.gather", "ttg.async_copy_global_to_local"),
    "tma load": ("ttng.async_tma_copy_global_to_local", "ttng.async_tma_gather"),
    "wait": ("ttg.async_wait", "ttng.wait_barrier", "ttng.warp_group_dot_wait", "ttng.async_tma_store_wait"),
    "shared": ("ttg.local_load", "ttg.local_store", "ttg.convert_layout"),
    "dot": ("tt.dot", "tt.dot_scaled", "ttng.warp_group_dot", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled"),
    "reduce": ("tt.reduce", "tt.scan"),
    "store": (
        "tt.store",
        "tt.descriptor_store",
        "ttng.async_tma_copy_local_to_global",
        "tt.descriptor_reduce",
    ),
    "atomic": ("tt.atomic_rmw", "tt.atomic_cas"),
    "loop": ("scf.for", "scf.while"),
}
"""What is told apart, and the operations of it."""
KIND_OF = {operation: kind for kind, operations in KINDS.items() for operation in operations}
WHOLE = "kernel"
OPERATION = re.compile(r'^\s*(?:%[\w:]+(?:,\s*%[\w:]+)*\s*=\s*)?"?([a-z_]+\.[a-z_0-9.]+)"?')
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
FUNCTION, RETURN = re.compile(r"^\s*tt\.func public @"), re.compile(r"^\s*tt\.return\b")
WARPS = re.compile(r'"ttg\.num-warps" = (\d+)')
ALIGNMENT = 128


class NotRecorded(RuntimeError):
    """A kernel that cannot be given records; the message is one line."""


def with_records(text: str, file: str) -> str:
    """Return optimised TTGIR with a record before and after every step; lines are those of the candidate's file."""
    lines = text.splitlines()
    known = _aliases(lines)
    ends = _ends(lines)
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    used: Counter[str] = Counter()
    for number, line in enumerate(lines):
        match = OPERATION.match(line)
        kind = KIND_OF.get(match[1]) if match else None
        if kind is None or used.total() >= MOST_SCOPES:
            continue
        last = ends.get(number, number)
        where = _line(lines[last], known, file)
        name = f"{kind} {where}" if where else kind
        used[name] += 1
        name += f" #{used[name]}" if used[name] > 1 else ""
        before.setdefault(number, []).append(f'proton.record start "{name}"')
        after.setdefault(last, []).insert(0, f'proton.record end "{name}"')
    functions = [number for number, line in enumerate(lines) if FUNCTION.match(line)]
    returns = [number for number, line in enumerate(lines) if RETURN.match(line)]
    if len(functions) != 1:
        raise NotRecorded(f"{len(functions)} functions in the compiled kernel; records go into one")
    if len(returns) == 1:  # with several ways out there is no one end
        after.setdefault(functions[0], []).append(f'proton.record start "{WHOLE}"')
        before.setdefault(returns[0], []).append(f'proton.record end "{WHOLE}"')
    found: list[str] = []
    for number, line in enumerate(lines):
        found += [*before.get(number, ()), line, *after.get(number, ())]
    return "\n".join(found) + "\n"


def _ends(lines: list[str]) -> dict[int, int]:
    """Return, for every line that opens a region, the line that closes it."""
    found, open_at = {}, list[int]()
    for number, line in enumerate(lines):
        plain = QUOTED.sub('""', line)
        # An attribute's braces close on their own line; what is left opens or closes regions.
        closing, depth = 0, 0
        for character in plain:
            if character == "{":
                depth += 1
            elif character == "}" and depth:
                depth -= 1
            elif character == "}":
                closing += 1
        for _ in range(closing):
            if open_at:
                found[open_at.pop()] = number
        # `} else {` goes on: the operation ends where its last region does.
        start = next((one for one, end in found.items() if end == number), number) if closing else number
        open_at += [start] * depth
    return found


def _aliases(lines: list[str]) -> dict[str, str]:
    return {match[1]: match[2] for line in lines if (match := ALIAS.match(line))}


def _line(line: str, known: dict[str, str], file: str) -> int:
    """Return the innermost line of the candidate's file an operation comes from; 0 if it comes from none."""
    start = line.rfind(" loc(")
    waiting, seen = [line[start + 5 : -1]] if start >= 0 else [], set[str]()
    while waiting:
        text = waiting.pop(0)
        for name, number in PLACE.findall(text):
            if Path(name).name == file:
                return int(number)
        fresh = [alias for alias in re.findall(r"#loc\d*", text) if alias not in seen]
        seen |= set(fresh)
        # Depth first, callee before caller: `callsite(callee at caller)`.
        waiting = [known[alias] for alias in fresh if alias in known] + waiting
    return 0


class _Passes:
    """What the compiler asks for at its two instrumentation points."""

    def __init__(self, most_shared: int, bytes_per_warp: int) -> None:
        self.most_shared, self.bytes_per_warp, self.warps = most_shared, bytes_per_warp, 0

    def load_dialects(self, context: Any) -> None:
        """Make the compiler know records."""
        from triton._C.libtriton import proton

        proton.load_dialects(context)

    def patch(self, point: str, manager: Any, context: Any) -> None:
        """Add Proton's passes at a point of the lowering."""
        from triton._C.libtriton import passes, proton

        self.load_dialects(context)
        if point == "ttgpuir_to_llvmir":
            proton.add_convert_proton_to_protongpu(
                manager,
                proton.METRIC_TYPE.CYCLE,
                proton.SAMPLING_STRATEGY.NONE,
                "",
                proton.GRANULARITY.WARP,
                proton.BUFFER_STRATEGY.CIRCULAR,
                # Shared memory would cost the kernel blocks; where warps have roles, their number is not known yet.
                proton.BUFFER_TYPE.GLOBAL,
                self.bytes_per_warp * self.warps,
                self.most_shared,
                1,
                ALIGNMENT,
                True,  # clocks of 64 bits
            )
            passes.common.add_cse(manager)
            proton.add_allocate_proton_shared_memory(manager)
        elif point == "llvmir_to_llvm":
            proton.add_allocate_proton_global_scratch_buffer(manager)
            proton.add_convert_proton_nvidia_gpu_to_llvm(manager)


@contextmanager
def recording(path: Path, bytes_per_warp: int, most_shared: int) -> Iterator[dict[int, str]]:
    """Let what is compiled meanwhile write records; yields their names by number, which are there afterwards."""
    from triton import knobs
    from triton.backends.nvidia.compiler import CUDABackend

    try:
        from triton._C.libtriton import proton
    except ImportError as error:
        raise NotRecorded(
            f"this Triton was built without Proton ({error}); a release from PyPI has it"
        ) from error
    scopes: dict[int, str] = {}
    passes = _Passes(most_shared, bytes_per_warp)

    def inspect(*given: Any) -> Any:
        if not given:  # later versions ask first what a cache should know of the change
            return TIMELINE, TIMELINE
        stages = given[1]
        plain = stages["ttgir"]

        def recorded(source: Any, metadata: Any) -> Any:
            module = plain(source, metadata)
            text = str(module)
            warps = WARPS.search(text)
            passes.warps = int(warps[1]) if warps and "ttg.warp_specialize" not in text else 0
            module = _parsed(with_records(text, path.name), path, module.context)
            scopes.update(dict(proton.get_scope_id_names(module)))
            return module

        stages["ttgir"] = recorded
        return None

    previous = CUDABackend.instrumentation, knobs.runtime.add_stages_inspection_hook
    CUDABackend.instrumentation, knobs.runtime.add_stages_inspection_hook = passes, inspect
    try:
        yield scopes
    finally:
        CUDABackend.instrumentation, knobs.runtime.add_stages_inspection_hook = previous


def _parsed(text: str, path: Path, context: Any) -> Any:
    from triton._C.libtriton import ir

    file = path.with_suffix(".ttgir")
    file.write_text(text)
    module = ir.parse_mlir_module(str(file), context)
    module.context = context
    return module
