"""Prices of tokens, and what requests cost at them, in whole millionths of a currency.

A price is kept in millionths per million tokens, so that a request's cost is a sum of whole numbers, divided once
and rounded up. gateway/dispatch/costs.py computes with them what a request is reserved for and charged.
"""

from dataclasses import dataclass

MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in millionths of the currency per million tokens."""

    input: int
    cached_input: int
    output: int

    @classmethod
    def of(cls, *, input: float, cached_input: float | None, output: float) -> "Prices":
        """Return prices that are given in units of the currency per million tokens."""
        cached = input if cached_input is None else cached_input
        return cls(
            input=round(input * MILLION), cached_input=round(cached * MILLION), output=round(output * MILLION)
        )

    def cost(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Return what these tokens cost, in millionths of the currency."""
        uncached = prompt_tokens - cached_tokens
        whole = uncached * self.input + cached_tokens * self.cached_input + output_tokens * self.output
        return -(-whole // MILLION)

    @property
    def saving_per_cached_token(self) -> float:
        """How much less a cached prompt token costs, in millionths of the currency."""
        return (self.input - self.cached_input) / MILLION

    def cost_at_most(self, *, prompt_tokens: int, output_tokens: int) -> int:
        """Return the most that these tokens cost, whatever of the prompt is cached."""
        dearest = max(self.input, self.cached_input)
        return -(-(prompt_tokens * dearest + output_tokens * self.output) // MILLION)

    def output_tokens_for(self, spend: int, *, prompt_tokens: int) -> int | None:
        """Return the output tokens that this pays for besides the prompt; None where they cost nothing."""
        if not self.output:
            return None
        left = spend * MILLION - prompt_tokens * max(self.input, self.cached_input)
        return max(0, left // self.output)
