"""What is kept of a candidate that was judged: its artefacts by content, and what the compiler told of them."""

import shutil
from pathlib import Path
from typing import NamedTuple

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.problem import Problem
from kernelwright.judge.builds import Builds
from kernelwright.judge.execution import collect, compile_cases, launches_plans, plan_for, units_of
from kernelwright.store.blobs import Blobs


class Kept(NamedTuple):
    """Where artefacts come from, and where they go."""

    builds: Builds
    blobs: Blobs
    home: Path

    def keep(self, candidate: Candidate, problem: Problem) -> dict[str, str]:
        """Store exactly what was judged, so that exactly that is spliced; return the blobs by name."""
        if plugins.load("backends", candidate.backend).TIER == "A":
            return self._keep_units(candidate, problem)
        kept: dict[str, str] = {}
        for choice in candidate.choices:
            _, path = self.builds.get(candidate, choice.values)
            if path is not None:
                kept[digest(canonical_json(choice.values))] = self.blobs.put(path.read_bytes())
        return kept

    def _keep_units(self, candidate: Candidate, problem: Problem) -> dict[str, str]:
        """Store the compiled kernels of the problem's own cases, by file name; an interpreter has none."""
        if not launches_plans(candidate, problem.device):
            return {}
        compile_cases(candidate, problem.cases, problem.device, self.builds)
        folder = Path(collect(candidate, problem.cases, problem.device, self.builds, self.home))
        kept = {path.name: self.blobs.put(path.read_bytes()) for path in sorted(folder.iterdir())}
        shutil.rmtree(folder)
        return kept

    def resources(self, candidate: Candidate, problem: Problem) -> dict[str, dict[str, int]]:
        """Return what the compiler told of the kernels of the problem's own cases; the cache has them all."""
        if not launches_plans(candidate, problem.device):
            return {}
        plans = [(plan_for(candidate, case, problem.device), case) for case in problem.cases]
        units = [unit for plan, case in plans for unit in units_of(plan, case)]
        built = self.builds.get_units(candidate, units, problem.device.arch)
        return {unit.hash[:16]: built[unit.hash].resources for unit in units}
