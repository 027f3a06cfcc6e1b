"""Any program as an author: the brief as JSON on its standard input, its answer as JSON on its standard output.

1. The program starts in a session and a folder of its own, with an environment that holds no key.
2. It is given the brief and a time limit; what it writes is read up to a bound.
3. Its answer is checked. Garbage, silence, a bad exit or a late answer is no proposal, with the reason.
4. It is stopped when nobody waits for it any more, or when our own process dies; it and all it started are gone a
   second later (`_keeper`).
"""

import os
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from kernelwright.agents._reply import read_reply
from kernelwright.core.brief import Answer, Brief
from kernelwright.core.candidate import Author
from kernelwright.core.halt import Halt

SUMMARY = "any program: JSON brief on stdin, JSON proposals on stdout; --author command:'PROGRAM ARGUMENTS'"
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TERM", "USER", "LOGNAME", "SHELL")
"""Variables a program may need to find itself and its own settings; no other one is handed on, so no key is."""
MAX_ANSWER_BYTES = 8 << 20
LAST_WORDS = 300
CHUNK = 1 << 16
KEEPER = Path(__file__).with_name("_keeper.py")
KEEPER_S = 1.8
"""How long the keeper may take to end a program: it asks for half a second and kills for one at most."""
STOPPED = "it was told to stop"


class TooMuch(Exception):
    """The program wrote more than an answer may hold."""


class TooLate(Exception):
    """The program did not end in time."""


class Stopped(Exception):
    """Nobody waits for the program any more."""


def author(detail: str = "") -> "Command":
    """Return the program behind a command line."""
    return Command(tuple(shlex.split(detail)))


def kept_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program."""
    return {"PATH": os.defpath, **{name: parent[name] for name in KEPT if name in parent}}


@dataclass(frozen=True)
class Command:
    """A program and its arguments."""

    words: tuple[str, ...]
    halt: Halt | None = None
    """Given, it ends the program."""

    def until(self, halt: Halt) -> "Command":
        """Return the same author, whose program ends when the word is given."""
        return replace(self, halt=halt)

    def propose(self, brief: Brief) -> Answer:
        """Return the program's answer; every way of failing is a reason."""
        if not self.words:
            return Answer(reason="no command was given; pass --author command:'PROGRAM ARGUMENTS'")
        program = shutil.which(self.words[0])
        if program is None:
            return Answer(reason=f"there is no program {self.words[0]!r}")
        halt = self.halt or Halt()
        if halt.is_given:
            return Answer(reason=STOPPED)
        with tempfile.TemporaryDirectory(prefix="kernelwright-author-", ignore_cleanup_errors=True) as folder:
            try:
                code, said, words = _run((program, *self.words[1:]), brief, folder, halt)
            except OSError as error:
                return Answer(reason=f"{self.words[0]!r} cannot be started: {error.strerror or error}")
            except TooLate:
                return Answer(reason=f"{self.words[0]!r} gave no answer within {brief.time_limit_s:g} s")
            except Stopped:
                return Answer(reason=STOPPED)
            except TooMuch:
                return Answer(reason=f"{self.words[0]!r} wrote more than {MAX_ANSWER_BYTES} bytes")
        if code != 0:
            return Answer(reason=f"{self.words[0]!r} ended with exit code {code}: {words or 'no words'}")
        try:
            text = said.decode()
        except UnicodeDecodeError as error:
            return Answer(reason=f"the answer is no text: {error.reason} at byte {error.start}")
        return read_reply(text, Author(name="command", detail=os.path.basename(self.words[0])))  # noqa: PTH119


def _run(words: Sequence[str], brief: Brief, folder: str, halt: Halt) -> tuple[int, bytes, str]:
    """Return exit code, standard output and last words of a program; whatever it started is dead afterwards."""
    process, control = _kept(words, folder)
    assert process.stdin and process.stdout and process.stderr
    deadline = time.monotonic() + brief.time_limit_s
    try:
        with halt.calling(lambda: _end(control)):
            said, words_left = _talk(process, brief.model_dump_json().encode(), deadline)
            code = process.wait(max(0.0, deadline - time.monotonic()))
        refused = control.recv(CHUNK)
    except subprocess.TimeoutExpired as error:
        raise TooLate from error
    finally:
        _end(control)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KEEPER_S)
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr, control):
            with suppress(BrokenPipeError):
                pipe.close()
    if halt.is_given:
        raise Stopped
    if refused:
        raise OSError(refused.decode(errors="replace"))
    return code, said, " ".join(words_left.decode(errors="replace").split())


def _kept(words: Sequence[str], folder: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Return the keeper of a program, just started, and the socket whose end ends them both."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", KEEPER, str(theirs.fileno()), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=kept_environment(os.environ),
            cwd=folder,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return process, ours


def _end(control: socket.socket) -> None:
    """Have the keeper end its program; one that has ended does not mind."""
    with suppress(OSError):
        control.shutdown(socket.SHUT_WR)


def _talk(process: subprocess.Popen[bytes], given: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Write the brief and read both outputs at once, so that neither side waits for the other."""
    assert process.stdin and process.stdout and process.stderr
    said, words = bytearray(), bytearray()
    rest = memoryview(given)
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
            is_input = pipe is process.stdin
            selector.register(pipe, selectors.EVENT_WRITE if is_input else selectors.EVENT_READ)
        while process.stdout in _open(selector):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TooLate
            for ready, _ in selector.select(left):
                if ready.fileobj is process.stdin:
                    rest = _give(process.stdin, rest, selector)
                elif ready.fileobj is process.stdout:
                    _take(process.stdout, said, selector)
                else:
                    _take(process.stderr, words, selector)
            del words[:-LAST_WORDS]
            if len(said) > MAX_ANSWER_BYTES:
                raise TooMuch
    return bytes(said), bytes(words)


def _open(selector: selectors.BaseSelector) -> list[object]:
    return [key.fileobj for key in selector.get_map().values()]


def _give(pipe: IO[bytes], rest: memoryview, selector: selectors.BaseSelector) -> memoryview:
    """Write what fits; the end of the brief, or of the reader, closes the pipe."""
    try:
        rest = rest[os.write(pipe.fileno(), rest[:CHUNK]) :]
    except BrokenPipeError:
        rest = rest[:0]
    if not rest:
        selector.unregister(pipe)
        with suppress(BrokenPipeError):
            pipe.close()
    return rest


def _take(pipe: IO[bytes], into: bytearray, selector: selectors.BaseSelector) -> None:
    found = os.read(pipe.fileno(), CHUNK)
    into += found
    if not found:
        selector.unregister(pipe)
