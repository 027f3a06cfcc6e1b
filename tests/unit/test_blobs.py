"""A blob is whole or absent, is found by its content, and is checked when it is read."""

import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.core.errors import BlobMissing, DiskFull, NotWritable
from kernelwright.core.frozen import digest
from kernelwright.store.blobs import Blobs

CONTENT = b"// a kernel\n\x00\xff"
NOBODY = 65534


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def passes_in_a_child(act: Callable[[], None]) -> bool:
    """Tell whether an action with assertions passes in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@settings(max_examples=10, deadline=None)
@given(contents=st.lists(st.binary(max_size=200), max_size=5))
def test_every_content_comes_back_under_its_hash(contents: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        blobs = Blobs(Path(name))
        hashes = [blobs.put(content) for content in contents]
        assert hashes == [digest(content) for content in contents]
        assert [blobs.get(blob_hash) for blob_hash in hashes] == contents
        assert files_in(Path(name)) == sorted({blobs.path(blob_hash) for blob_hash in hashes})


def test_a_blob_lies_in_a_folder_of_its_first_two_digits_readable_by_others(tmp_path: Path) -> None:
    blob_hash = Blobs(tmp_path).put(CONTENT)
    path = tmp_path / "blobs" / blob_hash[:2] / blob_hash
    assert Blobs(tmp_path).path(blob_hash) == path
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o644


def test_content_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    path = blobs.path(blobs.put(CONTENT))
    before = path.stat().st_ino
    blobs.put(CONTENT)
    assert path.stat().st_ino == before


def test_parallel_writers_of_the_same_content_leave_one_whole_blob(tmp_path: Path) -> None:
    large = CONTENT * 10_000
    with ThreadPool(8) as pool:
        hashes = pool.map(lambda _: Blobs(tmp_path).put(large), range(24))
    assert set(hashes) == {digest(large)}
    assert files_in(tmp_path) == [Blobs(tmp_path).path(hashes[0])]
    assert Blobs(tmp_path).get(hashes[0]) == large


def test_an_absent_blob_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BlobMissing, match="is not in the store"):
        Blobs(tmp_path).get(digest(b"never stored"))


@pytest.mark.parametrize("damaged", [b"", CONTENT[:-1], CONTENT + b"!"])
def test_a_blob_with_other_content_is_missing_until_it_is_put_again(tmp_path: Path, damaged: bytes) -> None:
    blobs = Blobs(tmp_path)
    blob_hash = blobs.put(CONTENT)
    blobs.path(blob_hash).write_bytes(damaged)
    with pytest.raises(BlobMissing, match="content its name promises"):
        blobs.get(blob_hash)
    blobs.put(CONTENT)
    assert blobs.get(blob_hash) == CONTENT


@pytest.mark.parametrize("name", ["", "../../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_a_name_that_is_no_hash_leads_nowhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(BlobMissing, match="64 hex digits"):
        Blobs(tmp_path).get(name)


def test_a_blob_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    blobs.path(digest(CONTENT)).mkdir(parents=True)
    with pytest.raises(BlobMissing, match="cannot be read: Is a directory"):
        blobs.get(digest(CONTENT))


def test_a_full_disk_leaves_no_half_written_blob(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    small = blobs.put(b"small")

    def fill() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(DiskFull, match="free some space"):
            blobs.put(bytes(5000))
        assert files_in(tmp_path) == [blobs.path(small)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert blobs.get(blobs.put(bytes(5000))) == bytes(5000)

    assert passes_in_a_child(fill)


def test_a_read_only_folder_is_read_and_not_written() -> None:
    # A folder of our own: pytest's is closed to others, and root is not bound by permission bits.
    folder = Path(tempfile.mkdtemp())
    blobs = Blobs(folder)
    blob_hash = blobs.put(CONTENT)
    for path in (*(path for path in folder.rglob("*") if path.is_dir()), folder):
        path.chmod(0o555)

    def look() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        assert blobs.get(blob_hash) == CONTENT
        with pytest.raises(NotWritable, match="Permission denied"):
            blobs.put(b"more")

    try:
        assert passes_in_a_child(look)
    finally:
        for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            path.chmod(0o755)
        shutil.rmtree(folder)
