"""The builder: one source in, one artefact in a folder out. Started fresh for every build."""

import os
import resource
import sys
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.frames import read_message, write_message
from kernelwright.core.messages import BUILD_REQUEST, BuildReply

MEMORY_BYTES = 24 << 30
CPU_SECONDS = 240
FILE_BYTES = 256 << 20


def main() -> None:
    """Answer one request on standard input."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    # Whatever a compiler prints must not reach the answer's channel.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = read_message(sys.stdin.buffer, BUILD_REQUEST)
    if request is None:
        return
    backend, folder = plugins.load("backends", request.backend), Path(request.folder)
    if request.units:
        results = [
            backend.compile_unit(request.source, unit, request.target, folder) for unit in request.units
        ]
    else:
        results = [backend.build(request.source, request.values, folder)]
    write_message(answer, BuildReply(results=tuple(results)))


if __name__ == "__main__":
    main()
