"""Folders a user names may be somebody else's: what lies outside of them is not read, quoted or kept."""

import os
from pathlib import Path

import pytest

from kernelwright.agents.scripted import Folder
from kernelwright.core.brief import Brief
from kernelwright.core.errors import BadInput
from kernelwright.store.knowledge import read_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text("the key of the engine")
    found = tmp_path / "given"
    (found / "constraints").mkdir(parents=True)
    (found / "rules.md").write_text("Never call the vendor's library.")
    return found


@pytest.mark.parametrize(
    "target", ["/proc/self/environ", "../../key", "{outside}/key", "{outside}/no-such-file"]
)
def test_a_document_that_is_a_link_out_of_its_folder_is_refused_by_name(folder: Path, target: str) -> None:
    (folder / "constraints" / "house.md").symlink_to(target.format(outside=folder.parent))
    with pytest.raises(BadInput, match=r"constraints/house\.md: it is a link that leads out of the folder"):
        read_folder(folder)


def test_a_document_that_is_no_plain_file_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.txt")
    with pytest.raises(BadInput, match=r"pipe\.txt: it is no plain file"):
        read_folder(folder)


def test_links_inside_a_folder_and_a_link_to_the_folder_itself_are_read(folder: Path, tmp_path: Path) -> None:
    (folder / "again.md").symlink_to("rules.md")
    (folder / "constraints" / "elsewhere").symlink_to(tmp_path)  # a folder that leads out is not gone into
    (tmp_path / "outside.md").write_text("not of the folder")
    (tmp_path / "named").symlink_to(folder)
    assert [(one.name, one.text[:5]) for one in read_folder(tmp_path / "named")] == [
        ("again.md", "Never"),
        ("rules.md", "Never"),
    ]


def test_a_scripted_proposal_that_is_a_link_out_of_its_folder_is_none(make, folder: Path) -> None:
    (folder / "kernel.cpp").symlink_to("/proc/self/environ")
    os.mkfifo(folder / "pipe.cpp")
    (folder / "rules.md").unlink()
    found = Folder(folder).propose(Brief(problem=make.problem(), parents=(), evaluations=()))
    assert found.proposals == ()
    assert "kernel.cpp: it is a link that leads out of the folder" in found.reason
    assert "pipe.cpp: it is no plain file" in found.reason
    (folder / "own.cpp").write_text('extern "C" int kernel_fn();')
    (proposal,) = Folder(folder).propose(Brief(problem=make.problem(), parents=(), evaluations=())).proposals
    assert proposal.author.detail == "own.cpp"
