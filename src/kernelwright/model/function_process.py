"""`python -m kernelwright.model.function_process`: one process around a user's function. One request, one answer."""

import os
import sys
import traceback

from pydantic import BaseModel

from kernelwright.core.errors import KernelwrightError, ModelNotLoadable
from kernelwright.core.frames import read_message, write_message
from kernelwright.core.messages.function import (
    FUNCTION_REQUEST,
    CallDescribed,
    DescribeCall,
    SketchFunction,
    WriteProgram,
)
from kernelwright.core.messages.progress import Fault


def main() -> None:
    """Answer one request."""
    # A user's file may print; the answer's channel must carry frames only.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = read_message(sys.stdin.buffer, FUNCTION_REQUEST)
    if request is not None:
        write_message(answers, answer(request))


def answer(request: DescribeCall | WriteProgram | SketchFunction) -> BaseModel:
    """Return the answer to one request, a fault in one line included."""
    try:
        if isinstance(request, DescribeCall):
            return _described(request)
        if isinstance(request, WriteProgram):
            from pathlib import Path

            from kernelwright.model.function import build
            from kernelwright.model.program_writing import write_program

            return write_program(build(request.call_file), Path(request.kernels))
        from kernelwright.model.sketch import sketch

        return sketch(request)
    except KernelwrightError as error:
        return Fault(error=type(error).__name__, message=str(error), trace=traceback.format_exc())
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything; it is the user's to mend, in one line
        words = " ".join(str(error).split())[:300]
        place = traceback.extract_tb(error.__traceback__)[-1]
        told = ModelNotLoadable(
            getattr(request, "spec", "the function"),
            f"{type(error).__name__}: {words} ({place.filename}:{place.lineno})",
            "Run it by itself first; --debug shows the whole trace.",
        )
        return Fault(error=type(told).__name__, message=str(told), trace=traceback.format_exc())


def _described(request: DescribeCall) -> CallDescribed:
    from kernelwright.core.errors import BadInput
    from kernelwright.core.tuned import call_key
    from kernelwright.model.call import place_name
    from kernelwright.model.code_identity import identity
    from kernelwright.model.function import call_of, called, loaded_function
    from kernelwright.model.memory import named_device

    device = named_device(request.device)
    function = loaded_function(request.spec)
    call = request.call or call_of(request.spec, function, request.inputs, str(device))
    called(request.spec, function, call, str(device))
    known = identity(function)
    if known.hindrance:
        remedy = "Pass it as an argument: what is not watched may change behind a kernel's back."
        raise BadInput(request.spec, known.hindrance, remedy)
    key = call_key(known.name, known.fingerprint, call, place_name(device))
    return CallDescribed(function=known.name, key=key, call=call, device=str(device))


if __name__ == "__main__":
    main()
