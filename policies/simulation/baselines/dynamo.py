"""Baseline `dynamo`, NVIDIA Dynamo's KV router: the least sum of tokens to prefill and tokens that decode.

    cost = prefill_scale * (queued + new - cached) + tokens in the KV of running streams, this prompt included

Dynamo counts blocks of the engine's own size, here it is tokens; ties go by the query's draw. The defaults are
those of its router, with temperature 0.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.estimate import matched_tokens, uncached_tokens
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery


class DynamoOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the baseline `dynamo`."""

    prefill_scale: Annotated[float, Meta(ge=0, le=1e9)] = 1.0


class Dynamo:
    """The baseline `dynamo`."""

    name: ClassVar[str] = "dynamo"
    options_type: ClassVar[type[PolicyOptions]] = DynamoOptions

    def __init__(self, options: DynamoOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by cost."""
        count, scale = len(candidates), self.options.prefill_scale
        first = int(query.draw * count)
        routes = []
        for candidate in candidates:
            worker = candidate.worker
            prefill = worker.tokens_queued + uncached_tokens(query, candidate)
            decode = worker.kv_tokens + query.prompt_tokens
            routes.append(
                Route(
                    worker=worker.id,
                    # At the worker's prefill speed, so that costs are milliseconds as in other policies.
                    cost_ms=worker.speed.ms_per_token * (scale * prefill + decode),
                    matched_tokens=matched_tokens(query, candidate),
                    reason=f"{prefill:.0f} tokens to prefill, {decode} to decode",
                )
            )
        return tuple(
            routes[at]
            for at in sorted(range(count), key=lambda at: (routes[at].cost_ms, (at - first) % count))
        )
