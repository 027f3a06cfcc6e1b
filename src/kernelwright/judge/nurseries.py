"""The parents of runners: one nursery for each kind of candidate, started when the first of its kind is judged."""

from pathlib import Path

from kernelwright.core.candidate import Candidate
from kernelwright.core.device import DeviceKind
from kernelwright.core.problem import Problem
from kernelwright.judge.children import Service
from kernelwright.judge.runners import returns_outputs

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "framework": (),
    # Native code finds no framework in its memory to borrow a product from.
    "plain": ("plain",),
    # A GPU's driver reads /proc and opens its devices as they are, and does not start under these layers.
    "device": ("pids", "mounts", "landlock", "device"),
    # Host code needs a compiler's imports, seconds of them; launchers are born quicker without.
    "host": ("pids", "mounts", "landlock", "device", "host"),
}
"""What each kind of nursery is told: layers to leave out, and what to import."""


class Nurseries:
    """The nurseries of one start."""

    def __init__(self, home: Path, threads: int) -> None:
        self.home, self.threads = home, threads
        self.started: dict[str, Service] = {}

    def of(self, problem: Problem, candidate: Candidate) -> Service:
        """Return where runners of a candidate are born."""
        if problem.device.kind is not DeviceKind.CPU:
            return self._service("host" if returns_outputs(candidate.backend) else "device")
        return self._service("plain" if candidate.backend == "cpp" else "framework")

    def _service(self, kind: str) -> Service:
        if kind not in self.started:
            self.started[kind] = Service(
                "nursery", "kernelwright.worker.nursery", self.home, self.threads, *ARGUMENTS[kind]
            )
        return self.started[kind]

    def close(self) -> None:
        """Kill them and everything born there; the next candidate finds fresh ones."""
        for service in self.started.values():
            service.close()
        self.started.clear()
