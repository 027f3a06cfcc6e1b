"""The audit of native code: what it wants from outside, what of it runs unasked, and which instructions it holds.

It is read from the file in milliseconds and raises the bar; it proves nothing. A certified kernel runs in the user's
process with the user's rights, and code that means harm can hide from any reading of tables.
"""

import platform
import struct

from kernelwright.core.verdict import Status
from kernelwright.judge import at_load, delegation, imports, instructions
from kernelwright.judge.delegation import Finding
from kernelwright.judge.elf import is_elf, wants


def audit(raw: bytes, *, guarded: bool = True) -> Finding | None:
    """Return why an artefact is refused, or None; what is no ELF file is source and judged as such.

    Without the guards the list of what may be used is left out: then only what delegates, runs by itself or enters the
    operating system is refused, and everything else meets the walls around the runner.
    """
    if not is_elf(raw):
        return None
    try:
        libraries, wanted = wants(raw)
        if found := delegation.finding(libraries, wanted):
            return found
        reason = (
            at_load.refusal(raw)
            or instructions.refusal(raw)
            or (imports.refusal(wanted) if guarded else None)
        )
    except (struct.error, ValueError, IndexError) as error:
        return Finding(Status.REFUSED, f"the artefact is not a well-formed ELF file: {error}")
    return Finding(Status.REFUSED, reason) if reason else None


def looked_at(*, guarded: bool) -> str:
    """Return what the audit reads here, by name: instructions of other processors are not known to it."""
    parts = {"list": guarded, "load": True, "instructions": platform.machine() in instructions.READ_HERE}
    return "+".join(("symbols", *(name for name, is_read in parts.items() if is_read)))
