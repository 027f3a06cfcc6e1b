"""Artefacts: built once per (source, parameters or unit, target, compiler, sandbox), in a content-addressed cache."""

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, ParamValue
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.messages.builder import BuildRequest
from kernelwright.core.plan import KernelUnit
from kernelwright.core.ports import BuildResult
from kernelwright.core.verdict import Status
from kernelwright.judge.foundry import Foundry
from kernelwright.store.disk import scratch_errors

AHEAD = 2
"""Builds per core that may wait for one: beyond that a candidate whose turn it is would queue behind those to come."""
UNITS_PER_BUILDER = 8
"""Kernels one builder process compiles: its start-up is paid once for them, the rest goes to other cores."""
LASTING = frozenset({Status.ACCEPTED, Status.BUILD_FAILED, Status.REFUSED, Status.TOO_BIG})
"""What is worth remembering: a build that timed out or whose builder died may succeed in a quieter moment."""

TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY})
"""What a rename says when another builder was first."""


class Builds:
    """The cache and the way past it."""

    def __init__(self, folder: Path, home: Path, jobs: int, *, guards_off: bool = False) -> None:
        self.folder = folder
        self.guards_off = guards_off
        """Tests only: have built what the static guards would refuse."""
        self.home = home
        self.jobs = jobs
        self.foundry = Foundry(home)
        self.pool, self.background = ThreadPoolExecutor(jobs), ThreadPoolExecutor(jobs)
        self.coming: dict[Path, tuple[str, Future[Any]]] = {}
        """Builds under way that nobody waits for yet, and whose they are: a candidate's hash."""
        self.fingerprints: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def _key(self, candidate: Candidate, rest: object) -> str:
        """Return what identifies an artefact: backend, source, what the compiler adds, and who could reach it.

        A source that was built behind fewer layers may have had a word with somebody: that is another artefact.
        """
        backend = plugins.load("backends", candidate.backend)
        if candidate.backend not in self.fingerprints:
            self.fingerprints[candidate.backend] = backend.fingerprint()
        stamp = [self.fingerprints[candidate.backend], self.foundry.sandbox]
        if self.guards_off and backend.TIER == "A":
            stamp.append("guards off")
        return digest(canonical_json([candidate.backend, candidate.source, rest, stamp]))

    def key(self, candidate: Candidate, values: Mapping[str, ParamValue]) -> str:
        """Return the identity of a tier-B artefact."""
        return self._key(candidate, dict(values))

    def get(self, candidate: Candidate, values: Mapping[str, ParamValue]) -> tuple[BuildResult, Path | None]:
        """Return a tier-B build's result and, if there is one, the artefact's path."""
        place = self.folder / self.key(candidate, values)
        self._await(place)
        if not (place / "result.json").exists():
            result = self._build(candidate, values, place)
            if result.status not in LASTING:
                return result, None
        result = _stored(place)
        return result, place / result.artefact if result.artefact else None

    def _build(self, candidate: Candidate, values: Mapping[str, ParamValue], place: Path) -> BuildResult:
        request = BuildRequest(
            backend=candidate.backend,
            source=candidate.source,
            values=dict(values),
            folder=self._scratch(),
            guards_off=self.guards_off,
        )
        (result,) = self.foundry.build(request).results
        self._store(place, Path(request.folder), result)
        shutil.rmtree(request.folder, ignore_errors=True)
        return result

    def get_units(
        self, candidate: Candidate, units: Sequence[KernelUnit], target: str
    ) -> dict[str, BuildResult]:
        """Return a result per unit hash, compiling what the cache lacks on all cores."""
        places = {unit.hash: self.folder / self._key(candidate, [unit.hash, target]) for unit in units}
        for place in places.values():
            self._await(place)
        missing = [unit for unit in units if not (places[unit.hash] / "result.json").exists()]
        missing = list({unit.hash: unit for unit in missing}.values())
        size = max(1, min(UNITS_PER_BUILDER, -(-len(missing) // self.jobs)))
        chunks = [missing[start : start + size] for start in range(0, len(missing), size)]

        parts = self.pool.map(lambda chunk: self._compile(candidate, chunk, target), chunks)
        passing = {key: result for part in parts for key, result in part.items()}
        return {unit.hash: passing.get(unit.hash) or _stored(places[unit.hash]) for unit in units}

    def room(self) -> int:
        """Return how many more builds may be begun for candidates whose turn has not come."""
        under_way = sum(not work.done() for _, work in self.coming.values())
        return max(0, AHEAD * self.jobs - under_way)

    def get_ahead(
        self, candidate: Candidate, units: Sequence[KernelUnit], target: str, most: int = sys.maxsize
    ) -> None:
        """Start compiling what the cache lacks and come back at once; `get_units` waits for what it needs of it."""
        for unit in units:
            if most <= 0:
                return
            place = self.folder / self._key(candidate, [unit.hash, target])
            if place not in self.coming and not (place / "result.json").exists():
                work = self.background.submit(self._compile, candidate, [unit], target)
                self.coming[place] = candidate.hash, work
                most -= 1

    def begin(self, candidate: Candidate, most: int = sys.maxsize) -> None:
        """Start building the tier-B artefacts the cache lacks and come back at once; `get` waits for what it needs."""
        for choice in candidate.choices:
            if most <= 0:
                return
            place = self.folder / self.key(candidate, choice.values)
            if place not in self.coming and not (place / "result.json").exists():
                work = self.background.submit(self._build, candidate, choice.values, place)
                self.coming[place] = candidate.hash, work
                most -= 1

    def _await(self, place: Path) -> None:
        """Wait for a build that was begun before."""
        _, coming = self.coming.pop(place, ("", None))
        if coming:
            coming.result()

    def _compile(
        self, candidate: Candidate, units: Sequence[KernelUnit], target: str
    ) -> dict[str, BuildResult]:
        """Compile units in one builder; return those that are not worth remembering."""
        request = BuildRequest(
            backend=candidate.backend,
            source=candidate.source,
            folder=self._scratch(),
            units=tuple(units),
            target=target,
            guards_off=self.guards_off,
        )
        results = self.foundry.build(request).results
        for unit, result in zip(units, results, strict=True):
            place = self.folder / self._key(candidate, [unit.hash, target])
            self._store(place, Path(request.folder), result)
        shutil.rmtree(request.folder, ignore_errors=True)
        return {unit.hash: one for unit, one in zip(units, results, strict=True) if one.status not in LASTING}

    def drop(self, candidate: Candidate | None = None) -> None:
        """Forget a candidate's builds, or all, that have not begun: nobody will ask for them."""
        for place, (owner, coming) in list(self.coming.items()):
            if candidate is None or owner == candidate.hash:
                coming.cancel()
                del self.coming[place]

    def close(self) -> None:
        """Drop what nobody waits for and end the builders' parent."""
        self.drop()
        for pool in (self.pool, self.background):
            pool.shutdown(wait=False, cancel_futures=True)
        self.foundry.close()

    def collect_units(
        self, candidate: Candidate, units: Sequence[KernelUnit], target: str, folder: Path
    ) -> None:
        """Put the compiled kernels of units into one folder, where a launcher finds them by unit."""
        for unit in units:
            place = self.folder / self._key(candidate, [unit.hash, target])
            for path in place.glob(f"{unit.hash[:16]}.*"):
                if not (folder / path.name).exists():
                    shutil.copy(path, folder / path.name)

    def _scratch(self) -> str:
        return tempfile.mkdtemp(dir=self.home, prefix="build-")

    def _store(self, place: Path, scratch: Path, result: BuildResult) -> None:
        """Move a finished build in whole: parallel builders of one key never see half of it."""
        if result.status not in LASTING:
            return
        with scratch_errors(self.folder):
            staged = Path(tempfile.mkdtemp(dir=self.folder, prefix=".staged-"))
            try:
                _fill(staged, scratch, result)
                os.rename(staged, place)  # noqa: PTH104 - must fail, not merge, if another builder was first
            except OSError as error:
                shutil.rmtree(staged, ignore_errors=True)
                if error.errno not in TAKEN:
                    raise


def _fill(staged: Path, scratch: Path, result: BuildResult) -> None:
    """Put a build's result into a folder, with its artefact if there is one."""
    if result.status is Status.ACCEPTED:
        name = Path(result.artefact or "missing").name
        result = result.model_copy(update={"artefact": name})
        stem = Path(name).stem
        for path in scratch.glob(f"{stem}.*"):
            shutil.copy(path, staged / path.name)
        if not (staged / name).is_file():
            result = BuildResult(
                status=Status.BUILD_FAILED, log="the builder named an artefact it did not leave"
            )
    (staged / "result.json").write_text(result.model_dump_json())


def _stored(place: Path) -> BuildResult:
    return BuildResult.model_validate_json((place / "result.json").read_text())
