"""What an ELF file says of itself, read from its tables; nothing is executed."""

import struct
from typing import NamedTuple

from kernelwright.core.frozen import digest

MAGIC = b"\x7fELF\x02\x01"
"""64 bits, little end first: what Linux runs on every processor we build for, and what a GPU's driver loads."""
DYNAMIC, SYMBOLS, VERSIONS, NEEDED_VERSIONS, EMPTY = 6, 11, 0x6FFF_FFFF, 0x6FFF_FFFE, 8
"""Section types."""
SYMBOL_TABLES = (2, 11)
"""Section types of the symbols a debugger reads, and of those the loader reads."""
RELOCATIONS = 4
"""Section type."""
EXECUTABLE = 4
"""Flag of a section that holds code."""
DT_NEEDED, WEAK = 1, 2
DEBUG = (".debug", ".nv_debug", ".rela.debug", ".rela.nv_debug")
"""Sections that only a debugger reads; they name the folder of the build."""


class Section(NamedTuple):
    """One section of a file."""

    name: str
    kind: int
    offset: int
    size: int
    link: int
    flags: int
    address: int


class Segment(NamedTuple):
    """What the loader maps, or is told."""

    kind: int
    flags: int


class Symbol(NamedTuple):
    """A symbol an artefact defines."""

    name: str
    kind: int
    home: int
    """Number of its section."""
    address: int


class Wanted(NamedTuple):
    """A symbol an artefact does not define."""

    name: str
    library: str
    """The library its version binds it to; empty if it has none."""
    is_weak: bool
    """Whether it may stay unbound."""


def is_elf(raw: bytes) -> bool:
    """Tell whether these bytes are an ELF file."""
    return raw.startswith(MAGIC)


def sections_of(raw: bytes) -> list[Section]:
    """Return the sections of a file in order; a malformed one is a struct.error, ValueError or IndexError."""
    (start,) = struct.unpack_from("<Q", raw, 40)
    entry_size, count, named_by = struct.unpack_from("<HHH", raw, 58)
    entries = [struct.unpack_from("<IIQQQQI", raw, start + number * entry_size) for number in range(count)]
    names = entries[named_by][4]
    return [
        Section(text_at(raw, names + name), kind, offset, size, link, flags, address)
        for name, kind, flags, address, offset, size, link in entries
    ]


def machine_of(raw: bytes) -> int:
    """Return the number of the processor family a file is made for."""
    return int(struct.unpack_from("<H", raw, 18)[0])


def segments_of(raw: bytes) -> list[Segment]:
    """Return what the loader acts on."""
    (start,) = struct.unpack_from("<Q", raw, 32)
    entry_size, count = struct.unpack_from("<HH", raw, 54)
    return [Segment(*struct.unpack_from("<II", raw, start + number * entry_size)) for number in range(count)]


def tags_of(raw: bytes, sections: list[Section]) -> dict[int, int]:
    """Return what the loader is told by number; of what is told more than once, the last."""
    (dynamic,) = (section for section in sections if section.kind == DYNAMIC)
    return dict(struct.iter_unpack("<QQ", raw[dynamic.offset : dynamic.offset + dynamic.size]))


def defined_in(raw: bytes, sections: list[Section]) -> list[Symbol]:
    """Return every symbol a file defines, whoever the table is for."""
    return [
        Symbol(text_at(raw, sections[table.link].offset + name), info & 15, home, address)
        for table in sections
        if table.kind in SYMBOL_TABLES
        for name, info, home, address in struct.iter_unpack(
            "<IBxHQ8x", raw[table.offset : table.offset + table.size]
        )
        if home
    ]


def relocation_kinds(raw: bytes, sections: list[Section]) -> set[int]:
    """Return the kinds of relocations the loader is to carry out."""
    return {
        kind
        for table in sections
        if table.kind == RELOCATIONS
        for (kind,) in struct.iter_unpack("<8xI12x", raw[table.offset : table.offset + table.size])
    }


def text_at(raw: bytes, offset: int) -> str:
    """Return the text that starts there."""
    return raw[offset : raw.index(b"\0", offset)].decode(errors="replace")


def code_digest(raw: bytes) -> str:
    """Return a digest of everything in a file but what is there for a debugger."""
    if not is_elf(raw):
        return digest(raw)
    parts = [
        f"{section.name} {section.kind} {digest(raw[section.offset : section.offset + section.size])}"
        if section.kind != EMPTY
        else f"{section.name} {section.size}"
        for section in sections_of(raw)
        if not section.name.startswith(DEBUG)
    ]
    return digest("\n".join(parts))


def wants(raw: bytes) -> tuple[list[str], list[Wanted]]:
    """Return the libraries a shared object names and the symbols it wants from outside."""
    sections = sections_of(raw)
    found = {section.kind: section for section in sections}
    if DYNAMIC not in found or SYMBOLS not in found:
        raise ValueError("no dynamic section or no dynamic symbols")
    dynamic, symbols = found[DYNAMIC], found[SYMBOLS]
    libraries = []
    for offset in range(dynamic.offset, dynamic.offset + dynamic.size, 16):
        tag, value = struct.unpack_from("<QQ", raw, offset)
        if tag == DT_NEEDED:
            libraries.append(text_at(raw, sections[dynamic.link].offset + value))
    owners = _owners(raw, found.get(NEEDED_VERSIONS), sections)
    versions = found.get(VERSIONS)
    wanted = []
    for number in range(1, symbols.size // 24):
        name, info, home = struct.unpack_from("<IBxH", raw, symbols.offset + number * 24)
        if home == 0:
            version = struct.unpack_from("<H", raw, versions.offset + 2 * number)[0] if versions else 0
            spelled = text_at(raw, sections[symbols.link].offset + name)
            wanted.append(Wanted(spelled, owners.get(version & 0x7FFF, ""), info >> 4 == WEAK))
    return libraries, wanted


def _owners(raw: bytes, table: Section | None, sections: list[Section]) -> dict[int, str]:
    """Return the library each version number of a wanted symbol stands for."""
    owners: dict[int, str] = {}
    if table is None:
        return owners
    names, offset = sections[table.link].offset, table.offset
    while True:
        count, library, first, step = struct.unpack_from("<2xHIII", raw, offset)
        place = offset + first
        for _ in range(count):
            version, following = struct.unpack_from("<6xH4xI", raw, place)
            owners[version] = text_at(raw, names + library)
            place += following
        if not step:
            return owners
        offset += step
