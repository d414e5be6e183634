"""Policy `cost`, the default: the worker on which the request costs the fleet least, in estimated milliseconds.

Of a prompt, N = max(1, prompt - credit) tokens are left to compute on a worker that holds `matched` of its tokens,
where credit = matched - (1 - host_credit) host - (1 - disk_credit) disk: what is held off the GPU has to be loaded.

    wait   = s Q + d ceil((Q + N) / C)      prefill ahead of it; steps shared with R running streams (if any)
    own    = b + s N                        its own prefill
    copy   = - copy_share s sum(part * share)   what later requests save by the copy of a shared prefix
    price  = min(price_max, mean over workers of s Q0 / backlog_ms) min(1, R / light)
    room   = E d (K + N + E - KV) / K       until streams that end have made room for it, if it does not fit
    decode = decode_weight E D K / KV       slower steps while its answer is generated, as KV fills up
    start  = slow_start (wait + own + copy) (1 - age / slow_start_seconds)   if the worker is younger than that
    cost   = (wait + own + copy + (price + harm R) (own - s sum(part)) + decode + room + start)
             (1 - stay at the session's worker)

    s  ms per uncached token      Q  uncached tokens sent there and not computed yet       C  chunk budget, tokens
    b  ms per request             R  open streams there                                    d  ms per decode step
    K  tokens of open streams     E  output tokens expected                                KV  tokens that fit
    D  DECODE_SLOWDOWN_MS         a block of KV that several streams use counts once in K  Q0  as Q, computed or not
    light = S / s / (2 sum of 1 / s over workers)      half of the worker's fair part of all S requests, by speed

`own * harm * R` is the delay that this prefill imposes on running streams. `own * price` is the shadow price of
compute: nothing on an idle fleet, where replicating a prefix is free and fastest; large under backlog, where
computing a prefix twice takes time from every request, so that equal prefixes gather.

A part of the prompt that many requests share is copied where that pays (wanted_copies.py): it then pays neither
price nor harm, since the fleet needs that copy, and `share` of its own time is charged to those who will use it.

A part that fewer requests share is copied once the time that they waited for want of a copy adds up to the cost of
one (copy_regrets.py): these waits pay for the part, price and harm included.

A worker with fewer streams than `light` is lightly used: it has joined lately, or is slow, and holds little that is
asked for, while the others work for its part too. Its price of compute is lower, and zero if it has no stream. It
also gets copies for the requests that it lacks (c requests, h holders: see wanted_copies.py):

    share  = max(share, lack / (lack + h + 1))       lack = min(c - 1, light - R), if that is above 0

A cache hit is priced by the tokens it saves, never by "has a match". Formula and constants: the social-cost reading
of LMETRIC (OSDI'26) joined with Mooncake's TTFT estimate (FAST'25).

A session stays where it is because its prefix is cached there, and `stay` makes that worker a little cheaper, so
that noise in the estimates moves no session. A prefix on its way to a worker counts there as if it were cached, so
that a stampede follows its first request as long as the queue there costs less than computing the prefix again.

Slow start: a worker that has just joined or come back counts as slower, and gets its load bit by bit.

Cached tokens that the index is not sure of (lost events, hybrid models) are left out of `matched`, so that more has
to be computed.

Measured by `make bench-routing`; docs/pages/measures/policy-experiments.md has every experiment with its workload.
Mean TTFT in ms, unless it says otherwise:

    taken   Q without tokens computed by now: 3 % less.  `room` for a full KV, not a whole backlog: agents 50 % less
            copies by demand: one prompt of 32k for all 278 -> 59, a stampede of 64 requests 324 -> 271
            copies paid for by waits: one shared prompt 65 -> 59, agents with little KV 163 -> 151
            `light`: one of four workers at half the speed 719 -> 197, a worker that joins 377 -> 173
            a random choice among equal costs alone: TPOT near saturation 10 % less
    lost    the price on copies, too: +7 to +14 %.  a price on the memory of copies, little KV: +15 %
            share c / (c + h + 1) after any excess: Claude Code +7 %.  `decode_weight` 0.1: worse with little KV
            the least or median backlog as the price: +30 %.  slow start of the price, too: +10 %
            the whole difference in cost as the regret: agents +4 to +8 %; no fading of it: +12 %
            waits under backlog as regret: past saturation +13 %.  no copies where requests lack: 318, not 197
    level   half or twice the `harm`; a `price_max` of 3; `backlog_ms` of 50 or 200
    behind  stampedes past saturation 298 (`session` 277): the price keeps a third copy away while a burst lasts
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from policies.routing.copy_regrets import copy_regrets
from policies.routing.protocol import Candidate, FleetTotals, PolicyOptions, Ranking, Route, RouteQuery
from policies.routing.stable_random import two_distinct
from policies.routing.wanted_copies import WantedCopy, wanted_copies

DECODE_SLOWDOWN_MS = 54.0
"""Milliseconds that a decode step gains between empty and full KV (8B-class model on one GPU; only the ranking
matters)."""

LIGHT = 0.5
"""Share of its fair part of all requests below which a worker is lightly used."""


Weight = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]


class CostOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the policy `cost`: the constants of the formula at the top of this file."""

    price_max: Annotated[
        Weight, Meta(description="Highest price of compute, as a multiple of the prefill's own time.")
    ] = 8.0
    backlog_ms: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)],
        Meta(description="Mean backlog of the workers, in milliseconds of prefill, at which the price is 1."),
    ] = 100.0
    harm: Annotated[
        Weight, Meta(description="Weight of the delay that a prefill causes to each running stream.")
    ] = 0.02
    decode_weight: Annotated[
        Weight, Meta(description="Weight of decode steps that become slower as KV memory fills up.")
    ] = 0.02
    host_credit: Annotated[
        Share, Meta(description="Worth of a cached token in host memory; on the GPU it is 1.")
    ] = 0.75
    disk_credit: Annotated[
        Share, Meta(description="Worth of a cached token on disk or further away; on the GPU it is 1.")
    ] = 0.25
    tie: Annotated[
        Weight, Meta(description="Costs within this share of the best count as equal, and one is drawn.")
    ] = 0.0
    slow_start: Annotated[
        Weight,
        Meta(description="Share by which a worker that has just joined or come back counts as slower."),
    ] = 1.0
    slow_start_seconds: Annotated[
        Weight,
        Meta(description="Time in which the slow start fades; 0: a new worker gets its whole load at once."),
    ] = 10.0
    stay: Annotated[
        Share,
        Meta(description="Share by which the worker that holds a session's longest prefix is cheaper."),
    ] = 0.02
    copy_share: Annotated[
        Share,
        Meta(
            description="How much of a copy that demand asks for is charged to the later requests that share it; "
            "0: prefixes are only copied where queues are long."
        ),
    ] = 1.0


