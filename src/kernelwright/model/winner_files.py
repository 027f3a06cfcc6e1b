"""The winners in a folder of kernels, with the paths their files have now."""

from pathlib import Path

from kernelwright.core.manifest import StoredFile
from kernelwright.core.messages.model import Winner, WinnerUnit
from kernelwright.store.manifest import certified, read_manifest


def winners_of(folder: Path) -> tuple[Winner, ...]:
    """Return the winners of a folder of kernels, in the order of its manifest."""
    manifest = read_manifest(folder)
    return tuple(
        Winner(
            problem_hash=entry.problem_hash,
            candidate_hash=entry.candidate_hash,
            backend=entry.backend,
            case=entry.case,
            artefact=str(folder / entry.library.name) if entry.library else "",
            artefact_hash=entry.library.hash if entry.library else "",
            source=_text(folder, entry.source),
            values=entry.values,
            plan=entry.plan,
            units=tuple(
                WinnerUnit(
                    key=unit.key,
                    binary=str(folder / unit.binary.name),
                    binary_hash=unit.binary.hash,
                    facts=str(folder / unit.facts.name),
                    facts_hash=unit.facts.hash,
                )
                for unit in entry.units
            ),
            device=entry.device,
            region=_text(folder, entry.region),
        )
        for entry in manifest.entries
    )


def _text(folder: Path, file: StoredFile | None) -> str:
    return certified(folder / file.name, file.hash).decode() if file else ""
