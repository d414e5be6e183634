"""Policy `cost`, the default: the worker on which the request costs the fleet least, in estimated milliseconds.

Of a prompt, N = max(1, prompt - credit) tokens are left to compute on a worker that holds `matched` of its tokens,
where credit = matched - (1 - host_credit) host - (1 - disk_credit) disk: what is held off the GPU has to be loaded.

    wait   = s Q + d ceil((Q + N) / C)      prefill ahead of it; steps shared with R running streams (if any)
           + AWAY_RISK own                  on a worker that is at home in another cell
    own    = b + s N                        its own prefill
    copy   = - copy_share s sum(part * share)   what later requests save by the copy of a shared prefix
    price  = mean over workers of min(s Q0, BACKLOG_MAX_MS) / backlog_ms min(1, R / light)
    room   = E d (K + P + E - KV) / K       until streams that end have made room for it, if it does not fit
    decode = decode_weight E D K / KV       slower steps while its answer is generated, as KV fills up
    start  = slow_start (wait + own + copy) (1 - age / slow_start_seconds)   if the worker is younger than that
    cost   = (wait + own + copy + (price + harm r) (own - s sum(part)) + decode + room + start)
             (1 - stay at the session's worker)

    s  ms per uncached token      Q  uncached tokens sent there and not computed yet       C  chunk budget, tokens
    b  ms per request             R  open streams there                                    d  ms per decode step
    K  tokens of open streams     E  output tokens expected                                KV  tokens that fit
    P  tokens that its prompt adds to the KV there (off the GPU they have to be loaded)
    D  DECODE_SLOWDOWN_MS         a block of KV that several streams use counts once in K  Q0  as Q, computed or not
    r = min(R min(1, KV / K), RUNNING_MAX)             those of the open streams that run; the others wait

`own * harm * r` is the delay that this prefill imposes on running streams. `own * price` is the shadow price of
compute: nothing on an idle fleet, where replicating a prefix is free and fastest; large under backlog, where
computing a prefix twice takes time from every request, so that equal prefixes gather.

A part of the prompt that many requests share is copied where that pays (wanted_copies.py): it then pays neither
price nor harm, since the fleet needs that copy, and `share` of its own time is charged to those who will use it.

A part that fewer requests share is copied once the time that they waited for want of a copy adds up to the cost of
one (copy_regrets.py): these waits pay for the part, price and harm included.

A worker with fewer streams than `light` (compute_price.py) is lightly used: it has joined lately, or is slow, and
holds little that is asked for, while the others work for its part too. Its price of compute is lower, and zero if
it has no stream. It also gets copies for the requests that it lacks (c requests, h holders: see wanted_copies.py):

    share  = max(share, lack / (lack + h + 1))       lack = min(c - 1, light - R), if that is above 0

A worker that is at home in another cell never counts as lightly used: that cell sends it what it lacks. All cells
would choose it at once, for longer prompts the more, and hear of each other late.

A cache hit is priced by the tokens it saves, never by "has a match". Formula and constants: the social-cost reading
of LMETRIC (OSDI'26) joined with Mooncake's TTFT estimate (FAST'25).

A session stays where it is because its prefix is cached there, and `stay` makes that worker a little cheaper, so
that noise in the estimates moves no session. A prefix on its way to a worker counts there as if it were cached, so
that a stampede follows its first request as long as the queue there costs less than computing the prefix again.

Slow start: a worker that has just joined or come back counts as slower, and gets its load bit by bit.

Cached tokens that the index is not sure of (lost events, hybrid models) are left out of `matched`, so that more has
to be computed.

Measured by `make bench-routing`; docs/pages/measures/policy-experiments.md has every experiment with its workload.
The largest effects, as mean TTFT in ms:

    taken   copies by demand: one prompt of 32k for all 278 -> 59.  copies paid for by waits: agents 163 -> 151
            `light`: one of four workers at half the speed 719 -> 197, a worker that joins 377 -> 173
            `room` for a full KV, not a whole backlog: agents 50 % less
            a bound on each worker's part in the price: Claude Code 187 -> 176
            harm to running streams, not to all open ones: conversations past saturation 28.4 s -> 21.5 s
    lost    the price on copies, too: +7 to +14 %.  a price on the memory of copies, little KV: +15 %
            the least or median backlog as the price: +30 %.  a lower price: agents with little KV +12 %
            the whole difference in cost as the regret: agents +4 to +8 %
            `decode` by the worker's speed, unequal workers: +2.5 %
    behind  stampedes past saturation 297 (`session` 279); batches with new prefixes 1.3 times `session`

Other rules for shared prefixes, on one prompt of 32k for all, stampedes and Claude Code sessions (rows of the check
in `make bench-routing`): this one 113, 233 and 156, Preble 4919, 279 and 169, llm-d's scorers 1108, 262 and 195.
What this policy has of them, and what it has not:

    Preble (ICLR'25)       copies of a prefix, but by demand, not once a holder is overloaded, which is too late
    SkyWalker (EuroSys'26) a request may leave its best worker, but by cost, not by the number that is pending there
    DualMap (ICLR'26)      no two places for each prefix by hashing: those are two, whatever the demand
    llm-d's learnt TTFT    speeds learnt from running traffic, but in a sum of terms that can be explained

SkyWalker, DualMap and the learnt model of llm-d were not simulated.
"""