class CostTerms(NamedTuple):
    """What a cost is made of: milliseconds that add up, and a factor of their sum."""

    wait_ms: float
    own_ms: float
    price_ms: float
    harm_ms: float
    decode_ms: float
    room_ms: float
    copy_ms: float
    """Below 0: what later requests with the same prefix save."""
    slow_start_ms: float
    stay: float

    def total(self) -> float:
        """Return the cost in milliseconds."""
        return sum(self[:-1]) * self.stay


class CostRoute(Route, frozen=True, kw_only=True, gc=False):
    """A Route of the policy `cost`; its reason and its named terms are made when they are read."""

    cost_terms: tuple[float, ...]
    """The values of CostTerms."""
    prompt_tokens: int
    off_gpu_tokens: int
    """Of the matched tokens, those that have to be loaded to the GPU."""
    doubted_tokens: int
    """Tokens beyond the matched ones that the index does not count on."""

    @property  # type: ignore[misc]  # Route allows it, see there.
    def terms(self) -> CostTerms:
        """What the estimate was made of."""
        return CostTerms._make(self.cost_terms)

    @property  # type: ignore[misc]  # Route allows it, see there.
    def reason(self) -> str:
        """Why the worker stands here."""
        off = f" ({self.off_gpu_tokens} off the GPU)" if self.off_gpu_tokens else ""
        doubted = f" ({self.doubted_tokens} more in doubt)" if self.doubted_tokens else ""
        wait_ms, own_ms, *_ = self.cost_terms
        return (
            f"{self.matched_tokens} of {self.prompt_tokens} tokens held{off}{doubted}, "
            f"waits {wait_ms:.1f} ms, computes {own_ms:.1f} ms"
        )


