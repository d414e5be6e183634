"""What tokens cost, in whole micro-units of the operator's currency: sums of costs are exact, in any order.

0.10 per million tokens  =  0.10 micro-units per token  =  100,000 micro-units per million tokens
"""

from dataclasses import dataclass

MILLION = 1_000_000
COST_MAX = 2**53
"""So that sums of many fit into a database's integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one model, in micro-units per million tokens. `input`: prompt tokens that were not cached."""

    input: int = 0
    cached_input: int = 0
    output: int = 0


FREE = Price()


def price_of(*, input: float, cached_input: float | None, output: float) -> Price:
    """From units per million tokens, as the settings have them. Cached tokens cost as others by default."""
    cached = input if cached_input is None else cached_input
    return Price(input=_micro(input), cached_input=_micro(cached), output=_micro(output))


def cost(price: Price, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
    """Micro-units, rounded half up once for the whole request."""
    millionths = (
        (prompt_tokens - cached_tokens) * price.input
        + cached_tokens * price.cached_input
        + output_tokens * price.output
    )
    return min((millionths + MILLION // 2) // MILLION, COST_MAX)


def _micro(units: float) -> int:
    return round(units * MILLION)
