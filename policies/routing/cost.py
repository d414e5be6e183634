"""Policy `cost`, the default: the worker on which the request costs the fleet least, in estimated milliseconds.

The input of the estimate, of the request, of a worker, and of the other requests there:

    matched  prompt tokens that the worker has cached; of these `host` and `disk` lie off the GPU, to be loaded
    N        = max(1, prompt - matched + (1 - host_credit) host + (1 - disk_credit) disk)   tokens to compute
    P        = max(1, prompt - matched + host + disk)       tokens that the prompt adds to the KV on the GPU
    E        output tokens expected
    s, b, d  ms per uncached token, per request, per decode step: the worker's speed
    C        chunk budget: prompt tokens in one step
    Q        uncached tokens queued there: sent and not computed yet, with `away_tokens` of a worker of another cell
    KV, K    tokens that fit in its KV memory; those of open streams there (a block that several use counts once)
    R, r     open streams there; of these, those that run: r = min(R min(1, KV / K), RUNNING_MAX), the others wait

The cost is a sum of terms in milliseconds: what the request itself has to expect there, and what it costs or saves
other requests (`_prefills`, `_memory_uses`, `_charges`), and a surcharge on workers that are new (`_routes`). The
weights of terms are options (cost_options.py); w, the weight of the term `delay`, is the option `delay_weight`:

    cost   = (wait + own + room + price + delay + memory + copy + start) (1 - stay at the session's worker)

    wait   = s Q + d ceil((Q + N) / C)            prefill ahead of it, and steps shared with running streams, if any
             + AWAY_RISK own                      on a worker that is at home in another cell
    own    = b + s N                              its own prefill
    room   = E d (K + P + E - KV) / K             until streams that end have made room for it, if it does not fit

    price  = price of compute (own - copied)      what its prefill takes from other requests (compute_price.py)
             + fees                               and what parts on their way pay instead (wanted_copies.py)
    delay  = w delayed (own - copied)             how long its prefill delays the running streams, `delayed` of them
    memory                                        what it takes of the KV memory (both: memory_price.py)
    copy   = - copy_share * sum(share * part)     what later requests save by its copies of shared prefixes
    start  = slow_start (wait + own + copy) (1 - age / slow_start_seconds)     on a worker younger than that

`part` is the time to compute one part of the prompt that other requests share, as far as the worker lacks it;
`copied` is the time of the parts with a `share` above 0, and of those that are only on their way to other workers.
`memory` and `room` are 0 where KV is empty or its size unknown; there all running streams count as delayed.

Cached tokens count by the time they save, never by "has a match". Tokens that the index is not sure of (lost
events, hybrid models) are left out of `matched`. A prefix on its way to a worker counts there as if it were cached,
so that a stampede follows its first request as long as the queue there costs less than computing the prefix again.

The price is that of compute. On an idle fleet it is zero: there, a second copy of a prefix is free and the fastest
way. Under backlog, computing a prefix twice takes time from every request; so requests with one prefix gather.

There are three ways for a shared part to be copied to a worker that lacks it, against the price:

    by demand (wanted_copies.py)   many requests share it: it pays neither price nor delay, since the fleet needs
                                   the copy; `share` of its time is charged to the requests that will use it
    by waits (copy_regrets.py)     fewer share it: once they have waited, for want of a copy, as long as a copy
                                   costs, this pays for the part, with price and delay
    while it is on its way         no worker has computed it yet: the requests that wait for it are the backlog, so
                                   only the backlog of the worker that would copy it counts, and the waiting
                                   requests share the delay (`fees`)

A worker with fewer requests than `light` (compute_price.py) is lightly used: it has joined lately, or is slow, and
holds little that is asked for, while the others work for its part too. Its price is lower, zero without a request.
Its requests are the streams and the A requests that wait in the gateway for it. It also gets copies for the
requests that it lacks, of parts that h workers hold and c - 1 other requests have:

    share  = max(share, lack / (lack + h + 1))    lack = min(c - 1, light - R - A), if that is above 0

A worker that is at home in another cell never counts as lightly used: that cell sends it what it lacks. All cells
would choose it at once, for longer prompts the more, and each gets the loads of the others late.

A session stays where its prefix is cached, and `stay` makes that worker a little cheaper, so that noise in the
estimates moves no session. Slow start gives a worker that has just joined or restarted its load bit by bit.

Taken: the social cost of LMETRIC (OSDI'26), joined with Mooncake's estimate of TTFT (FAST'25). Preble (ICLR'25) and
SkyWalker (EuroSys'26) copy a prefix once its holders are overloaded; here demand is counted before.

Lost, as multiples of the mean TTFT without the change: backlogs that count up to 400 ms, conversations past
saturation 1.21; the median backlog as the price, agents 1.3; copies that pay the price, one shared prompt 1.07 to
1.14; no delay, Claude Code sessions 1.05. The whole list is in docs/pages/measures/policy-experiments.md;
`make bench-routing` compares the rules of others.
"""

