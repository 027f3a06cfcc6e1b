"""What a tool is: a function with typed arguments and a typed answer, called in the place the server serves.

Nothing here knows the protocol. A tool never executes a candidate: it asks the judge, or the run's own process does.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from inspect import getdoc
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from kernelwright.core.errors import BadCall, BadInput, KernelwrightError
from kernelwright.core.frozen import Frozen
from kernelwright.core.model_spec import Address, Source, parse_spec
from kernelwright.core.redact import without_keys
from kernelwright.store.secrets import known_secrets


class Arguments(Frozen):
    """Base of what a tool is called with: unknown and mistyped arguments are refused by name."""


class Failure(Frozen):
    """Why a call came to nothing."""

    error: str
    """Kind of the mistake: a class of `kernelwright.core.errors`, or `Bug`."""
    message: str
    """The thing, its value and what to do next."""


HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
NO_MODELS = frozenset({"kernelwright", *sys.stdlib_module_names})
"""Packages that hold no model of anybody's: their functions start programs, open files and load what was saved."""
Wanted = TypeVar("Wanted", bound=Arguments)
Answered = TypeVar("Answered", bound=BaseModel)


@dataclass(frozen=True)
class Place:
    """Where the server works, and how it tells how far a call is."""

    home: Path
    """Folder of runs and caches."""
    root: Path
    """The project: files a call names must lie in it."""
    tell: Callable[[str], None] = lambda _: None
    packages: bool = False
    """Whether a model may be one of an installed package: a call then runs any function of it, with any literals."""

    def inside(self, argument: str, name: str) -> Path:
        """Return a path of the project, links followed; one that lies outside is refused."""
        root = self.root.resolve()
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            remedy = "Copy it there, or start the server with --root."
            raise BadInput(argument, f"{name!r} lies outside of {root}", remedy)
        return path

    def file(self, argument: str, name: str) -> Path:
        """Return a file of the project; one that is not there or lies outside is refused."""
        path = self.inside(argument, name)
        if not path.is_file():
            problem = f"{name!r} is no file of {self.root.resolve()}"
            raise BadInput(argument, problem, "Name one by its path from there.")
        return path

    def model(self, spec: str) -> str:
        """Return a model's name with the path of its file or folder made whole; taken apart as who loads it does."""
        address, words = parse_spec(spec), spec.strip()
        match address.source:
            case Source.FILE:
                return f"{self.file('model', address.place)}{words.removeprefix(address.place)}"
            case Source.HUB:
                return self._hub_model(address, words)
            case Source.PACKAGE:
                return self._packaged_model(address, words)

    def _hub_model(self, address: Address, words: str) -> str:
        """Return a model of transformers: a folder of the project, or a name of the hub that is no path here."""
        name = address.place
        is_path = (self.root / name).exists() or Path(name).exists()
        if not is_path and HUB_NAME.fullmatch(name):
            return words
        return f"hf:{self.inside('model', name)}{words.removeprefix(f'hf:{name}')}"

    def _packaged_model(self, address: Address, words: str) -> str:
        name = address.place
        if name.partition(".")[0] in NO_MODELS:
            raise BadInput(
                "model", f"{name!r} holds no models", "Name a file of the project: `path.py:factory`."
            )
        if not self.packages:
            problem = f"{name!r} is a package, and this server serves files of {self.root.resolve()} alone"
            remedy = "Name a file, `path.py:factory`; whoever starts the server may pass --allow-packages."
            raise BadInput("model", problem, remedy)
        return words


@dataclass(frozen=True)
class Tool(Generic[Wanted, Answered]):
    """One tool."""

    run: Callable[[Place, Wanted], Answered]
    """Does it; its name is the tool's, its docstring tells an assistant when to call it."""
    arguments: type[Wanted]
    answer: type[Answered]
    is_reading: bool = True
    """Whether nothing is changed or started by it."""

    @property
    def name(self) -> str:
        """Return the name it is called by."""
        return self.run.__name__

    @cached_property
    def description(self) -> str:
        """Return what it does."""
        return getdoc(self.run) or ""

    def call(self, place: Place, given: dict[str, object]) -> Answered:
        """Check the arguments and do it."""
        try:
            # From JSON: only so do lists count as tuples while numbers and texts keep their kind.
            wanted = self.arguments.model_validate_json(json.dumps(given), strict=True)
        except ValidationError as error:
            raise self._mistake(error) from error
        return self.run(place, wanted)

    def _mistake(self, error: ValidationError) -> BadCall:
        first = error.errors()[0]
        argument = ".".join(str(part) for part in first["loc"]) or "all of them"
        known = ", ".join(self.arguments.model_fields)
        problem = first["msg"].removeprefix("Value error, ")
        if first["type"] not in ("missing", "extra_forbidden"):
            problem += f"; given was {str(first['input'])[:80]!r}"
        return BadCall(self.name, argument, problem, f"It takes: {known or 'nothing'}.")


def carried_out(tool: "Tool[Wanted, Answered]", place: Place, given: dict[str, object]) -> Answered | Failure:
    """Return a tool's answer, or what the caller did wrong."""
    try:
        return tool.call(place, given)
    except KernelwrightError as error:
        kind = next(one for one in type(error).__mro__ if one.__module__ == KernelwrightError.__module__)
        return Failure(error=kind.__name__, message=str(error))


def as_json(answer: BaseModel) -> object:
    """Return an answer as a JSON value without any key."""
    return _without_keys(answer.model_dump(mode="json"), known_secrets(os.environ))


def _without_keys(value: object, secrets: tuple[str, ...]) -> object:
    match value:
        case str():
            return without_keys(value, secrets)
        case dict():
            return {name: _without_keys(one, secrets) for name, one in value.items()}
        case list():
            return [_without_keys(one, secrets) for one in value]
        case _:
            return value
