"""The folder of drop-in kernels on disk: its manifest, and files that must still be what was certified."""

from pathlib import Path

from kernelwright.core.errors import BadInput, BlobMissing, NotFound
from kernelwright.core.frozen import digest
from kernelwright.core.manifest import HELP, NAME, Manifest, parse


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder of drop-in kernels; the files it names are checked when they are loaded."""
    path = folder / NAME
    try:
        return parse(path.read_text(), path)
    except FileNotFoundError as error:
        raise NotFound("Manifest", path, "Give a folder that `kernelwright optimize` wrote.") from error
    except UnicodeDecodeError as error:
        raise BadInput(str(path), "it is no text", HELP) from error


def certified(path: Path, content_hash: str) -> bytes:
    """Return a file's content, refusing one that is not what was certified."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BlobMissing(content_hash, f"cannot be read: {error.strerror}") from error
    if digest(content) != content_hash:
        raise BlobMissing(content_hash, f"does not match its certificate ({path.name})")
    return content
