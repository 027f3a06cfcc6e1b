"""The inbox of a run: candidates that a person or a program drops into its folder, to be judged like any other.

1. `drop` writes one file, whole or not at all. Who writes there by hand is trusted no more than any other author.
2. `collect` journals what lies there for a problem and removes the file afterwards: a run that is killed in between
   finds the file again, and its candidate in the tree.
3. What cannot be a candidate of the run is moved to `inbox/refused` with the reason beside it.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from kernelwright.core.brief import Proposal
from kernelwright.core.candidate import Author, Candidate, Origin
from kernelwright.core.events import Body, CandidateProposed, Noted
from kernelwright.core.frozen import Frozen
from kernelwright.core.marked import outside_unchanged, plain
from kernelwright.core.normal import key_of, known_keys
from kernelwright.core.problem import Problem
from kernelwright.core.search import nodes_of
from kernelwright.core.tree import Node, Tree
from kernelwright.engine.run import Run
from kernelwright.store.disk import disk_errors, make_folder, sync_folder

FOLDER, REFUSED, SUFFIX = "inbox", "refused", ".json"
REASON = ".reason.txt"
SUBMITTED = "submitted"
"""How the detail of a submitted candidate's author begins."""
MAX_BYTES = 8 << 20
MAX_NAME, MAX_NOTE = 80, 4000
AT_ONCE = 8
"""Submissions of a problem judged together; the others wait for the next step."""
DESCENDS = 0.5
"""Share of the best's lines that a source must hold to count as made from it."""


class Submission(Frozen):
    """A file of the inbox."""

    problem_hash: str
    """For which problem."""
    parent: str = ""
    """Hash of the candidate it was made from, or its beginning; empty leaves that to be seen."""
    proposal: Proposal
    """What is to be judged."""


class Refused(ValueError):
    """A file that is no candidate of the run; the message says why."""


def drop(folder: Path, problem_hash: str, proposal: Proposal, parent: str = "") -> Path:
    """Put a proposal into the inbox of a run folder and return its file, which is there whole or not at all."""
    inbox = folder / FOLDER
    given = Submission(problem_hash=problem_hash, parent=parent, proposal=proposal)
    name = f"{problem_hash[:12]}-{os.urandom(8).hex()}{SUFFIX}"
    with disk_errors(inbox):
        make_folder(inbox)
        part = inbox / f".{name}.part"
        try:
            with part.open("x", encoding="utf-8") as stream:
                stream.write(given.model_dump_json())
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(inbox / name)
        finally:
            part.unlink(missing_ok=True)
        sync_folder(inbox)
    return inbox / name


def refusal(folder: Path, name: str) -> str | None:
    """Return why a file of a run's inbox was refused; None if it was not."""
    try:
        return (folder / FOLDER / REFUSED / f"{name}{REASON}").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None


def has_mail(folder: Path) -> bool:
    """Tell whether anything lies in the inbox of a run folder."""
    return next(_waiting(folder), None) is not None


def collect(run: Run, problem: Problem, most: int = AT_ONCE) -> bool:
    """Journal what was submitted for a problem and is new, so many at most; tell whether anything was."""
    found = list(_waiting(run.folder)) if problem.hash in run.tree.best else []
    known = known_keys(run.tree, problem.hash) if found else {}
    fresh: list[tuple[Path, Candidate]] = []
    done: list[Path] = []
    told: list[Body] = []
    for path in found:
        try:
            given = _read(path)
            if given is None or _other(run.tree, given, problem):
                continue
            candidate = _candidate(run, problem, given)
        except Refused as reason:
            _refuse(path, str(reason))
            told.append(Noted(text=f"a submission is refused: {path.name}: {reason}"))
            continue
        if key_of(candidate) in known:
            done.append(path)
            continue
        if len(fresh) < most:
            known[key_of(candidate)] = candidate.hash
            fresh.append((path, candidate))
    told += [CandidateProposed(problem_hash=problem.hash, candidate=one) for _, one in fresh]
    if told:
        run.record(told)
    for path in (*done, *(path for path, _ in fresh)):
        with disk_errors(path):
            path.unlink(missing_ok=True)
    return bool(fresh)


