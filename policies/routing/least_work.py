"""Policy `least_work`: the worker with the least prefill work queued, whatever prefixes it holds.

    cost = s Q      s: ms per uncached token      Q: uncached tokens sent there, first token still out

The queued prefill is what delays the next first token. Ties go by open streams, then by the query's draw.
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.routing.estimate import matched_tokens
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery


class LeastWork:
    """The policy `least_work`."""

    name: ClassVar[str] = "least_work"
    options_type: ClassVar[type[PolicyOptions]] = PolicyOptions

    def __init__(self, options: PolicyOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by milliseconds of queued prefill, then by open streams."""
        count = len(candidates)
        first = int(query.draw * count)

        def order(at: int) -> tuple[float, int, int]:
            worker = candidates[at].worker
            return (worker.tokens_queued * worker.speed.ms_per_token, worker.streams, (at - first) % count)

        return tuple(
            Route(
                worker=candidates[at].worker.id,
                cost_ms=order(at)[0],
                matched_tokens=matched_tokens(query, candidates[at]),
                reason=f"{candidates[at].worker.tokens_queued} tokens ahead",
                ms_per_queued_token=candidates[at].worker.speed.ms_per_token,
            )
            for at in sorted(range(count), key=order)
        )
