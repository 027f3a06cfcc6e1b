"""`python -m kernelwright.judge`: the judge process. Requests on standard input, answers on standard output.

1. The engine starts it with an environment that holds no key, and sends `JudgeSettings`.
2. It starts the reference and the nursery, then answers `Describe`, `Screen`, `Evaluate`, `Compare`, `CountCase` and
   `RecordCase` one by one; `Prepare` is carried out beside them.
3. A candidate's failure is part of an answer. A mistake of ours is a `Fault`; the judge lives on.
4. When the engine hangs up, it kills its children and ends.
"""

import os
import sys
import traceback

from pydantic import BaseModel

from kernelwright.core.environment import close_off
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.frames import read_message, write_message
from kernelwright.core.messages.judge import (
    JUDGE_REQUEST,
    Compare,
    CountCase,
    Describe,
    Evaluate,
    EvaluationAnswer,
    JudgeSettings,
    Prepare,
    RecordCase,
    Screen,
)
from kernelwright.core.messages.progress import Fault, Progress
from kernelwright.store.disk import scratch_errors


def main() -> None:
    """Serve one engine."""
    close_off()
    # Libraries may print; the answer's channel must carry frames only.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    settings = read_message(sys.stdin.buffer, JUDGE_REQUEST)
    if not isinstance(settings, JudgeSettings):
        return
    from kernelwright.judge.evaluate import Judge

    judge = Judge(settings, lambda text: write_message(answers, Progress(text=text)))
    try:
        while (request := read_message(sys.stdin.buffer, JUDGE_REQUEST)) is not None:
            if isinstance(request, Prepare):
                try:
                    with scratch_errors(judge.home):
                        judge.prepare(request)
                except KernelwrightError as error:
                    # Nobody waits for an answer; whoever asks about the candidate is told then.
                    write_message(answers, Progress(text=f"not begun ahead: {error}"))
            else:
                write_message(answers, _answer(judge, request))
    finally:
        judge.close()


def _answer(judge: object, request: BaseModel) -> BaseModel:
    from kernelwright.judge.evaluate import Judge

    assert isinstance(judge, Judge)
    try:
        with scratch_errors(judge.home):
            if isinstance(request, Describe):
                return judge.describe(request)
            if isinstance(request, Screen):
                return judge.screen(request)
            if isinstance(request, Evaluate):
                verdict = judge.evaluate(request.problem, request.candidate, request.profile)
                return EvaluationAnswer(evaluation=verdict)
            if isinstance(request, Compare):
                return judge.compare(request)
            if isinstance(request, CountCase):
                return judge.count(request)
            if isinstance(request, RecordCase):
                return judge.record(request)
    except KernelwrightError as error:
        return Fault(error=type(error).__name__, message=str(error), trace=traceback.format_exc())
    return Fault(error="BadFrame", message=f"unexpected request {type(request).__name__}")


if __name__ == "__main__":
    main()