from collections.abc import Sequence
from math import ceil
from operator import attrgetter
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from policies.routing.compute_price import ComputePrice, compute_price, counted_backlog_ms, fleet_totals
from policies.routing.copy_regrets import copy_regrets
from policies.routing.cost_options import RUNNING_MAX, CostOptions
from policies.routing.cost_route import CostRoute
from policies.routing.estimate import AWAY_RISK
from policies.routing.memory_price import CROWDED
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, RouteQuery
from policies.routing.stable_random import two_distinct
from policies.routing.wanted_copies import WantedCopy, copy_terms, tokens_of_others, wanted_copies


class Prefill(msgspec.Struct, frozen=True, gc=False):
    """What is to be computed of a prompt on one worker, and when."""

    matched_tokens: int
    off_gpu_tokens: int
    wait_ms: float
    own_ms: float


class MemoryUse(msgspec.Struct, frozen=True, gc=False):
    """The KV memory of one worker: what a request pays for it and waits for it."""

    memory_ms: float
    room_ms: float
    delayed_streams: float
    """How many of the running streams count as delayed by a prefill."""


class Charges(msgspec.Struct, frozen=True, gc=False):
    """What a request on one worker costs other requests, and what it saves them."""

    price_ms: float
    delay_ms: float
    copy_ms: float


MATCHED_TOKENS = attrgetter("matched_tokens")
COST_MS = attrgetter("cost_ms")


