"""Baseline `preble`, Preble's E2 (ICLR'25): exploit a match of more than half of the prompt, else explore.

    cost = load + eviction + own prefill        in milliseconds

    load        prefill ahead, and what running streams have still to decode
    eviction    computing again what the prompt pushes out of a full KV

If the longest match is more than half of the prompt (exploit), only workers with that match are considered; else
(explore) all are. Of these, the least cost. Preble also rebalances nodes over windows of minutes, which needs
memory: here the load of this moment is used for that of three minutes, and every evicted token is assumed to be
needed again.
"""

from collections.abc import Sequence
from typing import ClassVar

from policies.routing.estimate import matched_tokens, own_ms, uncached_tokens
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery


class Preble:
    """The baseline `preble`."""

    name: ClassVar[str] = "preble"
    options_type: ClassVar[type[PolicyOptions]] = PolicyOptions

    def __init__(self, options: PolicyOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by cost; when exploiting, workers without the longest match come last."""
        if not candidates:
            return ()
        longest = max(matched_tokens(query, candidate) for candidate in candidates)
        exploits = longest > query.prompt_tokens - longest
        routes = []
        for candidate in candidates:
            cost = _cost_ms(query, candidate)
            if exploits and matched_tokens(query, candidate) < longest:
                # Workers without the prefix come after all that have it.
                cost += 1e9
            routes.append(
                Route(
                    worker=candidate.worker.id,
                    cost_ms=cost,
                    matched_tokens=matched_tokens(query, candidate),
                    reason="exploits the prefix" if exploits else "explores: least cost",
                )
            )
        return tuple(sorted(routes, key=lambda route: route.cost_ms))


def _cost_ms(query: RouteQuery, candidate: Candidate) -> float:
    worker = candidate.worker
    speed = worker.speed
    uncached = uncached_tokens(query, candidate)
    load = speed.ms_per_token * worker.tokens_queued
    load += worker.streams * query.output_tokens / 2 * speed.step_ms / max(1, worker.streams)
    eviction = 0.0
    if worker.kv_tokens_max:
        excess = worker.kv_tokens + uncached + query.output_tokens - worker.kv_tokens_max
        eviction = speed.ms_per_token * max(0.0, excess)
    return load + eviction + own_ms(worker, uncached)
