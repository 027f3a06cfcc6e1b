"""Somebody else's run: it is read and shown, and nothing of it is run unless the user vouches for it.

A journal holds more than results: the text of references, the address of a model, folders of plug-ins, the commands
of authors. All of that is code. A run is one's own if its folder lies among the runs of the home.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core.config import RunConfig
from kernelwright.core.errors import BadInput
from kernelwright.store.locate import is_own, runs_folder

PROGRAM = "command:"
"""How an author that is a program of the user's begins."""
REMEDY = "Pass --trust on the command line if you know who made it."


@dataclass(frozen=True)
class FoundRun:
    """A recorded run as it was found: where it lies, and whether the user vouches for it."""

    folder: Path | None
    """None if it lies on another machine."""
    home: Path
    trusted: bool = False

    @property
    def is_own(self) -> bool:
        """Tell whether it lies among the home's own runs."""
        return self.folder is not None and is_own(self.folder, self.home)

    def refuse_running(self, config: RunConfig) -> None:
        """Raise for somebody else's run, naming what going on with it would run."""
        if not self.trusted and not self.is_own:
            raise self._refusal(f"this would run {', '.join(_code(config))}")
        self.refuse_plugins(config)

    def refuse_plugins(self, config: RunConfig) -> None:
        """Raise for plug-ins of somebody else's choice: they would run in the engine, beside the keys."""
        if self.trusted or not config.plugins:
            return
        named = ", ".join(map(repr, config.plugins))
        if not self.is_own:
            raise self._refusal(f"this would run the plug-ins in {named}")
        if not all(Path(one).is_absolute() for one in config.plugins):
            # A run that was started here records them whole.
            problem = f"its plug-ins {named} are another folder wherever one stands"
            raise BadInput(str(self.folder), problem, REMEDY)

    def _refusal(self, problem: str) -> BadInput:
        where = f"it lies outside of {runs_folder(self.home)}"
        what = str(self.folder or "this run")
        return BadInput(what, f"it is somebody else's run ({where}), and {problem}", REMEDY)


def _code(config: RunConfig) -> Iterator[str]:
    """Yield what a run holds that is run, in words; what the journal says is quoted."""
    yield "its reference code"
    if config.model:
        yield f"the model {config.model!r}"
    if config.plugins:
        yield f"the plug-ins in {', '.join(map(repr, config.plugins))}"
    for author in (config.author, *config.beside):
        if author.startswith(PROGRAM):
            yield f"the author {author!r}"