class CostPolicy:
    """The policy `cost`."""

    name: ClassVar[str] = "cost"
    options_type: ClassVar[type[PolicyOptions]] = CostOptions
    shortlist: ClassVar[bool] = True

    def __init__(self, options: CostOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by estimated cost; of equal costs two are drawn, and the worker with the shorter queue leads."""
        if not candidates:
            return ()
        options = self.options
        fleet = query.fleet if query.fleet is not None else fleet_totals(candidates)
        price = compute_price(fleet, options)
        wanted = wanted_copies(query, fleet) if query.shared and options.copy_share else ()
        prefills = self._prefills(query, candidates)
        uses = self._memory_uses(query, candidates, prefills, wanted)
        charges = self._charges(candidates, prefills, uses, price, wanted)
        routes = self._routes(query, candidates, prefills, uses, charges)
        ranking = self._best_first(query, candidates, routes)
        if wanted:
            best = ranking[0]
            regrets = copy_regrets(query, candidates, wanted, best, price.of_fleet)
            return (replace(best, regrets=regrets), *ranking[1:]) if regrets else ranking
        return ranking

    # The next five run for every request, so each looks at all candidates in one call.

    def _prefills(self, query: RouteQuery, candidates: Sequence[Candidate]) -> list[Prefill]:
        """Return `wait` and `own` on each worker.

        These are wait_ms and own_ms of estimate.py, written out; test_cost.py holds them equal.
        """
        prompt_tokens = query.prompt_tokens
        host_loss, disk_loss = 1 - self.options.host_credit, 1 - self.options.disk_credit
        prefills: list[Prefill] = []
        for candidate in candidates:
            worker = candidate.worker
            speed = worker.speed
            matched, off_gpu = candidate.matched_tokens, candidate.host_tokens + candidate.disk_tokens
            if matched > prompt_tokens:
                matched = prompt_tokens
            uncached: float = prompt_tokens - matched
            if off_gpu:
                uncached += host_loss * candidate.host_tokens + disk_loss * candidate.disk_tokens
            if uncached < 1:
                uncached = 1.0
            ahead = worker.tokens_queued - worker.tokens_computed
            wait = speed.ms_per_token * ahead
            if worker.streams:
                wait += speed.step_ms * ceil((ahead + uncached) / worker.chunk_tokens)
            own = speed.fixed_ms + speed.ms_per_token * uncached
            if worker.away_tokens:
                wait += AWAY_RISK * own
            prefills.append(Prefill(matched, off_gpu, wait, own))
        return prefills

    def _memory_uses(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        prefills: Sequence[Prefill],
        wanted: Sequence[WantedCopy],
    ) -> list[MemoryUse]:
        """Return `memory`, `room` and `delayed` on each worker.

        These are memory_ms and delayed_streams of memory_price.py and kv_wait_ms of estimate.py, written out;
        test_cost.py holds them equal.
        """
        prompt_tokens, output_tokens = query.prompt_tokens, query.output_tokens
        weight = self.options.memory_weight
        coming = [part for part in wanted if part.coming] if wanted else ()
        uses: list[MemoryUse] = []
        for candidate, prefill in zip(candidates, prefills, strict=True):
            worker = candidate.worker
            kv_tokens, kv_tokens_max = worker.kv_tokens, worker.kv_tokens_max
            memory = room = 0.0
            delayed: float = worker.streams
            if kv_tokens_max and kv_tokens:
                full = kv_tokens / kv_tokens_max
                if full > 1:
                    delayed /= full
                    full = 1.0
                if delayed > RUNNING_MAX:
                    delayed = RUNNING_MAX
                if full < CROWDED:
                    delayed *= full / CROWDED
                tokens_new = prompt_tokens - prefill.matched_tokens + prefill.off_gpu_tokens
                tokens = (tokens_new if tokens_new > 1 else 1) + output_tokens
                answer_ms = output_tokens * worker.speed.step_ms
                paid = tokens - tokens_of_others(coming, prefill.matched_tokens) if coming else tokens
                memory = weight * full * full * paid / kv_tokens_max * answer_ms
                lacking = kv_tokens + tokens - kv_tokens_max
                if lacking > 0:
                    room = answer_ms * lacking / kv_tokens
            elif delayed > RUNNING_MAX:
                delayed = RUNNING_MAX
            uses.append(MemoryUse(memory, room, delayed))
        return uses

    def _charges(
        self,
        candidates: Sequence[Candidate],
        prefills: Sequence[Prefill],
        uses: Sequence[MemoryUse],
        price: ComputePrice,
        wanted: Sequence[WantedCopy],
    ) -> list[Charges]:
        """Return `price`, `delay` and `copy` on each worker."""
        options = self.options
        charges: list[Charges] = []
        for candidate, prefill, use in zip(candidates, prefills, uses, strict=True):
            worker = candidate.worker
            requests, ms_per_token = worker.streams + worker.requests_awaiting, worker.speed.ms_per_token
            work = price.mean_ms_per_token / ms_per_token
            compute, delay = price.of_fleet * work, options.delay_weight * use.delayed_streams
            lacking = 0.0 if worker.away_tokens else price.light_share / ms_per_token - requests
            if lacking > 0:
                # As ComputePrice.on, written out; `light` is the sum below.
                compute *= requests / (requests + lacking)
            copy = copied = fees = 0.0
            if wanted:
                copy, copied, fees = copy_terms(
                    wanted,
                    matched=prefill.matched_tokens,
                    ms_per_token=ms_per_token,
                    lacking_requests=lacking,
                    copy_share=options.copy_share,
                    price=compute,
                    worker_price=min(compute, counted_backlog_ms(worker) / options.backlog_ms * work),
                    delay=delay,
                )
            charged = prefill.own_ms - copied
            charges.append(Charges(charged * compute + fees, charged * delay, copy))
        return charges

    def _routes(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        prefills: Sequence[Prefill],
        uses: Sequence[MemoryUse],
        charges: Sequence[Charges],
    ) -> list[CostRoute]:
        """Return the route to each worker, with the sum of all terms."""
        options, routes, longest_match = self.options, [], 0
        if query.session is not None and options.stay:
            # A session's worker is the one that holds its longest prefix.
            longest_match = max(map(MATCHED_TOKENS, prefills))
        for candidate, prefill, use, charge in zip(candidates, prefills, uses, charges, strict=True):
            worker, wait, own = candidate.worker, prefill.wait_ms, prefill.own_ms
            price, delay, copy = charge.price_ms, charge.delay_ms, charge.copy_ms
            age, start = worker.age_seconds, 0.0
            if age is not None and age < options.slow_start_seconds:
                start = (wait + own + copy) * options.slow_start * (1 - age / options.slow_start_seconds)
            stays = longest_match and prefill.matched_tokens == longest_match
            stay_factor = 1 - options.stay if stays else 1.0
            memory, room = use.memory_ms, use.room_ms
            routes.append(
                CostRoute(
                    worker=worker.id,
                    cost_ms=(wait + own + price + delay + memory + room + copy + start) * stay_factor,
                    matched_tokens=prefill.matched_tokens,
                    ms_per_queued_token=worker.speed.ms_per_token,
                    computed_tokens=worker.tokens_computed,
                    cost_terms=(wait, own, price, delay, memory, room, copy, start, stay_factor),
                    prompt_tokens=query.prompt_tokens,
                    off_gpu_tokens=prefill.off_gpu_tokens,
                    doubted_tokens=candidate.doubted_tokens,
                )
            )
        return routes

    def _best_first(
        self, query: RouteQuery, candidates: Sequence[Candidate], routes: Sequence[CostRoute]
    ) -> tuple[CostRoute, ...]:
        """Return the routes by cost; of those that cost the least, the less loaded of two drawn ones is first."""
        costs = list(map(COST_MS, routes))
        best_first = sorted(range(len(costs)), key=costs.__getitem__)
        limit = costs[best_first[0]] * (1 + self.options.tie)
        equal = 0
        for at in best_first:
            if costs[at] > limit:
                break
            equal += 1
        if equal > 1:
            lead, other = two_distinct(query.draw, equal)
            queued = candidates[best_first[lead]].worker.tokens_queued
            if candidates[best_first[other]].worker.tokens_queued < queued:
                lead = other
            best_first.insert(0, best_first.pop(lead))
        return tuple(map(routes.__getitem__, best_first))
