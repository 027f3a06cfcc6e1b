"""`Exchange`: one question put to an llm and its answer, as the journal keeps it; the texts lie in blobs by hash.

And what many of them sum up to: the ledger of tokens, money and seconds.
"""

from collections.abc import Iterable

from pydantic import Field

from kernelwright.core.frozen import Frozen, Noun


class Exchange(Noun):
    """Who was asked what, what came back, and what it cost."""

    role: str
    """As what the llm was asked: `writer`, `analyst`, `reflector`, `namer`."""
    provider: str
    """Whose server: `openai`, `anthropic`, or either with `@` and the address of another one."""
    model: str
    """The exact model id the server named in its answer; what was asked for if there was no answer."""
    temperature: float | None = None
    """As it was sent; None if it was left to the server."""
    seed: int | None = None
    """As it was sent; None if none was."""
    topic: str = ""
    """What it was about: the candidate, or the expansion; with it a replay finds the reply to a prompt whose times
    differ."""
    prompt_hash: str
    """Blob with everything that was sent."""
    reply_hash: str | None = None
    """Blob with the answer; None if there was none."""
    tokens_in: int | None = Field(default=None, ge=0)
    """Tokens of the prompt, as the server counts; None if it did not say."""
    tokens_out: int | None = Field(default=None, ge=0)
    """Tokens of the answer, hidden reasoning included; None if the server did not say."""
    cost: float | None = Field(default=None, ge=0)
    """US dollars by the price table; None means unknown, never free."""
    seconds: float = Field(ge=0)
    """From the first attempt to the end, waits included."""
    attempts: int = Field(default=1, ge=1)
    """Requests it took."""
    failure: str = ""
    """Why there is no answer, or why it could not be used."""
    error: str = ""
    """Class of the failure in `core/errors`, if there is no answer."""


class Totals(Frozen):
    """Sums over exchanges."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    uncounted: int = 0
    """Answers whose server did not count tokens."""
    cost: float = 0.0
    """US dollars of the calls whose price is known."""
    unpriced: tuple[str, ...] = ()
    """Models that answered at an unknown price, sorted."""
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Return the tokens of prompts and answers, as far as they were counted."""
        return self.tokens_in + self.tokens_out

    @property
    def money(self) -> str:
        """Return the cost in words; what is unknown is named."""
        known = f"${self.cost:.4f}"
        if not self.unpriced:
            return known
        names = ", ".join(self.unpriced)
        return f"{known} and an unknown price for {names}" if self.cost else f"unknown price ({names})"


def totals(exchanges: Iterable[Exchange]) -> Totals:
    """Return the sums; a call without an answer counts with its seconds."""
    every = tuple(exchanges)
    answered = [one for one in every if one.reply_hash is not None]
    return Totals(
        calls=len(every),
        tokens_in=sum(one.tokens_in or 0 for one in every),
        tokens_out=sum(one.tokens_out or 0 for one in every),
        uncounted=sum(one.tokens_in is None for one in answered),
        cost=sum(one.cost or 0.0 for one in every),
        unpriced=tuple(sorted({one.model for one in answered if one.cost is None})),
        seconds=sum(one.seconds for one in every),
    )


def past_limit(spent: Totals, max_cost: float | None, name: str = "--max-cost") -> str | None:
    """Return why no further call is allowed under a limit in dollars, or None.

    A limit cannot be kept with a model whose price is unknown, so such a call ends it too.
    """
    if max_cost is None:
        return None
    if spent.unpriced:
        return f"{name} {max_cost:g} cannot be kept: {', '.join(spent.unpriced)} has no known price"
    if spent.cost >= max_cost:
        return f"{name} {max_cost:g} is reached: ${spent.cost:.4f} spent in {spent.calls} calls"
    return None


def past_tokens(spent: Totals, max_tokens: int | None, name: str = "--max-tokens") -> str | None:
    """Return why no further call is allowed under a limit in tokens, or None; what is not counted ends it too."""
    if max_tokens is None:
        return None
    if spent.uncounted:
        return f"{name} {max_tokens} cannot be kept: a server did not count the tokens of {spent.uncounted} answers"
    if spent.tokens >= max_tokens:
        return f"{name} {max_tokens} is reached: {spent.tokens} tokens in {spent.calls} calls"
    return None
