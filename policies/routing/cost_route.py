"""A route of the policy `cost`: what its cost is made of, for operators to read."""

from typing import NamedTuple

from policies.routing.protocol import Route


class CostTerms(NamedTuple):
    """What a cost is made of: milliseconds that add up, and a factor of their sum."""

    wait_ms: float
    own_ms: float
    price_ms: float
    delay_ms: float
    memory_ms: float
    room_ms: float
    copy_ms: float
    """Below 0: what later requests with the same prefix save."""
    slow_start_ms: float
    stay: float

    def total(self) -> float:
        """Return the cost in milliseconds."""
        return sum(self[:-1]) * self.stay


class CostRoute(Route, frozen=True, kw_only=True, gc=False):
    """A Route of the policy `cost`; its reason and its named terms are made when they are read."""

    cost_terms: tuple[float, ...]
    """The values of CostTerms."""
    prompt_tokens: int
    off_gpu_tokens: int
    """Of the matched tokens, those that have to be loaded to the GPU."""
    doubted_tokens: int
    """Tokens beyond the matched ones that the index does not count on."""

    @property  # type: ignore[misc]  # Route allows it, see there.
    def terms(self) -> CostTerms:
        """What the estimate was made of."""
        return CostTerms._make(self.cost_terms)

    @property  # type: ignore[misc]  # Route allows it, see there.
    def reason(self) -> str:
        """Why the worker has this rank."""
        off = f" ({self.off_gpu_tokens} off the GPU)" if self.off_gpu_tokens else ""
        doubted = f" ({self.doubted_tokens} more in doubt)" if self.doubted_tokens else ""
        wait_ms, own_ms, *_ = self.cost_terms
        return (
            f"{self.matched_tokens} of {self.prompt_tokens} tokens held{off}{doubted}, "
            f"waits {wait_ms:.1f} ms, computes {own_ms:.1f} ms"
        )
