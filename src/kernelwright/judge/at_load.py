"""What of a native artefact runs before it is called: read from its tables, nothing is executed.

A certified artefact is opened in the user's own process, outside of every sandbox. So nothing of an author's may run
when it is opened or closed: constructors, code in `.init`, functions the start-up code calls if somebody defines them,
resolvers. And what was judged must be what runs: no memory that is both written and executed.
"""

import re

from kernelwright.judge.elf import (
    Section,
    defined_in,
    machine_of,
    relocation_kinds,
    sections_of,
    segments_of,
    tags_of,
)

X86_64, ARM64 = 62, 183
"""Processor families."""
CALLED_BY_START_UP = frozenset(
    (
        *("__gmon_start__", "__cxa_finalize", "_ITM_registerTMCloneTable", "_ITM_deregisterTMCloneTable"),
        *("__register_frame_info", "__deregister_frame_info", "_Jv_RegisterClasses"),
    )
)
"""The compiler's own start-up code calls each of them where it finds one."""
DT_INIT, DT_FINI, DT_TEXTREL, DT_FLAGS, DF_TEXTREL = 12, 13, 22, 30, 4
ARRAYS = {27: "constructors", 28: "destructors", 33: "constructors"}
"""Tags with the sizes of what is called when a file is opened and closed; the last is for programs only."""
OWN_ENTRY_BYTES = 8
"""The compiler itself puts one function into each of them."""
LOADED, STACK, WRITABLE_CODE, CODE = 1, 0x6474_E551, 3, 1
"""Kinds of segments; flags of one that is written and executed, and of one that is executed."""
RESOLVER = 10
"""Kind of a symbol whose address a function of the author's decides."""
RESOLVED = {X86_64: 37, ARM64: 1032}
"""Kind of a relocation that calls one."""
START_UP = {
    X86_64: (
        # sub rsp,8; mov rax,[__gmon_start__]; test rax,rax; je; call; add rsp,8; ret
        rb"(\xf3\x0f\x1e\xfa)?\x48\x83\xec\x08\x48\x8b\x05....\x48\x85\xc0"
        rb"(\x74\x02\xff\xd0|\x74\x05\xe8....)\x48\x83\xc4\x08\xc3",
        rb"(\xf3\x0f\x1e\xfa)?\x48\x83\xec\x08\x48\x83\xc4\x08\xc3",
    ),
    ARM64: (
        # A frame, one call, a return; with and without marks for branch protection.
        rb"(?:\x3f\x23\x03\xd5|\xbf\x23\x03\xd5|\x1f\x20\x03\xd5|\x5f\x24\x03\xd5|\xfd\x7b\xbf\xa9|\xfd\x03\x00\x91)*"
        rb"...[\x94-\x97](?:\xfd\x7b\xc1\xa8|\xbf\x23\x03\xd5|\x1f\x20\x03\xd5)*\xc0\x03\x5f\xd6",
        rb"(?:\x3f\x23\x03\xd5|\xbf\x23\x03\xd5|\x1f\x20\x03\xd5|\x5f\x24\x03\xd5|\xfd\x7b\xbf\xa9|\xfd\x03\x00\x91"
        rb"|\xfd\x7b\xc1\xa8)*\xc0\x03\x5f\xd6",
    ),
}
"""The whole code of `.init` and of `.fini` as the C library's own start-up files make them."""


def refusal(raw: bytes) -> str | None:
    """Return why an artefact may not be opened, or None; a malformed one raises as `sections_of` does."""
    sections = sections_of(raw)
    tags, machine = tags_of(raw, sections), machine_of(raw)
    for tag, what in ARRAYS.items():
        if tags.get(tag, 0) > OWN_ENTRY_BYTES:
            return (
                f"has {what} of its own, which run when the file is opened or closed; make objects of namespace scope "
                "constexpr or static in a function, and leave out <iostream>, which brings one"
            )
    for symbol in defined_in(raw, sections):
        if symbol.name in CALLED_BY_START_UP:
            return f"defines {symbol.name}, which runs when the file is opened or closed; leave it out"
        if symbol.kind == RESOLVER:
            return _resolver(symbol.name)
    for tag, name, code in zip(
        (DT_INIT, DT_FINI), (".init", ".fini"), START_UP.get(machine, ()), strict=False
    ):
        if tag in tags and not re.fullmatch(code, _code_at(raw, sections, tags[tag]), re.DOTALL):
            return (
                f"has code of its own in {name}, which runs when the file is opened or closed; leave it out"
            )
    if RESOLVED.get(machine) in relocation_kinds(raw, sections):
        return _resolver("a function")
    return _writable_code(raw, tags)


def _code_at(raw: bytes, sections: list[Section], address: int) -> bytes:
    found = next((one for one in sections if one.address == address and one.size), None)
    return raw[found.offset : found.offset + found.size] if found else b""


def _resolver(name: str) -> str:
    return (
        f"has {name} chosen by a resolver, which runs when the file is opened; leave out ifunc and target_clones: "
        "the build is for this very processor"
    )


def _writable_code(raw: bytes, tags: dict[int, int]) -> str | None:
    segments = segments_of(raw)
    if any(one.kind == LOADED and one.flags & WRITABLE_CODE == WRITABLE_CODE for one in segments):
        return "has memory that is both written and executed; leave out sections with flags of their own"
    if DT_TEXTREL in tags or tags.get(DT_FLAGS, 0) & DF_TEXTREL:
        return "has code that is changed when it is loaded; leave out absolute addresses in assembly"
    if not any(one.kind == STACK and not one.flags & CODE for one in segments):
        return "asks for an executable stack; leave out what makes the linker ask for one"
    return None
