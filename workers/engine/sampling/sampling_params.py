"""The sampling parameters of one request."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from workers.engine.errors import RequestRefused

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would overflow, and the draw would be the maximum anyway."""

LOGIT_BIAS_MAX = 1024
"""Tokens in `logit_bias`; the engine handles each of them for every token of the request."""
STOP_TOKENS_MAX = 256
"""Tokens in `stop_token_ids`; the engine handles each of them for every token of the request."""

TOP_LOGPROBS_MAX = 20
"""The largest `logprobs`, as in OpenAI's API."""

REPETITION_MAX = 100.0
"""The largest `repetition_penalty`; its inverse is the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The validated sampling parameters of a request; RequestRefused names the wrong field."""

    max_tokens: int
    min_tokens: int = 0
    """The answer does not end before it has this many tokens, unless a grammar allows no more."""
    temperature: float = 1.0
    """0 always takes the likeliest token."""
    top_p: float = 1.0
    """Keep the likeliest tokens that together have this probability."""
    top_k: int = 0
    """Keep this many of the likeliest tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the likeliest token's probability."""
    repetition_penalty: float = 1.0
    """Over prompt and output; above 1 tokens that occurred become less likely."""
    presence_penalty: float = 0.0
    """Over the output: subtracted once from the logit of each token that occurred."""
    frequency_penalty: float = 0.0
    """Over the output: subtracted from the logit for each occurrence of a token."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens."""
    logprobs: int | None = None
    """Report each token's log probability, and those of this many likeliest tokens; None reports none."""
    seed: int | None = None
    """Makes the answer repeatable; None: a seed of the engine's."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer, and are not part of it."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the answer, besides the model's end-of-sequence tokens."""
    ignore_eos: bool = False
    """Whether the answer continues after an end-of-sequence token of the model."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestRefused(f"max_tokens must be at least 1, not {self.max_tokens}", param="max_tokens")
        self._within("min_tokens", 0, self.max_tokens)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestRefused(
                f"temperature must not be negative, not {self.temperature}", param="temperature"
            )
        self._within("top_p", 0, 1)
        if self.top_k < -1:
            raise RequestRefused(
                f"top_k must be positive, or 0 or -1 for all, not {self.top_k}", param="top_k"
            )
        self._within("min_p", 0, 1)
        # Beyond it float32 overflows, and no token can be drawn from infinite or undefined weights.
        self._within("repetition_penalty", 1 / REPETITION_MAX, REPETITION_MAX)
        self._within("presence_penalty", -2, 2)
        self._within("frequency_penalty", -2, 2)
        if len(self.logit_bias) > LOGIT_BIAS_MAX:
            raise RequestRefused(f"logit_bias has at most {LOGIT_BIAS_MAX} tokens", param="logit_bias")
        if not all(-100 <= bias <= 100 for bias in self.logit_bias.values()):
            raise RequestRefused("each value of logit_bias must be between -100 and 100", param="logit_bias")
        if self.logprobs is not None:
            self._within("logprobs", 0, TOP_LOGPROBS_MAX)
        if "" in self.stop:
            raise RequestRefused("stop must not contain an empty string", param="stop")
        if len(self.stop_token_ids) > STOP_TOKENS_MAX:
            raise RequestRefused(
                f"stop_token_ids has at most {STOP_TOKENS_MAX} tokens", param="stop_token_ids"
            )

    def _within(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        # Written so that nan is refused too.
        if not least <= value <= most:
            raise RequestRefused(f"{name} must be between {least} and {most}, not {value}", param=name)

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise RequestRefused when a parameter names a token that the model does not have."""
        for name, tokens in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            if any(not 0 <= token < vocab_size for token in tokens):
                raise RequestRefused(f"{name}: token ids must be between 0 and {vocab_size - 1}", param=name)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether the logits depend on the tokens so far."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def filters_by_rank(self) -> bool:
        """Whether top-k or top-p is used, which need the tokens ranked by probability."""
        return self.top_k > 0 or self.top_p < 1
