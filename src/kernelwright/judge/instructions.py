"""Instructions no kernel needs: those that enter the kernel of the system, and those that read a clock.

Their bytes are searched for in everything that is executed. On ARM that decides. On x86 the same bytes may lie inside
another instruction, once in thirty kernels: then the instructions are counted off from the symbol before, and only one
that starts there is refused. Code that jumps into the middle of its own instructions is not found out.
"""

import re
from bisect import bisect_right

from kernelwright.judge.at_load import ARM64, X86_64
from kernelwright.judge.elf import EMPTY, EXECUTABLE, defined_in, machine_of, sections_of

SYSTEM, CLOCK = "enters the operating system", "reads a clock"
REMEDY = "a kernel gets all it needs as arguments: leave it out"
X86 = {
    b"\x0f\x05": ("syscall", SYSTEM),
    b"\x0f\x34": ("sysenter", SYSTEM),
    b"\xcd\x80": ("int 0x80", SYSTEM),
    b"\x0f\x31": ("rdtsc", CLOCK),
    b"\x0f\x33": ("rdpmc", CLOCK),
    b"\x0f\x01\xf9": ("rdtscp", CLOCK),
    b"\x0f\x01\xfd": ("rdpru", CLOCK),
}
ANY_X86 = re.compile(b"(?=(" + b"|".join(map(re.escape, X86)) + b"))")
ARM = {
    "svc": (re.compile(rb"(?=[\x01\x21\x41\x61\x81\xa1\xc1\xe1].[\x00-\x1f]\xd4)", re.DOTALL), SYSTEM),
    # Of the virtual and the physical timer, ordered or not, and of the cycles.
    "mrs": (re.compile(rb"(?=(?:[\x20-\x5f\xa0-\xdf]\xe0|[\x00-\x1f]\x9d)\x3b\xd5)", re.DOTALL), CLOCK),
}
READ_HERE = ("x86_64", "aarch64")
"""Machines whose instructions are looked at; elsewhere only the tables are."""

PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
INVALID = frozenset(b"\x06\x07\x0e\x16\x17\x1e\x1f\x27\x2f\x37\x3f\x60\x61\x82\x9a\xce\xd4\xd5\xd6\xea")
WITH_OPERAND = frozenset(
    (
        *(row + column for row in range(0, 0x40, 8) for column in range(4)),
        *(0x63, 0x69, 0x6B, *range(0x80, 0x90), 0xC0, 0xC1, 0xC6, 0xC7),
        *(*range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xF6, 0xF7, 0xFE, 0xFF),
    )
)
"""One-byte opcodes followed by a byte that names registers or memory."""
ONE_BYTE = frozenset(
    (
        *(row + 4 for row in range(0, 0x40, 8)),
        *(0x6A, 0x6B, *range(0x70, 0x81), 0x83, 0xA8, *range(0xB0, 0xB8), 0xC0, 0xC1, 0xC6, 0xCD),
        *(*range(0xE0, 0xE8), 0xEB),
    )
)
"""One-byte opcodes with a number of one byte."""
WORD = frozenset((*(row + 5 for row in range(0, 0x40, 8)), 0x68, 0x69, 0x81, 0xA9, 0xC7))
"""One-byte opcodes with a number as wide as the operand, at most four bytes."""
BARE_0F = frozenset(
    (
        *(*range(0x05, 0x0A), 0x0B, 0x0E, *range(0x30, 0x38), 0x77, *range(0xA0, 0xA3), 0xA8, 0xA9, 0xAA),
        *range(0xC8, 0xD0),
    )
)
BYTE_0F = frozenset((0x0F, 0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6))
"""Opcodes behind 0F: those that stand alone, and those with a number of one byte."""