def submitted(run: Run, problem: Problem) -> list[Node]:
    """Return the submitted candidates of a problem that nothing is decided about."""
    return [
        node
        for node in nodes_of(run.tree, problem.hash)
        if node.decision is None and node.candidate.author.detail.startswith(SUBMITTED)
    ]


def _waiting(folder: Path) -> Iterator[Path]:
    """Yield what lies in the inbox, oldest first; what is being written has a name that begins with a dot."""
    try:
        entries = [one for one in os.scandir(folder / FOLDER) if not one.name.startswith(".")]
    except FileNotFoundError:
        return
    for entry in sorted(entries, key=_age):
        if entry.name != REFUSED:
            yield Path(entry.path)


def _age(entry: "os.DirEntry[str]") -> tuple[int, str]:
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns, entry.name
    except FileNotFoundError:
        return 0, entry.name


def _read(path: Path) -> Submission | None:
    """Return what a file holds; None if it is gone."""
    try:
        # Never through a link, and never waiting for the other end of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"it cannot be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused("it is no file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise Refused(f"it has more than {MAX_BYTES} bytes")
    try:
        return Submission.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole of it"
        raise Refused(f"it is no submission: {where}: {first['msg']}") from error


def _other(tree: Tree, given: Submission, problem: Problem) -> bool:
    """Tell whether a submission is for another problem of the run."""
    if given.problem_hash not in tree.problems:
        raise Refused("it is for a problem that is not in this run")
    return given.problem_hash != problem.hash


def _candidate(run: Run, problem: Problem, given: Submission) -> Candidate:
    proposal = given.proposal
    if proposal.backend not in run.seeds.backends:
        languages = ", ".join(run.seeds.backends)
        raise Refused(f"the run has no use for language {proposal.backend[:40]!r}; it takes {languages}")
    if run.seeds.given and (words := outside_unchanged(run.seeds.given.source, plain(proposal.source))):
        raise Refused(words)
    name, detail = _line(proposal.author.name, MAX_NAME), _line(proposal.author.detail, MAX_NAME)
    author = Author(name=name or "nobody", detail=f"{SUBMITTED} {detail}".rstrip())
    named = proposal.model_copy(update={"author": author, "note": _line(proposal.note, MAX_NOTE)})
    parents = _parents(run.tree, problem, given)
    try:
        return named.candidate(problem, parents)
    except ValidationError as error:
        raise Refused(f"it is no candidate: {error.errors()[0]['msg']}") from error


def _line(text: str, most: int) -> str:
    """Return a text in one line of bounded length; what would steer a terminal is left out."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())[:most]


def _parents(tree: Tree, problem: Problem, given: Submission) -> Sequence[str]:
    """Return what a submission was made from: the candidate it names, or the best if it holds most of its lines."""
    if given.parent:
        keys = [key for owner, key in tree.nodes if owner == problem.hash and key.startswith(given.parent)]
        if len(keys) != 1:
            raise Refused(
                f"it names the parent {given.parent[:64]!r}, and {len(keys)} candidates are called so"
            )
        return keys
    best = tree.best.get(problem.hash)
    if best is None:
        return ()
    above = tree.nodes[problem.hash, best].candidate
    is_kin = above.backend == given.proposal.backend and above.origin is Origin.AUTHOR
    return (best,) if is_kin and descends(given.proposal.source, above.source) else ()


def descends(source: str, parent: str) -> bool:
    """Tell whether a source looks made from another: most lines of that are in it."""
    lines, before = (
        Counter(line.strip() for line in text.splitlines() if line.strip()) for text in (source, parent)
    )
    return (lines & before).total() >= DESCENDS * before.total() > 0


def _refuse(path: Path, reason: str) -> None:
    """Put a file aside, with the reason beside it."""
    refused = path.parent / REFUSED
    with disk_errors(refused):
        make_folder(refused)
        (refused / f"{path.name}{REASON}").write_text(f"{reason}\n", encoding="utf-8")
        try:
            path.replace(refused / path.name)
        except FileNotFoundError:
            return
        except OSError:
            # A folder of the same name lies there already: a name of its own is found for it.
            path.replace(refused / f"{path.name}.{os.urandom(4).hex()}")
