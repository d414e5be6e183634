"""The shortlist of a large fleet: the few workers that may be best for one request, in place of all of them.

    workers that hold most of the prompt   (the prefix match)          at most HOLDERS_MAX
    workers with the least load            (LeastLoaded, by groups)    OF_EACH_MAX of each heap

A worker that holds nothing of the prompt is only chosen for its load, so the least loaded ones stand for all
others of their group. The sums that a policy needs of all workers are kept as loads change (RouteQuery.fleet). So a
ranking costs the same with 100 and with 1,000 workers.

Bound: the cost of the first route is at most 5 % + 1 ms above the least cost of all workers, and where the best
worker holds a part of the prompt, and at most HOLDERS_MAX workers do, it is first as if all were ranked. The
difference comes of prompts that are neither as long nor as short as those that workers are ordered by, and of
learnt speeds that have moved since a worker's load changed. tests/property/test_shortlist.py holds the bound.
"""

from collections.abc import Collection

from gateway.domain.prompt_blocks import PromptBlocks
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from policies.load_order.holders import EXAMINED_MAX, WEIGHTS, chosen_holders, holder_ms
from policies.load_order.least_loaded import LeastLoaded
from policies.routing.compute_price import ComputePrice, compute_price
from policies.routing.protocol import FleetTotals
from radix_cache.match import NO_MATCH, PrefixMatch, WorkerId


def shortlist(
    ordered: LeastLoaded[Worker],
    fleet: Fleet,
    match: PrefixMatch,
    prompt: PromptBlocks,
    output_tokens: int,
    without: Collection[WorkerId],
    now: float,
) -> tuple[list[Worker], FleetTotals]:
    """Return the workers to rank, and the sums over all workers; `without` the workers that were tried."""
    sums = FleetTotals(
        workers=ordered.able,
        backlog_ms=ordered.backlog_ms,
        streams=ordered.streams,
        tokens_per_ms=ordered.tokens_per_ms,
    )
    price = compute_price(sums, WEIGHTS)
    workers: dict[WorkerId, Worker] = {}
    if match is not NO_MATCH:
        known: list[tuple[float, int, Worker]] = []
        for identity in match.holders(EXAMINED_MAX):
            worker = fleet.get(identity)
            if worker is None or identity in without or identity not in ordered or not worker.able:
                continue
            matched = prompt.matched_tokens(match.blocks(identity))
            ms = _holder_ms(worker, prompt.prompt_tokens - matched, output_tokens, price)
            known.append((ms, len(known), worker))
        for worker in chosen_holders(known):
            workers[worker.id] = worker
    workers.update(ordered.least(now, without, price))
    return list(workers.values()), sums


def _holder_ms(worker: Worker, uncached: int, output_tokens: int, price: ComputePrice) -> float:
    """Return about what a request costs on a holder, in milliseconds; the routing policy computes it exactly."""
    load, speed, kv_tokens_max = worker.load, worker.learnt.speed, worker.report.kv_tokens_max
    queued = load.tokens_queued + load.others.tokens_queued
    ahead = (
        queued + load.external.tokens_queued + worker.away_tokens - (load.computed(speed) if queued else 0)
    )
    streams = load.streams + load.others.streams + load.external.streams
    kv_tokens = load.kv_tokens + load.others.kv_tokens + load.external.kv_tokens
    return holder_ms(
        speed,
        ahead=ahead,
        streams=streams,
        kv_tokens=kv_tokens,
        kv_tokens_max=kv_tokens_max,
        uncached=uncached,
        output_tokens=output_tokens,
        price=price,
    )