from collections.abc import Sequence
from math import ceil
from operator import attrgetter
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from policies.routing.compute_price import ComputePrice, compute_price, fleet_totals
from policies.routing.copy_regrets import copy_regrets
from policies.routing.cost_options import DECODE_SLOWDOWN_MS, RUNNING_MAX, CostOptions
from policies.routing.cost_route import CostRoute
from policies.routing.estimate import AWAY_RISK
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, RouteQuery
from policies.routing.stable_random import two_distinct
from policies.routing.wanted_copies import WantedCopy, copy_terms, wanted_copies


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """What a request has to expect of one worker, whatever others need: the first terms of the formula."""

    matched_tokens: int
    off_gpu_tokens: int
    wait_ms: float
    own_ms: float
    decode_ms: float
    room_ms: float
    running: float
    """Of the open streams there, those that run."""


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
        price = compute_price(fleet, query.requests_waiting, options)
        wanted = wanted_copies(query, fleet) if query.shared and options.copy_share else ()
        estimates = self._estimates(query, candidates)
        routes = self._routes(query, candidates, estimates, price, wanted)
        ranking = self._best_first(query, candidates, routes)
        if wanted:
            best = ranking[0]
            regrets = copy_regrets(query, candidates, wanted, best, best.cost_terms[0], price.of_fleet)
            return (replace(best, regrets=regrets), *ranking[1:]) if regrets else ranking
        return ranking

    # The next three look at all candidates in one call each, for they run for every request.

    def _estimates(self, query: RouteQuery, candidates: Sequence[Candidate]) -> list[Estimate]:
        """Return wait, own, decode and room on each worker.

        The terms that other policies share are those of estimate.py, written out; test_cost.py holds them equal.
        """
        options, prompt_tokens, output_tokens = self.options, query.prompt_tokens, query.output_tokens
        host_loss, disk_loss = 1 - options.host_credit, 1 - options.disk_credit
        decode_full_ms = options.decode_weight * output_tokens * DECODE_SLOWDOWN_MS
        estimates: list[Estimate] = []
        for candidate in candidates:
            worker = candidate.worker
            speed, kv_tokens, kv_tokens_max = worker.speed, worker.kv_tokens, worker.kv_tokens_max
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
            decode = room = 0.0
            running: float = worker.streams
            if kv_tokens_max and kv_tokens:
                full = kv_tokens / kv_tokens_max
                if full > 1:
                    running /= full
                    full = 1.0
                decode = decode_full_ms * full
                tokens_new = prompt_tokens - matched + off_gpu
                lacking = kv_tokens + (tokens_new if tokens_new > 1 else 1) + output_tokens - kv_tokens_max
                if lacking > 0:
                    room = output_tokens * speed.step_ms * lacking / kv_tokens
            if running > RUNNING_MAX:
                running = RUNNING_MAX
            estimates.append(Estimate(matched, off_gpu, wait, own, decode, room, running))
        return estimates

    def _routes(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        estimates: Sequence[Estimate],
        price: ComputePrice,
        wanted: Sequence[WantedCopy],
    ) -> list[CostRoute]:
        """Return the route to each worker: what is expected there, and what the request costs others."""
        options, routes, home = self.options, [], 0
        if query.session is not None and options.stay:
            # A session's home is the worker that holds its longest prefix.
            home = max(map(MATCHED_TOKENS, estimates))
        for candidate, expected in zip(candidates, estimates, strict=True):
            worker, wait, own = candidate.worker, expected.wait_ms, expected.own_ms
            streams, ms_per_token = worker.streams, worker.speed.ms_per_token
            compute = price.of_fleet
            lacking_streams = 0.0 if worker.away_tokens else price.light_share / ms_per_token - streams
            if lacking_streams > 0:
                compute *= streams / (streams + lacking_streams)  # ComputePrice.on
            harm = options.harm * expected.running
            copy = needed = 0.0
            if wanted:
                copy, needed = copy_terms(
                    wanted,
                    matched=expected.matched_tokens,
                    ms_per_token=ms_per_token,
                    lacking_streams=lacking_streams,
                    copy_share=options.copy_share,
                    surcharge=compute + harm,
                )
            age, start = worker.age_seconds, 0.0
            if age is not None and age < options.slow_start_seconds:
                start = (wait + own + copy) * options.slow_start * (1 - age / options.slow_start_seconds)
            stay = 1 - options.stay if home and expected.matched_tokens == home else 1.0
            decode, room = expected.decode_ms, expected.room_ms
            priced, harmed = (own - needed) * compute, (own - needed) * harm
            routes.append(
                CostRoute(
                    worker=worker.id,
                    cost_ms=(wait + own + priced + harmed + decode + room + copy + start) * stay,
                    matched_tokens=expected.matched_tokens,
                    ms_per_queued_token=ms_per_token,
                    computed_tokens=worker.tokens_computed,
                    cost_terms=(wait, own, priced, harmed, decode, room, copy, start, stay),
                    prompt_tokens=query.prompt_tokens,
                    off_gpu_tokens=expected.off_gpu_tokens,
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