def refusal(raw: bytes) -> str | None:
    """Return which instruction an artefact may not hold, or None."""
    sections, machine = sections_of(raw), machine_of(raw)
    for number, section in enumerate(sections):
        if not section.flags & EXECUTABLE or section.kind == EMPTY:
            continue
        code = raw[section.offset : section.offset + section.size]
        if machine == ARM64:
            for name, (pattern, what) in ARM.items():
                if any(found.start() % 4 == 0 for found in pattern.finditer(code)):
                    return f"holds the instruction {name}, which {what}; {REMEDY}"
        if machine == X86_64 and (places := [(found.start(), found[1]) for found in ANY_X86.finditer(code)]):
            starts = sorted(
                {
                    0,
                    *(
                        one.address - section.address
                        for one in defined_in(raw, sections)
                        if one.home == number
                    ),
                }
            )
            for place, bytes_there in places:
                if starts_at(code, starts[bisect_right(starts, place) - 1], place):
                    name, what = X86[bytes_there]
                    return f"holds the instruction {name}, which {what}; {REMEDY}"
    return None


def starts_at(code: bytes, start: int, place: int) -> bool:
    """Tell whether an instruction itself lies there, counted off from `start`; what cannot be read counts as one."""
    while start <= place:
        try:
            opcode, start = instruction(code, start)
        except (IndexError, ValueError):
            return True
        if opcode == place:
            return True
    return False


def instruction(code: bytes, start: int) -> tuple[int, int]:
    """Return where the code of a 64-bit x86 instruction lies behind its prefixes, and where the next one starts."""
    at, short, wide = start, False, False
    while code[at] in PREFIXES:
        short |= code[at] == 0x66
        at += 1
    if 0x40 <= code[at] < 0x50:
        wide = bool(code[at] & 8)
        at += 1
    first = code[at]
    if first in (0xC5, 0xC4, 0x62):
        return at, _vector(code, at)
    if first == 0x0F:
        return at, _behind_0f(code, at + 1)
    if first in INVALID:
        raise ValueError(f"no instruction starts with {first:#x}")
    end, number = at + 1, 2 if short and not wide else 4
    if first in WITH_OPERAND:
        kind = code[end] >> 3 & 7
        end += operand_bytes(code, end)
        if first in (0xF6, 0xF7) and kind < 2:
            end += 1 if first == 0xF6 else number
    if first in (0xE8, 0xE9):
        end += 4  # whatever the prefix says
    elif first & 0xFC == 0xA0:
        end += 8
    elif first & 0xF8 == 0xB8:
        end += 8 if wide else number
    elif first in (0xC2, 0xCA):
        end += 2
    elif first == 0xC8:
        end += 3
    end += number * (first in WORD) + (first in ONE_BYTE)
    return at, end


def _behind_0f(code: bytes, at: int) -> int:
    opcode = code[at]
    if opcode in (0x38, 0x3A):
        return at + 2 + operand_bytes(code, at + 2) + (opcode == 0x3A)
    if 0x80 <= opcode < 0x90:
        return at + 5
    if opcode in BARE_0F:
        return at + 1
    return at + 1 + operand_bytes(code, at + 1) + (opcode in BYTE_0F)


def _vector(code: bytes, at: int) -> int:
    """Return the end of an instruction with a vector prefix, which also names the table of its opcode."""
    first = code[at]
    table = 1 if first == 0xC5 else code[at + 1] & (0x1F if first == 0xC4 else 7)
    at += {0xC5: 2, 0xC4: 3, 0x62: 4}[first]
    if table not in (1, 2, 3, 5, 6):
        raise ValueError(f"no table of vector instructions has number {table}")
    if table == 1 and code[at] == 0x77:
        return at + 1
    has_number = table == 3 or (table == 1 and code[at] in BYTE_0F)
    return at + 1 + operand_bytes(code, at + 1) + has_number


def operand_bytes(code: bytes, at: int) -> int:
    """Return the length of the bytes that name registers or memory."""
    mode, register = code[at] >> 6, code[at] & 7
    if mode == 3:
        return 1
    more = 0
    if register == 4:
        more, register = 1, code[at + 1] & 7
    wide = mode == 2 or (mode == 0 and register == 5)
    return 1 + more + (4 if wide else mode)