class ComputePrice(NamedTuple):
    """The shadow price of compute: how much a millisecond of prefill counts besides itself."""

    of_fleet: float
    """The price on a worker that is not lightly used."""
    light_share: float
    """Streams times ms per token below which a worker is lightly used."""

    def on(self, ms_per_token: float, streams: int) -> float:
        """Return the price on one worker."""
        light = self.light_share / ms_per_token
        return self.of_fleet * streams / light if streams < light else self.of_fleet


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
        options, home = self.options, 0
        if query.session is not None and options.stay:
            # A session's home is the worker that holds its longest prefix.
            home = max(candidate.matched_tokens for candidate in candidates)
        fleet = query.fleet if query.fleet is not None else fleet_totals(candidates)
        wanted = wanted_copies(query, fleet) if query.shared and options.copy_share else ()
        price, light_share = compute_price(fleet, query.requests_waiting, options)
        routes: list[CostRoute] = []
        costs: list[float] = []
        for candidate in candidates:
            at_home = home > 0 and candidate.matched_tokens == home
            route = self._route(query, candidate, price, light_share, at_home, wanted)
            routes.append(route)
            costs.append(route.cost_ms)
        ranking = self._sorted_by_cost(query, candidates, routes, costs)
        if wanted:
            best = ranking[0]
            regrets = copy_regrets(query, candidates, wanted, best, best.cost_terms[0], price)
            return (replace(best, regrets=regrets), *ranking[1:]) if regrets else ranking
        return ranking

    def _sorted_by_cost(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        routes: Sequence[CostRoute],
        costs: Sequence[float],
    ) -> tuple[CostRoute, ...]:
        """Return the routes by cost; of those that cost the least, the less loaded of two drawn ones is first."""
        best_first = sorted(range(len(routes)), key=costs.__getitem__)
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

    def _route(
        self,
        query: RouteQuery,
        candidate: Candidate,
        price: float,
        light_share: float,
        at_home: bool,
        wanted: Sequence[WantedCopy],
    ) -> CostRoute:
        """Return the route to one worker with its cost: the formula at the top of this file, term by term.

        The terms that other policies share are those of estimate.py, written out, for this runs once for every
        candidate of every request; tests/unit/policies/routing/test_cost.py holds them equal.
        """
        worker, options = candidate.worker, self.options
        prompt_tokens, output_tokens, streams = query.prompt_tokens, query.output_tokens, worker.streams
        speed, kv_tokens, kv_tokens_max = worker.speed, worker.kv_tokens, worker.kv_tokens_max
        matched, off_gpu = candidate.matched_tokens, candidate.host_tokens + candidate.disk_tokens
        if matched > prompt_tokens:
            matched = prompt_tokens
        uncached: float = prompt_tokens - matched
        if off_gpu:
            uncached += (1 - options.host_credit) * candidate.host_tokens
            uncached += (1 - options.disk_credit) * candidate.disk_tokens
        if uncached < 1:
            uncached = 1.0
        ahead = worker.tokens_queued - worker.tokens_computed
        wait = speed.ms_per_token * ahead
        if streams:
            wait += speed.step_ms * ceil((ahead + uncached) / worker.chunk_tokens)
        own = speed.fixed_ms + speed.ms_per_token * uncached
        lacking_streams = light_share / speed.ms_per_token - streams
        if lacking_streams > 0:
            price *= streams / (streams + lacking_streams)
        copy = free = 0.0
        if wanted:
            copy, free = self._copy_terms(
                wanted, matched, speed.ms_per_token, price, streams, lacking_streams
            )
        decode = room = youth = 0.0
        if kv_tokens_max and kv_tokens:
            full = kv_tokens / kv_tokens_max if kv_tokens < kv_tokens_max else 1.0
            decode = options.decode_weight * output_tokens * DECODE_SLOWDOWN_MS * full
            tokens_new = prompt_tokens - matched + off_gpu
            lacking = kv_tokens + (tokens_new if tokens_new > 1 else 1) + output_tokens - kv_tokens_max
            if lacking > 0:
                room = output_tokens * speed.step_ms * lacking / kv_tokens
        if worker.age_seconds is not None and worker.age_seconds < options.slow_start_seconds:
            youth = 1 - worker.age_seconds / options.slow_start_seconds
        paid = own + copy
        priced, harm = (own - free) * price, (own - free) * options.harm * streams
        start = (wait + paid) * options.slow_start * youth
        stay = 1 - options.stay if at_home else 1.0
        return CostRoute(
            worker=worker.id,
            cost_ms=(wait + own + priced + harm + decode + room + copy + start) * stay,
            matched_tokens=matched,
            ms_per_queued_token=speed.ms_per_token,
            computed_tokens=worker.tokens_computed,
            cost_terms=(wait, own, priced, harm, decode, room, copy, start, stay),
            prompt_tokens=prompt_tokens,
            off_gpu_tokens=off_gpu,
            doubted_tokens=candidate.doubted_tokens,
        )

    def _copy_terms(
        self,
        wanted: Sequence[WantedCopy],
        matched: int,
        ms_per_token: float,
        price: float,
        streams: int,
        lacking_streams: float,
    ) -> tuple[float, float]:
        """Return `copy`, and the time of parts that pay neither price nor harm: s sum(part).

        `matched`: tokens of the prompt that the worker holds. `lacking_streams`: how many it has less than `light`.
        """
        options, copy, free = self.options, 0.0, 0.0
        for part in wanted:
            if part.end <= matched:
                continue
            share = part.share
            if lacking_streams > 0:
                lack = part.requests if part.requests < lacking_streams else lacking_streams
                from_lack = lack / (lack + part.holders + 1)
                share = from_lack if from_lack > share else share
            if not share and not part.regret_ms:
                continue
            ms = ms_per_token * (part.end - (part.begin if part.begin > matched else matched))
            saved = ms * options.copy_share * share
            if share:
                free += ms
            if part.regret_ms > saved:
                whole = ms if share else ms * (1 + price + options.harm * streams)
                saved = part.regret_ms if part.regret_ms < whole else whole
            copy -= saved
        return copy, free


def fleet_totals(candidates: Sequence[Candidate]) -> FleetTotals:
    """Return the sums over the candidates. Call it only with all workers of the fleet."""
    backlog_ms = tokens_per_ms = 0.0
    streams = 0
    for candidate in candidates:
        worker = candidate.worker
        ms_per_token = worker.speed.ms_per_token
        backlog_ms += (worker.tokens_queued - worker.away_tokens) * ms_per_token
        tokens_per_ms += 1 / ms_per_token
        streams += worker.streams
    return FleetTotals(
        workers=len(candidates), backlog_ms=backlog_ms, streams=streams, tokens_per_ms=tokens_per_ms
    )


def compute_price(fleet: FleetTotals, requests_waiting: int, options: CostOptions) -> ComputePrice:
    """Return the shadow price of compute: the mean backlog of all workers, in multiples of `backlog_ms`."""
    price = fleet.backlog_ms / fleet.workers / options.backlog_ms
    return ComputePrice(
        price if price < options.price_max else options.price_max,
        LIGHT * (fleet.streams + requests_waiting + 1) / fleet.tokens_per_ms,
    )
