"""A process that interprets Triton, started once and asked many times: importing torch and triton takes seconds."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import kernelwright

SCRIPT = Path(__file__).with_name("interpret_seeds.py")


class Interpreter:
    """Runs jobs; one that ends the process fails alone, the next is given a fresh one."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.log = tempfile.TemporaryFile("w+")

    def find(self, jobs: list[dict[str, object]]) -> list[dict[str, object]]:
        """Return what was found, job by job."""
        process = self._process()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(jobs) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self.close()
            self.log.seek(0)
            raise AssertionError(f"the interpreter died: {self.log.read()[-3000:]}")
        return json.loads(line)

    def _process(self) -> subprocess.Popen[str]:
        if self.process is None:
            root = str(Path(kernelwright.__file__).parents[1])
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                text=True,
                env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": root},
            )
        return self.process

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
