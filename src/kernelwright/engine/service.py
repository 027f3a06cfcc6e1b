"""The engine's clients: the judge and the model, each a process behind a pair of pipes."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter

import kernelwright
from kernelwright.core import errors
from kernelwright.core.brief import Trial
from kernelwright.core.candidate import Candidate
from kernelwright.core.counters import CounterProfile
from kernelwright.core.environment import child_environment
from kernelwright.core.errors import BadFrame, KernelwrightError, ServiceDied
from kernelwright.core.frames import read_message, write_message
from kernelwright.core.messages.judge import (
    JUDGE_ANSWER,
    Compare,
    ComparisonAnswer,
    CountCase,
    CounterAnswer,
    Describe,
    Described,
    Disqualified,
    Evaluate,
    EvaluationAnswer,
    JudgeSettings,
    Prepare,
    RecordCase,
    RecordingAnswer,
    Screen,
    ScreeningAnswer,
)
from kernelwright.core.messages.model import (
    MODEL_ANSWER,
    ExtractModel,
    ModelExtracted,
    ModelProfiled,
    ModelTimed,
    ProfileModel,
    VerifyModel,
)
from kernelwright.core.messages.progress import Fault, Progress
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Comparison, Evaluation, Profile, Screening

Message = TypeVar("Message")
Show = Callable[[str], None]


class Relayed(KernelwrightError):
    """A mistake another process found; its own words."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def raise_fault(fault: Fault) -> None:
    """Raise a fault of another process as the same class here."""
    kind = getattr(errors, fault.error, None)
    relayed = Relayed(fault)
    if isinstance(kind, type) and issubclass(kind, KernelwrightError):
        relayed.__class__ = type(kind.__name__, (Relayed, kind), {})
    raise relayed


