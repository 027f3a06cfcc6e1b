"""Content-addressed blobs: sources, logs, artefacts and profiles, each under the hash of its bytes.

A blob is written to a temporary file beside its place, synced, renamed and its folder synced, so a reader
finds the whole content or nothing, whatever dies when. Two writers of the same content write the same file.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core.errors import BlobMissing
from kernelwright.core.frozen import digest
from kernelwright.store.disk import disk_errors, make_folder, replace_file, sync_folder

HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Blobs:
    """The blobs of one run folder."""

    folder: Path
    """The run folder; blobs lie in `blobs/` inside it."""

    def path(self, blob_hash: str) -> Path:
        """Return where a blob lies, whether or not it is there."""
        # A hash may come from a journal somebody edited: `../` must not lead out of the folder.
        if not HASH.fullmatch(blob_hash):
            raise BlobMissing(blob_hash, "is not named by 64 hex digits")
        return self.folder / "blobs" / blob_hash[:2] / blob_hash

    def put(self, content: bytes) -> str:
        """Store bytes durably and return their hash; content already there is not written again."""
        blob_hash = digest(content)
        target = self.path(blob_hash)
        with disk_errors(target):
            make_folder(target.parent)
            if _holds(target, content):
                sync_folder(target.parent)  # its writer may not have done so yet
            else:
                replace_file(target, content)
        return blob_hash

    def get(self, blob_hash: str) -> bytes:
        """Return the bytes of a blob, checked against its name."""
        try:
            content = self.path(blob_hash).read_bytes()
        except FileNotFoundError as error:
            raise BlobMissing(blob_hash, "is not in the store") from error
        except OSError as error:
            raise BlobMissing(blob_hash, f"cannot be read: {error.strerror}") from error
        if digest(content) != blob_hash:
            raise BlobMissing(blob_hash, "does not have the content its name promises")
        return content


def _holds(target: Path, content: bytes) -> bool:
    """Tell whether a file has this very content; a damaged one is to be replaced."""
    try:
        return target.read_bytes() == content
    except FileNotFoundError:
        return False
