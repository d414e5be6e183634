"""How one request wants its tokens drawn, and when it ends."""

import math
from dataclasses import dataclass

from workers.engine.errors import RequestRefused

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: dividing by it would overflow, and the draw would be the maximum anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Validated sampling settings; RequestRefused names the field."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep this many of the likeliest tokens; 0 or -1 keeps all."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestRefused(f"max_tokens must be at least 1, not {self.max_tokens}", param="max_tokens")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestRefused(
                f"temperature must not be negative, not {self.temperature}", param="temperature"
            )
        if not 0 <= self.top_p <= 1:
            raise RequestRefused(f"top_p must be between 0 and 1, not {self.top_p}", param="top_p")
        if self.top_k < -1:
            raise RequestRefused(
                f"top_k must be positive, or 0 or -1 for all, not {self.top_k}", param="top_k"
            )
        if "" in self.stop:
            raise RequestRefused("stop must not contain an empty string", param="stop")

    @property
    def greedy(self) -> bool:
        """Always the likeliest token."""
        return self.temperature < GREEDY_BELOW
