"""The cost of a request in the queue, in cost units: fairness counts work, not requests.

    cost = uncached * uncached tokens + cached * cached tokens + output * output tokens

Fairness by number of requests lets a tenant with long prompts take a worker for itself. An output token weighs
twice an uncached prompt token (VTC, OSDI'24); a cached one costs the engine a little: its blocks are held and read.
"""

import msgspec


class CostWeights(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Cost units of one token of each sort."""

    uncached: float = 1.0
    cached: float = 0.1
    output: float = 2.0

    def units(self, *, uncached_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """Return the cost units of a request: estimated when it gets its turn, actual when it has ended."""
        return self.uncached * uncached_tokens + self.cached * cached_tokens + self.output * output_tokens
