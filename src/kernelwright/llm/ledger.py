"""What an answer costs, by the price table. An unknown price is said, never counted as 0; sums are in core/exchange."""

import re
import tomllib
from datetime import date
from importlib import resources

from pydantic import Field

from kernelwright.core.frozen import Frozen
from kernelwright.llm.questions import Reply
from kernelwright.llm.spec import LlmSpec

TABLE = "prices.toml"
DATED = r"-(?:\d{8}|\d{4}-\d{2}-\d{2})"
"""What a server appends to the name of a model that is pinned to a day."""
MILLION = 1e6


class Price(Frozen):
    """What a model costs per million tokens, in US dollars."""

    provider: str
    name: str
    """The model's name without a date."""
    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """For tokens of the prompt the server had read before; None if it has no such price."""
    up_to: int | None = Field(default=None, ge=1)
    """Tokens of prompt up to which these prices hold; None if always."""

    def cost(self, tokens_in: int, tokens_out: int, cached: int) -> float | None:
        """Return the cost of a call; None if these prices do not hold for it."""
        if self.up_to is not None and tokens_in > self.up_to:
            return None
        again = min(cached, tokens_in)
        read = (tokens_in - again) * self.input + again * (self.input if self.cached is None else self.cached)
        return (read + tokens_out * self.output) / MILLION


class Prices(Frozen):
    """The price table."""

    date: date
    """When it was collected."""
    source: str
    model: tuple[Price, ...]

    def of(self, provider: str, model: str) -> Price | None:
        """Return the price of a model by its exact name, a date at its end left aside."""
        name = re.sub(f"{DATED}$", "", model)
        return next(
            (one for one in self.model if one.provider == provider and one.name in (model, name)), None
        )


def read_prices() -> Prices:
    """Return the table that comes with the package."""
    text = resources.files("kernelwright.llm").joinpath(TABLE).read_text(encoding="utf-8")
    return Prices.model_validate(tomllib.loads(text))


def cost_of(spec: LlmSpec, reply: Reply, prices: Prices) -> float | None:
    """Return what an answer cost; None if that is not known: another server than the provider's has its own prices."""
    if spec.base_url is not None or reply.tokens_in is None or reply.tokens_out is None:
        return None
    price = prices.of(spec.provider, reply.model) or prices.of(spec.provider, spec.model)
    return price.cost(reply.tokens_in, reply.tokens_out, reply.cached) if price else None
