"""An author that was written beforehand: proposals from a list or a folder, each given once, in order.

Which comes next follows from the brief alone: the first one that the tree does not hold. In a folder, files are taken
by name; those in a subfolder named like the op are for that op alone. A `.json` file holds a reply as any program
would give it, any other file is a source.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.agents._reply import read_reply
from kernelwright.core.brief import Answer, Brief, Proposal
from kernelwright.core.candidate import Author
from kernelwright.core.normal import key_of
from kernelwright.core.plugins import language_of
from kernelwright.store.disk import not_of_folder

SUMMARY = "proposals from a folder, each given once: --author scripted:FOLDER"
EXTENSIONS = {".cpp": "cpp", ".cc": "cpp", ".cu": "cuda"}


def author(detail: str = "") -> "Folder":
    """Return the author of a folder."""
    return Folder(Path(detail))


@dataclass(frozen=True)
class Scripted:
    """Proposals in a list."""

    proposals: Sequence[Proposal]

    def propose(self, brief: Brief) -> Answer:
        """Return the first proposal that the tree does not hold."""
        for proposal in self.proposals:
            if key_of(proposal.candidate(brief.problem)) not in brief.known:
                return Answer(proposals=(proposal,))
        return Answer(reason=f"all {len(self.proposals)} proposals were given")


@dataclass(frozen=True)
class Folder:
    """Proposals in a folder, read anew for every brief: a person may add files while a run goes on."""

    folder: Path

    def propose(self, brief: Brief) -> Answer:
        """Return the first proposal that the tree does not hold; files that cannot be read are named."""
        found: list[Proposal] = []
        troubles: list[str] = []
        for path in self._files(brief.problem.op):
            problem = not_of_folder(path, self.folder)
            answer = Answer(reason=problem) if problem else _read(path)
            found += answer.proposals
            if not answer.proposals:
                troubles.append(f"{path.name}: {answer.reason}")
        answer = Scripted(found).propose(brief)
        if answer.proposals or not troubles:
            return answer
        return Answer(reason="; ".join([answer.reason, *troubles]))

    def _files(self, op: str) -> Iterator[Path]:
        for folder in (self.folder / op, self.folder):
            if folder.is_dir():
                yield from sorted(path for path in folder.iterdir() if not path.is_dir())


def _read(path: Path) -> Answer:
    """Return what a file proposes."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return Answer(reason=f"cannot be read: {error}")
    whose = Author(name="scripted", detail=path.name)
    if path.suffix == ".json":
        return read_reply(text, whose)
    backend = EXTENSIONS.get(path.suffix) or _python_backend(path, text) or language_of(path.suffix)
    if backend is None:
        return Answer(reason="no language could be told from its name and content")
    return Answer(proposals=(Proposal(source=text, backend=backend, author=whose),))


def _python_backend(path: Path, text: str) -> str | None:
    """Return the language of a Python file by what it defines."""
    if path.suffix != ".py":
        return None
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "triton"  # the static guards refuse the file by name
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if "plan" in defined:
        return "triton"
    return "python" if defined & {"kernel_fn", "ModelNew"} else None
