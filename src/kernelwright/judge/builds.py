"""Artefacts: built once per (source, parameters, compiler), kept in a content-addressed cache."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, ParamValue
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.messages import BuildRequest
from kernelwright.core.ports import BuildResult
from kernelwright.core.verdict import Status
from kernelwright.judge import children


class Builds:
    """The cache and the way past it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        self.fingerprints: dict[str, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def key(self, candidate: Candidate, values: dict[str, ParamValue]) -> str:
        """Return what identifies an artefact: backend, source, parameters and everything the compiler adds."""
        if candidate.backend not in self.fingerprints:
            self.fingerprints[candidate.backend] = plugins.load("backends", candidate.backend).fingerprint()
        stamp = self.fingerprints[candidate.backend]
        return digest(canonical_json([candidate.backend, candidate.source, values, stamp]))

    def get(self, candidate: Candidate, values: dict[str, ParamValue]) -> tuple[BuildResult, Path | None]:
        """Return the build's result and, if there is one, the artefact's path."""
        place = self.folder / self.key(candidate, values)
        record = place / "result.json"
        if not record.exists():
            self._build(candidate, values, place)
        result = BuildResult.model_validate(json.loads(record.read_text()))
        return result, place / result.artefact if result.artefact else None

    def _build(self, candidate: Candidate, values: dict[str, ParamValue], place: Path) -> None:
        """Build beside the cache and move the whole folder in: parallel builders of one key never see half of it."""
        scratch = Path(tempfile.mkdtemp(dir=self.home, prefix="build-"))
        request = BuildRequest(
            backend=candidate.backend, source=candidate.source, values=values, folder=str(scratch)
        )
        result = children.build(request, self.home)
        if result.status is Status.ACCEPTED and not (scratch / (result.artefact or "")).is_file():
            result = BuildResult(
                status=Status.BUILD_FAILED, log="the builder named an artefact it did not leave"
            )
        (scratch / "result.json").write_text(result.model_dump_json())
        staged = Path(tempfile.mkdtemp(dir=self.folder, prefix=".staged-"))
        shutil.copytree(scratch, staged, dirs_exist_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            os.rename(staged, place)  # noqa: PTH104 - must fail, not merge, if another builder was first
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
