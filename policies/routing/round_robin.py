"""Policy `round_robin`, the baseline: each worker in its turn, whatever prefixes it holds and whatever its load.

first worker = sequence number of the request modulo the number of workers, in the order of their ids
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.routing.estimate import matched_tokens
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery


class RoundRobin:
    """The policy `round_robin`."""

    name: ClassVar[str] = "round_robin"
    options_type: ClassVar[type[PolicyOptions]] = PolicyOptions

    def __init__(self, options: PolicyOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank the workers by id, beginning with the one that is next in turn."""
        if not candidates:
            return ()
        ordered = sorted(candidates, key=lambda candidate: candidate.worker.id)
        first = query.sequence % len(ordered)
        return tuple(
            Route(worker=c.worker.id, cost_ms=0.0, matched_tokens=matched_tokens(query, c), reason="its turn")
            for c in ordered[first:] + ordered[:first]
        )
