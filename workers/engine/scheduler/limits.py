"""The checks at submission: a request that could never run is refused at once and cannot block the engine later."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workers.engine.errors import RequestRefused
from workers.engine.scheduler.policy import PRIORITY_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest request that this engine can finish when it runs alone."""

    context_length: int
    """Most tokens of a prompt and its output."""
    pool_tokens: int
    """Tokens that the KV pool holds."""
    vocab_size: int

    @property
    def tokens_max(self) -> int:
        """The most tokens that a prompt and its output may have together."""
        return min(self.context_length, self.pool_tokens)

    def check(self, prompt: Sequence[int], max_tokens: int) -> None:
        """Raise RequestRefused when prompt and output do not fit, or a token id does not exist.

        The message names both numbers of tokens.
        """
        if not prompt:
            raise RequestRefused("the prompt is empty; at least one token is needed", param="prompt")
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            raise RequestRefused(f"token ids must be between 0 and {self.vocab_size - 1}", param="prompt")
        if len(prompt) + max_tokens > self.tokens_max:
            raise RequestRefused(
                f"This model's maximum context length is {self.tokens_max} tokens, but the request needs "
                f"{len(prompt) + max_tokens} ({len(prompt)} in the prompt, {max_tokens} for the output).",
                param="max_tokens" if len(prompt) < self.tokens_max else "prompt",
                code="context_length_exceeded",
            )


def check_priority_and_deadline(priority: int, deadline_seconds: float | None) -> None:
    """Raise RequestRefused when a request's priority or deadline is out of range."""
    if abs(priority) > PRIORITY_MAX:
        raise RequestRefused(
            f"priority must be between -{PRIORITY_MAX} and {PRIORITY_MAX}, not {priority}", param="priority"
        )
    if deadline_seconds is not None and not (math.isfinite(deadline_seconds) and deadline_seconds > 0):
        raise RequestRefused(
            f"a deadline must be a positive number of seconds, not {deadline_seconds}", param="deadline_ms"
        )
