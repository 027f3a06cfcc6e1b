"""An llm that only repeats itself: replies of earlier exchanges, given again without a key.

The same prompt gets its reply. A prompt that differs only in what was measured gets the reply to the same topic, and is
counted: a live judge never measures the same time twice.
"""

import threading
from collections.abc import Callable, Iterable

from kernelwright.core.errors import LlmCancelled, LlmContextTooLong, LlmFailed, LlmNotRecorded
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
        self._waiting = list(exchanges)
        self._lock = threading.Lock()
        self.total = len(self._waiting)
        self.differing = 0
        """Replies that were given to a prompt with other words."""

    @property
    def spec(self) -> LlmSpec:
        """Return which llm was recorded."""
        return self._spec

    @property
    def left(self) -> int:
        """Return how many replies nobody has asked for yet."""
        return len(self._waiting)

    def hide(self, text: str) -> str:
        """Return the text: there is no key, and it was cut out when the prompt was recorded."""
        return text

    def ask(self, question: Question) -> Reply:
        """Return what was answered then; a failure then is one now."""
        found = self._taken(question)
        if found.error == LlmContextTooLong.__name__:
            raise LlmContextTooLong(self._spec.where, self._spec.model)  # the shorter prompt is recorded too
        if found.error == LlmCancelled.__name__:
            raise LlmCancelled(self._spec.where)
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

    def _taken(self, question: Question) -> Exchange:
        """Return the exchange of a question, which is used up then."""
        prompt, seed = digest(written(question.messages)), seed_sent(self._spec, question.seed)
        with self._lock:
            same = [one for one in self._waiting if (one.prompt_hash, one.seed) == (prompt, seed)]
            near = [
                one
                for one in self._waiting
                if question.topic and (one.role, one.topic) == (question.role, question.topic)
            ]
            if not same and not near:
                raise LlmNotRecorded(self._spec.where, question.role, self.total - self.left, self.total)
            found = (same or near)[0]
            self._waiting.remove(found)
            self.differing += not same
        return found
