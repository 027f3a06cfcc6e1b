"""`python -m kernelwright.model`: one process around the user's model. One request, one answer, then it ends."""

import os
import sys
import traceback

from pydantic import BaseModel

from kernelwright.core.errors import KernelwrightError
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


def _answer(request: BaseModel) -> BaseModel:
    import torch

    from kernelwright.model.load import load
    from kernelwright.model.trace import trace
    from kernelwright.model.verify import verify

    try:
        if isinstance(request, TraceModel):
            torch.set_num_threads(request.threads)
            return trace(load(request.spec))
        if isinstance(request, VerifyModel):
            torch.set_num_threads(request.threads)
            return verify(load(request.spec), request.winners, request.rounds, request.seed)
    except KernelwrightError as error:
        return Fault(error=type(error).__name__, message=str(error), trace=traceback.format_exc())
    return Fault(error="BadFrame", message=f"unexpected request {type(request).__name__}")


if __name__ == "__main__":
    main()