class Child:
    """A process of ours that answers frames."""

    def __init__(
        self,
        name: str,
        module: str,
        threads: int,
        cwd: Path | None = None,
        seeing: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile()
        self.home = tempfile.TemporaryDirectory(prefix="kernelwright-", ignore_cleanup_errors=True)
        root = Path(kernelwright.__file__).parents[1]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=child_environment({**os.environ, **(seeing or {})}, root, Path(self.home.name), threads),
            cwd=cwd,
            start_new_session=True,
        )

    def send(self, message: BaseModel) -> None:
        """Send one message."""
        assert self.process.stdin is not None
        try:
            write_message(self.process.stdin, message)
        except BrokenPipeError as error:
            raise ServiceDied(self.name, self.last_words()) from error

    def receive(self, kind: TypeAdapter[Message], show: Show) -> Message:
        """Return the next answer; progress is shown, faults are raised."""
        assert self.process.stdout is not None
        while True:
            try:
                answer = read_message(self.process.stdout, kind)
            except BadFrame as error:
                raise ServiceDied(self.name, f"{error} {self.last_words()}") from error
            if answer is None:
                raise ServiceDied(self.name, self.last_words())
            if isinstance(answer, Progress):
                show(answer.text)
            elif isinstance(answer, Fault):
                raise_fault(answer)
            else:
                return answer

    def last_words(self) -> str:
        """Return the end of what the process printed, in one line."""
        self.log.seek(0)
        text = " ".join(self.log.read()[-800:].decode(errors="replace").split())
        return text or f"exit code {self.process.poll()}"

    def close(self, patience_s: float = 5.0) -> None:
        """Hang up, wait a moment, then kill the whole group."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=patience_s)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()
        self.home.cleanup()


class JudgeClient:
    """The judge, seen from the engine; one that dies is started again, once for a request."""

    def __init__(self, settings: JudgeSettings, show: Show, seeing: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self.show = show
        self.seeing = seeing
        """Variables that put another GPU in the place of the one it is asked about (`hardware/twins`)."""
        self.child = self._start()

    def _start(self) -> Child:
        child = Child("judge", "kernelwright.judge", self.settings.threads, seeing=self.seeing)
        child.send(self.settings)
        return child

    def _ask(self, request: BaseModel) -> BaseModel:
        """Return the answer to a request; a judge that dies over it is replaced and asked once more."""
        return self._begun(request)()

    def _begun(self, request: BaseModel) -> Callable[[], BaseModel]:
        """Send a request and return at once; what is returned waits for the answer."""
        with suppress(ServiceDied):  # whoever waits for the answer finds out
            self.child.send(request)
        return partial(self._answered, request)

    def _answered(self, request: BaseModel) -> BaseModel:
        try:
            return self.child.receive(JUDGE_ANSWER, self.show)
        except ServiceDied as died:
            if isinstance(died, Relayed):  # it lives, and says that a child of its own died
                raise
            self.show(f"the judge died and is started again: {died}")
        self.child.close()
        self.child = self._start()
        try:
            self.child.send(request)
            return self.child.receive(JUDGE_ANSWER, self.show)
        except ServiceDied as died:
            if isinstance(died, Relayed):
                raise
            words = f"twice over the same {type(request).__name__}; {self.child.last_words()}"
            raise ServiceDied("judge", words) from died

    def describe(self, reference: str) -> Described:
        """Return what a user's module is, as the reference process finds it."""
        answer = self._ask(Describe(reference=reference))
        if not isinstance(answer, Described):
            raise ServiceDied("judge", f"answered {type(answer).__name__} to Describe")
        return answer

    def prepare(self, problem: Problem, candidate: Candidate) -> None:
        """Tell the judge what it will be asked about next, before it is asked about something else."""
        with suppress(ServiceDied):  # whoever asks next finds out, and starts it again
            self.child.send(Prepare(problem=problem, candidate=candidate))

    def screen(
        self, problem: Problem, candidate: Candidate, trials: Sequence[Trial]
    ) -> tuple[Screening, ...]:
        """Return a cheap look per trial, in order; why one failed is told as progress."""
        answer = self._ask(Screen(problem=problem, candidate=candidate, trials=tuple(trials)))
        if not isinstance(answer, ScreeningAnswer):
            raise ServiceDied("judge", f"answered {type(answer).__name__} to Screen")
        return answer.screenings

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        """Return the verdict on one candidate."""
        return self.verdict_on(problem, candidate, profile)()

    def verdict_on(
        self, problem: Problem, candidate: Candidate, profile: Profile
    ) -> Callable[[], Evaluation]:
        """Ask for a verdict and return at once, so that others can be asked too; what is returned waits for it."""
        return partial(_verdict, self._begun(Evaluate(problem=problem, candidate=candidate, profile=profile)))

    def compare(
        self,
        problem: Problem,
        incumbent: Candidate,
        challenger: Candidate,
        earlier: Comparison | None = None,
        *,
        confirm: bool = False,
    ) -> Comparison | Disqualified:
        """Return the paired comparison of two accepted candidates, going on from an earlier one."""
        (found,) = self.race(problem, incumbent, (challenger,), (earlier,), confirm=confirm)
        return found

    def race(
        self,
        problem: Problem,
        incumbent: Candidate,
        challengers: tuple[Candidate, ...],
        earlier: tuple[Comparison | None, ...] = (),
        *,
        confirm: bool = False,
    ) -> tuple[Comparison | Disqualified, ...]:
        """Return one result per challenger, all timed in the same heats."""
        answer = self._ask(
            Compare(
                problem=problem,
                incumbent=incumbent,
                challengers=challengers,
                earlier=earlier,
                confirm=confirm,
            )
        )
        if isinstance(answer, ComparisonAnswer):
            return answer.results
        raise ServiceDied("judge", f"answered {type(answer).__name__} to Compare")

    def count(self, problem: Problem, candidate: Candidate, case_hash: str) -> CounterProfile:
        """Return the counters of an accepted candidate on a case, on a CPU, or why there are none."""
        answer = self._ask(CountCase(problem=problem, candidate=candidate, case_hash=case_hash))
        if not isinstance(answer, CounterAnswer):
            raise ServiceDied("judge", f"answered {type(answer).__name__} to CountCase")
        return answer.profile

    def record(self, problem: Problem, candidate: Candidate, case_hash: str) -> RecordingAnswer:
        """Return copies of a candidate's kernels for a case that write down their own steps, or why there are none."""
        answer = self._ask(RecordCase(problem=problem, candidate=candidate, case_hash=case_hash))
        if not isinstance(answer, RecordingAnswer):
            raise ServiceDied("judge", f"answered {type(answer).__name__} to RecordCase")
        return answer

    def close(self) -> None:
        """End the judge and everything it started."""
        self.child.close()


def _verdict(answered: Callable[[], BaseModel]) -> Evaluation:
    answer = answered()
    if not isinstance(answer, EvaluationAnswer):
        raise ServiceDied("judge", f"answered {type(answer).__name__} to Evaluate")
    return answer.evaluation


def ask_model(
    request: ProfileModel | ExtractModel | VerifyModel, show: Show
) -> ModelProfiled | ModelExtracted | ModelTimed:
    """Return a fresh model process's answer to one request."""
    child = Child("model", "kernelwright.model", request.threads, cwd=Path.cwd())
    try:
        child.send(request)
        answer = child.receive(MODEL_ANSWER, show)
    finally:
        child.close()
    if isinstance(answer, ModelProfiled | ModelExtracted | ModelTimed):
        return answer
    raise ServiceDied("model", f"answered {type(answer).__name__}")
