"""A language model as author: the brief as a prompt, its answer as a proposal, and what was said beside it.

Whatever a model or its server does is a reason, never an exception. A key that is missing or a name that is none is
told when the author is made, and `check` asks the server once before a run begins.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kernelwright.core.brief import Answer, Brief
from kernelwright.core.diagnosis import Diagnosis
from kernelwright.core.exchange import Exchange
from kernelwright.core.halt import Halt
from kernelwright.core.lesson import Lesson
from kernelwright.core.thinking import Attempted, Consultation, Measured, Profiled, Reflection
from kernelwright.llm.conversation import Asked
from kernelwright.llm.ledger import Prices, read_prices
from kernelwright.llm.providers import connect
from kernelwright.llm.questions import Llm, Message, Question
from kernelwright.llm.recorded import Recorded
from kernelwright.llm.roles.analyst import analyse
from kernelwright.llm.roles.namer import name
from kernelwright.llm.roles.reflector import reflect
from kernelwright.llm.roles.writer import choose_values, write
from kernelwright.llm.spec import parse_spec

SUMMARY = (
    "a language model: --author llm:openai:MODEL, llm:anthropic:MODEL or llm:openai:MODEL@http://HOST:PORT/v1"
)
CHECK_LIMIT_S = 60.0


def author(detail: str = "") -> "LlmAuthor":
    """Return the author behind `openai:MODEL`, `anthropic:MODEL` or `openai:MODEL@URL`, options after commas."""
    return LlmAuthor(connect(parse_spec(detail)), read_prices())


def replayed(detail: str, exchanges: Iterable[Exchange], text_of: Callable[[str], str]) -> "LlmAuthor":
    """Return the same author answering from recorded exchanges, their texts found by hash; no key, no network."""
    return LlmAuthor(Recorded(parse_spec(detail), exchanges, text_of), read_prices())


@dataclass(frozen=True)
class LlmAuthor:
    """An llm that writes kernels or only chooses their values, says what they wait for, and looks back on them."""

    llm: Llm
    prices: Prices
    halt: Halt | None = None
    """Given, it ends whatever is being asked."""

    def propose(self, brief: Brief) -> Answer:
        """Return what the llm proposes, with everything that was said."""
        asked = Asked(self.prices, brief.seed, brief.time_limit_s, halt=self.halt)
        answers = choose_values if self.llm.spec.mode == "params" else write
        found = answers(self.llm, brief, asked)
        return Answer(
            proposals=found.value or (),
            reason=found.reason,
            exchanges=found.exchanges,
            texts=found.texts,
        )

    def analyse(self, profiled: Profiled, wanted: int, seed: int) -> Consultation[tuple[Diagnosis, ...]]:
        """Return what a candidate waits for, its evidence checked against the metrics."""
        return analyse(self.llm, profiled, wanted, Asked(self.prices, seed, halt=self.halt))

    def reflect(self, attempted: Attempted, seed: int) -> Consultation[Reflection]:
        """Return what an attempt teaches."""
        return reflect(self.llm, attempted, Asked(self.prices, seed, halt=self.halt))

    def name(self, measured: Measured, seed: int) -> Consultation[Lesson]:
        """Return the lesson of a result."""
        return name(self.llm, measured, Asked(self.prices, seed, halt=self.halt))

    def until(self, halt: Halt) -> "LlmAuthor":
        """Return the same author, whose questions end when the word is given."""
        return replace(self, halt=halt)

    def check(self) -> None:
        """Ask for one word; a refused key, an unknown model or a silent server is an `LlmFailed` naming the remedy."""
        self.llm.ask(
            Question("check", (Message("user", "Answer with the word: ready"),), limit_s=CHECK_LIMIT_S)
        )
