"""The prefill speed of an engine, from two counters of its own: prompt tokens computed, and the time that took.

    read:   0 .......... enough ......... enough ...      each stretch gives a rate; the fastest is the engine's

Small prefills take longer for each token, and the first ones wait for kernels to be compiled: the fastest rate is
nearest to that of a long prompt. The first stretch begins with the engine's start, so that a gateway which has just
started learns from everything before. Routing starts with this rate; from then on policies/speeds.py learns from
answers.
"""

from dataclasses import dataclass

TOKENS_ENOUGH = 8192
"""Computed tokens that make a stretch."""

MS_PER_TOKEN = (1e-5, 1000.0)
"""Bounds of a plausible rate."""


@dataclass(slots=True)
class PrefillRate:
    """The fastest prefill rate that an engine's counters have shown."""

    ms_per_token: float | None = None
    """None until enough was computed."""
    _tokens: int = 0
    _us: int = 0

    def read(self, tokens: int, us: int) -> bool:
        """Take over the counters as they are now; return whether the rate has changed.

        `tokens`: prompt tokens that the engine has computed; `us`: the microseconds that took.
        """
        if tokens < self._tokens or us < self._us:
            # The engine has restarted; it may run on another GPU now.
            self.ms_per_token, self._tokens, self._us = None, 0, 0
        computed, took = tokens - self._tokens, us - self._us
        if computed < TOKENS_ENOUGH or not took:
            return False
        self._tokens, self._us = tokens, us
        rate = min(max(took / 1000 / computed, MS_PER_TOKEN[0]), MS_PER_TOKEN[1])
        if self.ms_per_token is not None and self.ms_per_token <= rate:
            return False
        self.ms_per_token = rate
        return True
