"""NVIDIA Dynamo's KV router: blocks to prefill plus blocks that decode, added up.

    cost = prefill_scale * (queued + new - credit) + decode blocks, the request's own included

In blocks of the engine's own size, ties by lot. Defaults: of its router, temperature 0.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.estimate import matched_tokens, uncached_tokens
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery


class DynamoOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prefill_scale: Annotated[float, Meta(ge=0, le=1e9)] = 1.0


class Dynamo:
    name: ClassVar[str] = "dynamo"
    options_type: ClassVar[type[PolicyOptions]] = DynamoOptions

    def __init__(self, options: DynamoOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
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
                    # Blocks of prefill at the worker's speed, so that its costs are milliseconds as others' are.
                    cost_ms=worker.speed.ms_per_token * (scale * prefill + decode),
                    matched_tokens=matched_tokens(query, candidate),
                    reason=f"{prefill:.0f} tokens to prefill, {decode} to decode",
                )
            )
        return tuple(
            routes[at]
            for at in sorted(range(count), key=lambda at: (routes[at].cost_ms, (at - first) % count))
        )
