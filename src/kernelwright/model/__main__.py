"""`python -m kernelwright.model`: one process around the user's model. One request, one answer, then it ends."""

import os
import sys
import traceback

from pydantic import BaseModel

from kernelwright.core.errors import KernelwrightError, ModelNotLoadable
from kernelwright.core.frames import read_message, write_message
from kernelwright.core.messages import MODEL_REQUEST, Fault, TraceModel, VerifyModel


def main() -> None:
    """Answer one request."""
    # A user's model may print; the answer's channel must carry frames only.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = read_message(sys.stdin.buffer, MODEL_REQUEST)
    if request is not None:
        write_message(answers, _answer(request))


def _answer(request: TraceModel | VerifyModel) -> BaseModel:
    import torch

    from kernelwright.model.load import load
    from kernelwright.model.trace import trace
    from kernelwright.model.verify import verify

    try:
        torch.set_num_threads(request.threads)
        loaded = load(request.spec)
        if isinstance(request, TraceModel):
            return trace(loaded)
        return verify(loaded, request.winners, request.rounds, request.seed)
    except KernelwrightError as error:
        return Fault(error=type(error).__name__, message=str(error), trace=traceback.format_exc())
    except Exception as error:  # noqa: BLE001 - a user's model may raise anything; it is the user's to mend, in one line
        words = " ".join(str(error).split())[:300]
        place = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {words} ({place.filename}:{place.lineno})"
        told = ModelNotLoadable(
            request.spec, problem, "Run it by itself first; --debug shows the whole trace."
        )
        return Fault(error="ModelNotLoadable", message=str(told), trace=traceback.format_exc())


if __name__ == "__main__":
    main()
