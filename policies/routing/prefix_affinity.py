"""The worker where the request does best and harms least, in estimated milliseconds.

For a prompt of which a worker w holds `matched` tokens, N = max(1, prompt - credit) are left to compute, where
credit = matched - (1 - host_credit) host - (1 - disk_credit) disk: what is held off the GPU has to be loaded.

    wait   = s Q + d ceil((Q + N) / C)      prefill ahead of it; steps shared with R running streams (if any)
    own    = b + s N                        its own prefill
    price  = min(lambda_max, mean over workers of s Q / backlog_ms)
    cost   = wait + own (1 + price + harm R) + decode + pressure

    s  ms per uncached token      Q  uncached tokens sent there, first token still out      C  chunk budget
    b  ms per request             R  open streams there                                     d  ms per step

`own * harm * R` is the delay that this prefill imposes on running streams. `own * price` is the shadow price of
compute: nothing on an idle fleet, where replicating a prefix is free and fastest; large under backlog, where
computing a prefix twice takes time from everybody, so that equal prefixes gather. `decode` grows as KV fills up,
and `pressure` asks for a worker's whole backlog where the request would not fit into its KV.

A hit is thereby priced by the tokens it saves, never by "has a match": a prefix that all requests share does not
send them all to one worker. Formula and constants: the social-cost reading of LMETRIC (OSDI'26) joined with
Mooncake's TTFT estimate (FAST'25).
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery
from workers.worker import WorkerSnapshot

KV_FULL = 0.9
DECODE_SLOWDOWN_MS = 54.0
"""Milliseconds a step gains between empty and full KV (8B-class model on one GPU; only the ranking matters)."""


Weight = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]


class AffinityOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The constants of the formula above."""

    price_max: Annotated[Weight, Meta(description="Highest price of compute (lambda_max).")] = 8.0
    backlog_ms: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)], Meta(description="Mean backlog at which the price is 1.")
    ] = 100.0
    harm: Annotated[Weight, Meta(description="Weight of the delay to each running stream.")] = 0.02
    decode_weight: Annotated[Weight, Meta(description="Weight of slower steps as KV fills up.")] = 0.02
    host_credit: Annotated[
        Share, Meta(description="Worth of a token in host memory; on the GPU it is 1.")
    ] = 0.75
    disk_credit: Annotated[Share, Meta(description="Worth of a token that lies further away than that.")] = (
        0.25
    )
    tie: Annotated[Weight, Meta(description="Costs within this share of the best are equal.")] = 0.03


class PrefixAffinity:
    name: ClassVar[str] = "prefix_affinity"
    options_type: ClassVar[type[PolicyOptions]] = AffinityOptions

    def __init__(self, options: AffinityOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        if not candidates:
            return ()
        options = self.options
        backlog = sum(c.worker.tokens_queued * c.worker.speed.ms_per_token for c in candidates) / len(
            candidates
        )
        price = min(options.price_max, backlog / options.backlog_ms)
        routes = [self._route(query, candidate, price) for candidate in candidates]
        best_first = sorted(range(len(routes)), key=lambda at: routes[at].cost_ms)
        limit = routes[best_first[0]].cost_ms * (1 + options.tie)
        equal = sum(route.cost_ms <= limit for route in routes)
        if equal > 1:
            queued = [candidates[at].worker.tokens_queued for at in best_first[:equal]]
            best_first.insert(0, best_first.pop(_of_two(query.draw, queued)))
        return tuple(routes[at] for at in best_first)

    def _route(self, query: RouteQuery, candidate: Candidate, price: float) -> Route:
        worker, options = candidate.worker, self.options
        speed, ahead = worker.speed, worker.tokens_queued
        matched = min(candidate.matched_tokens, query.prompt_tokens)
        elsewhere = candidate.host_tokens + candidate.disk_tokens
        lost = (1 - options.host_credit) * candidate.host_tokens
        lost += (1 - options.disk_credit) * candidate.disk_tokens
        uncached = max(1.0, query.prompt_tokens - matched + lost)
        tokens_new = max(1, query.prompt_tokens - matched + elsewhere)
        wait = speed.ms_per_token * ahead
        if worker.streams:
            wait += speed.step_ms * ceil((ahead + uncached) / worker.chunk_tokens)
        own = speed.fixed_ms + speed.ms_per_token * uncached
        cost = wait + own * (1 + price + options.harm * worker.streams)
        cost += self._memory_cost(worker, tokens_new + query.output_tokens, query.output_tokens)
        off = f" ({elsewhere} off the GPU)" if elsewhere else ""
        return Route(
            worker=worker.id,
            cost_ms=cost,
            matched_tokens=matched,
            reason=f"{matched} of {query.prompt_tokens} tokens held{off}, waits {wait:.1f} ms, "
            f"computes {own:.1f} ms",
            ms_per_queued_token=speed.ms_per_token,
        )

    def _memory_cost(self, worker: WorkerSnapshot, tokens_new: int, output_tokens: int) -> float:
        """What a fuller KV costs: slower steps, and a backlog to drain where the request would not fit."""
        if not worker.kv_tokens_max:
            return 0.0
        full = min(1.0, worker.kv_tokens / worker.kv_tokens_max)
        cost = self.options.decode_weight * output_tokens * DECODE_SLOWDOWN_MS * full
        if worker.kv_tokens + tokens_new > KV_FULL * worker.kv_tokens_max:
            cost += worker.speed.ms_per_token * worker.kv_tokens
        return cost


def _of_two(draw: float, queued: Sequence[int]) -> int:
    """Draws two of the equally good and takes the one with less work ahead (power of two choices)."""
    pairs = len(queued) * (len(queued) - 1)
    one, step = divmod(int(draw * pairs), len(queued) - 1)
    other = (one + 1 + step) % len(queued)
    return one if queued[one] <= queued[other] else other
