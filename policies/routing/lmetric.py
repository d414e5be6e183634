"""Policy `product`, the rule of LMETRIC (OSDI'26): the least product of prefill work and batch size.

    score = s (Q + N) (R + 1)      in milliseconds of prefill

    s  ms per uncached token       Q  uncached tokens ahead       N  uncached tokens of this prompt
    R  streams that run there

The first factor is how long the prefill takes, the second how many streams it delays, so the product needs no
weights. The paper's score is without s, which makes workers of unequal speed comparable.
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.routing.estimate import matched_tokens, uncached_tokens
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery


class LmetricPolicy:
    """The policy `product`."""

    name: ClassVar[str] = "product"
    options_type: ClassVar[type[PolicyOptions]] = PolicyOptions

    def __init__(self, options: PolicyOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by score; ties go by the query's draw."""
        count = len(candidates)
        first = int(query.draw * count)
        routes = [_route(query, candidate) for candidate in candidates]
        return tuple(
            routes[at]
            for at in sorted(range(count), key=lambda at: (routes[at].cost_ms, (at - first) % count))
        )


def _route(query: RouteQuery, candidate: Candidate) -> Route:
    worker = candidate.worker
    tokens = worker.tokens_queued + uncached_tokens(query, candidate)
    return Route(
        worker=worker.id,
        cost_ms=worker.speed.ms_per_token * tokens * (worker.streams + 1),
        matched_tokens=matched_tokens(query, candidate),
        reason=f"{tokens:.0f} tokens of prefill, {worker.streams} streams",
        ms_per_queued_token=worker.speed.ms_per_token * (worker.streams + 1),
    )
