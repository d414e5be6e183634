"""Policy `p2c`, power of two choices: of two workers that are drawn, the one with less prefill work queued.

Two draws bring the longest queue from log n / log log n to log log n (Mitzenmacher, 2001), and however stale the
loads are, the requests do not all go to the same worker. The other workers follow by the same measure, for the case
that both drawn workers fail.
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.routing.estimate import matched_tokens
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery
from policies.routing.stable_random import two_distinct


class PowerOfTwo:
    """The policy `p2c`."""

    name: ClassVar[str] = "p2c"
    options_type: ClassVar[type[PolicyOptions]] = PolicyOptions

    def __init__(self, options: PolicyOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank the two drawn workers first; within each group by milliseconds of queued prefill, then streams."""
        count = len(candidates)
        drawn = two_distinct(query.draw, count) if count > 1 else range(count)

        def order(at: int) -> tuple[bool, float, int]:
            worker = candidates[at].worker
            return (at not in drawn, worker.tokens_queued * worker.speed.ms_per_token, worker.streams)

        return tuple(
            Route(
                worker=candidates[at].worker.id,
                cost_ms=0.0,
                matched_tokens=matched_tokens(query, candidates[at]),
                reason=f"{candidates[at].worker.tokens_queued} tokens ahead, "
                + ("of two drawn" if at in drawn else "not drawn"),
            )
            for at in sorted(range(count), key=order)
        )
