"""An llm that only repeats itself: replies of earlier exchanges, given again to the same prompts, without a key."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from kernelwright.core.errors import LlmContextTooLong, LlmFailed
from kernelwright.core.exchange import Exchange
from kernelwright.core.frozen import digest
from kernelwright.llm.conversation import CUT, written
from kernelwright.llm.questions import Question, Reply, seed_sent
from kernelwright.llm.spec import LlmSpec

REMEDY = "Replay the run with the version and the settings that recorded it."


class Recorded:
    """Recorded exchanges; the same prompt asked twice gets its replies in the order they were given."""

    def __init__(self, spec: LlmSpec, exchanges: Iterable[Exchange], text_of: Callable[[str], str]) -> None:
        self._spec, self._text_of = spec, text_of
        self._waiting: dict[tuple[str, int | None], deque[Exchange]] = defaultdict(deque)
        for one in exchanges:
            self._waiting[one.prompt_hash, one.seed].append(one)

    @property
    def spec(self) -> LlmSpec:
        """Return which llm was recorded."""
        return self._spec

    def hide(self, text: str) -> str:
        """Return the text: there is no key, and it was cut out when the prompt was recorded."""
        return text

    def ask(self, question: Question) -> Reply:
        """Return what was answered then; a failure then is one now."""
        prompt = written(question.messages)
        waiting = self._waiting[digest(prompt), seed_sent(self._spec, question.seed)]
        if not waiting:
            raise LlmFailed(self._spec.where, "was never asked this in the recording", REMEDY)
        found = waiting.popleft()
        if found.error == LlmContextTooLong.__name__:
            raise LlmContextTooLong(self._spec.where, self._spec.model)  # the shorter prompt is recorded too
        if found.reply_hash is None:
            raise LlmFailed(self._spec.where, f"gave no answer in the recording: {found.failure}", REMEDY)
        return Reply(
            text=self._text_of(found.reply_hash),
            model=found.model,
            seconds=found.seconds,
            attempts=found.attempts,
            tokens_in=found.tokens_in,
            tokens_out=found.tokens_out,
            is_cut=found.failure == CUT,
        )
