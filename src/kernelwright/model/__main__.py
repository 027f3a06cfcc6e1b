"""`python -m kernelwright.model`: one process around the user's model. One request, one answer, then it ends."""

import os
import sys
import traceback
from collections.abc import Callable

from pydantic import BaseModel

from kernelwright.core.errors import KernelwrightError, ModelNotLoadable, OutOfMemory
from kernelwright.core.frames import read_message, write_message
from kernelwright.core.messages.model import (
    MODEL_REQUEST,
    ExtractModel,
    ProfileModel,
    VerifyModel,
)
from kernelwright.core.messages.progress import Fault, Progress


def main() -> None:
    """Answer one request."""
    # A user's model may print; the answer's channel must carry frames only.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = read_message(sys.stdin.buffer, MODEL_REQUEST)
    if request is not None:
        write_message(answers, _answer(request, lambda text: write_message(answers, Progress(text=text))))


def _answer(request: ProfileModel | ExtractModel | VerifyModel, show: Callable[[str], None]) -> BaseModel:
    import torch

    from kernelwright.model.fit import check
    from kernelwright.model.listing import problems
    from kernelwright.model.load import load
    from kernelwright.model.memory import is_out_of_memory

    try:
        torch.set_num_threads(request.threads)
        loaded = load(request.spec, request.options)
        if not isinstance(request, VerifyModel) or request.folder:  # a run has had it checked by its profile
            check(loaded)
        if isinstance(request, ExtractModel):
            return problems(loaded, request.target)
        if request.cache_folder is not None:
            # Inductor looks here when it first compiles; what one process compiled the next one loads.
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = request.cache_folder
        if isinstance(request, VerifyModel):
            from kernelwright.model.verify import verify

            return verify(loaded, request, show)
        from kernelwright.hardware.detect import torch_device
        from kernelwright.hardware.lock import DeviceLock
        from kernelwright.model.profile import profile

        with DeviceLock(torch_device(str(loaded.device)), show=show):
            return profile(loaded, request, show)
    except KernelwrightError as error:
        return Fault(error=type(error).__name__, message=str(error), trace=traceback.format_exc())
    except Exception as error:  # noqa: BLE001 - a user's model may raise anything; it is the user's to mend, in one line
        words = " ".join(str(error).split())[:300]
        place = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {words} ({place.filename}:{place.lineno})"
        told: KernelwrightError = ModelNotLoadable(
            request.spec, problem, "Run it by itself first; --debug shows the whole trace."
        )
        if is_out_of_memory(error):
            told = OutOfMemory(
                request.spec, "its own call fits, measuring it does not", problem, "Make its inputs smaller."
            )
        return Fault(error=type(told).__name__, message=str(told), trace=traceback.format_exc())


if __name__ == "__main__":
    main()
