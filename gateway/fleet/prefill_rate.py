"""What a prompt token takes an engine, by two counters of its own: prompt tokens that it computed, and how long it
was at that.

    read:   0 .......... enough ......... enough ...      each stretch gives a rate; the fastest is the engine's

Small prefills take longer for each token, and the first ones wait for kernels to be compiled: what was fastest is
nearest to what a long prompt takes. The first stretch begins with the engine, so a gateway that has just started
knows of everything before.
"""

from dataclasses import dataclass

TOKENS_ENOUGH = 8192
MS_PER_TOKEN = (1e-5, 1000.0)


@dataclass(slots=True)
class PrefillRate:
    """`ms_per_token`: None until enough was computed."""

    ms_per_token: float | None = None
    _tokens: int = 0
    _us: int = 0

    def read(self, tokens: int, us: int) -> bool:
        """The counters now. Has the rate changed?"""
        if tokens < self._tokens or us < self._us:
            # The engine has begun anew; what it is made of may be another GPU.
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
