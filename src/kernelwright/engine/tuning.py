"""Tuning one call of a function: a run on the function as if it were a model, and its winners as steps for later calls.

1. A process of its own imports the function and says what the call is; its key names a folder in the home.
2. A call that was tuned before is answered from that folder.
3. Otherwise a run is made on it, as `optimize` makes one on a model: only what pays end to end comes out of it.
4. The function's process writes the call as steps with the winners in it. The folder is complete once `tuned.json` is.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kernelwright.core.config import RunConfig
from kernelwright.core.errors import BadInput, NothingToOptimize, ServiceDied
from kernelwright.core.frozen import digest
from kernelwright.core.manifest import FOLDER as KERNELS
from kernelwright.core.manifest import NAME as MANIFEST
from kernelwright.core.messages.function import (
    FUNCTION_ANSWER,
    CallDescribed,
    DescribeCall,
    ProgramWritten,
    WriteProgram,
)
from kernelwright.core.model_spec import InputSpec, ModelMode
from kernelwright.core.tuned import CALL, FOLDER, NAME, CallFile, TunedCall, parse_tuned
from kernelwright.engine.app import start
from kernelwright.engine.service import Child, Show
from kernelwright.hardware.detect import usable_cores
from kernelwright.store.disk import disk_errors, make_folder
from kernelwright.store.journal import Journal

Answer = TypeVar("Answer", bound=BaseModel)


@dataclass(frozen=True)
class TuneWish:
    """Which call of which function is to be tuned."""

    spec: str
    """`path.py:function` or `package.module:function`."""
    inputs: tuple[InputSpec, ...] = ()
    call_file: Path | None = None
    """A call as `Tuned.tune` writes it, instead of the inputs."""
    device: str = "cpu"
    again: bool = False
    """Whether a call that was tuned before is searched again."""


def ask_function(request: BaseModel, kind: type[Answer], threads: int, show: Show) -> Answer:
    """Return a fresh function process's answer to one request."""
    child = Child("function", "kernelwright.model.function_process", threads, cwd=Path.cwd())
    try:
        child.send(request)
        answer = child.receive(FUNCTION_ANSWER, show)
    finally:
        child.close()
    if isinstance(answer, kind):
        return answer
    raise ServiceDied("function", f"answered {type(answer).__name__}")


def described(wish: TuneWish, threads: int, show: Show) -> CallDescribed:
    """Return what a function and a call of it are; it is called once."""
    request = DescribeCall(spec=wish.spec, inputs=wish.inputs, device=wish.device)
    if wish.call_file is not None:
        try:
            file = CallFile.model_validate_json(wish.call_file.read_text())
        except (OSError, ValidationError) as error:
            words = " ".join(str(error).split())[:200]
            raise BadInput(str(wish.call_file), f"not a call: {words}", "Give --input instead.") from error
        request = DescribeCall(spec=wish.spec, call=file.call, device=file.device)
    return ask_function(request, CallDescribed, threads, show)


def tune(wish: TuneWish, config: RunConfig, home: Path, show: Show) -> tuple[TunedCall, bool]:
    """Return what serves a call of a function, and whether it was known before; nothing known is searched twice."""
    threads = config.threads or usable_cores()
    show(f"looking at {wish.spec}")
    known = described(wish, threads, show)
    folder = home.resolve() / FOLDER / known.key
    path = folder / NAME
    if path.is_file() and not wish.again:
        return parse_tuned(path.read_text(), str(path)), True
    file = CallFile(spec=_absolute(wish.spec), call=known.call, device=known.device)
    with disk_errors(folder):
        make_folder(folder)
        (folder / CALL).write_text(file.model_dump_json())
    found = _searched(known, config, (folder, home), show)
    with disk_errors(folder):
        # Whoever reads it sees the old one, none, or the whole new one.
        part = folder / f"{NAME}.{os.getpid()}"
        part.write_text(found.model_dump_json(indent=1))
        part.replace(path)
    return found, False


def _absolute(spec: str) -> str:
    """Return a spec that means the same from any working folder, if it names a file."""
    place, _, name = spec.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else spec


def _searched(known: CallDescribed, config: RunConfig, places: tuple[Path, Path], show: Show) -> TunedCall:
    folder, home = places
    found = TunedCall(
        key=known.key, function=known.function, call=known.call, device=known.device, run="", reason=""
    )
    model = f"kernelwright.model.function:build({str(folder / CALL)!r})"
    # Eager: what lies between the winners runs so in a tuned function, whatever the baseline.
    call = {"input": (), "input_function": None, "dtype": None, "mode": ModelMode.INFERENCE, "op": None}
    settings = config.model_copy(update={"model": model, "device": known.device, "rest": "eager", **call})
    try:
        run = start(settings, home, show)
    except NothingToOptimize:
        return found.model_copy(update={"reason": "no kernel type known here occurs in it"})
    tree = Journal.open(config.journal_url or run, run.name).tree()
    reason = tree.ended.reason if tree.ended else "the run did not end"
    found = found.model_copy(update={"run": run.name, "reason": reason})
    if not (run / KERNELS / MANIFEST).is_file():
        return found
    show("writing the function's steps")
    with disk_errors(folder):
        (folder / NAME).unlink(missing_ok=True)
        shutil.rmtree(folder / KERNELS, ignore_errors=True)
        shutil.copytree(run / KERNELS, folder / KERNELS)
    request = WriteProgram(call_file=str(folder / CALL), kernels=str(folder / KERNELS))
    written = ask_function(request, ProgramWritten, config.threads or usable_cores(), show)
    if written.program is None:
        return found.model_copy(update={"reason": f"left alone: {written.reason}"})
    proof = digest((folder / KERNELS / MANIFEST).read_bytes())
    return found.model_copy(update={"program": written.program, "manifest_hash": proof})
