"""Policy `cost`, the default: the worker on which the request costs the fleet least, in estimated milliseconds.

Of a prompt, N = max(1, prompt - credit) tokens are left to compute on a worker that holds `matched` of its tokens,
where credit = matched - (1 - host_credit) host - (1 - disk_credit) disk: what is held off the GPU has to be loaded.

    wait   = s Q + d ceil((Q + N) / C)      prefill ahead of it; steps shared with R running streams (if any)
    own    = b + s N                        its own prefill
    price  = min(price_max, mean over workers of s Q / backlog_ms)
    room   = E d (K + N + E - KV) / K       until streams that end have made room for it, if it does not fit
    decode = decode_weight E D K / KV       slower steps while its answer is generated, as KV fills up
    copy   = copy_price own                 if the prefix has holders enough, and this worker is none of them
    start  = slow_start (wait + own) (1 - age / slow_start_seconds)      if the worker is younger than that
    cost   = (wait + own (1 + price + harm R) + decode + room + copy + start) (1 - stay at the session's worker)

    s  ms per uncached token      Q  uncached tokens sent there and not computed yet       C  chunk budget, tokens
    b  ms per request             R  open streams there                                    d  ms per decode step
    K  tokens of open streams     E  output tokens expected                                KV  tokens that fit
    D  DECODE_SLOWDOWN_MS

`own * harm * R` is the delay that this prefill imposes on running streams. `own * price` is the shadow price of
compute: nothing on an idle fleet, where replicating a prefix is free and fastest; large under backlog, where
computing a prefix twice takes time from every request, so that equal prefixes gather.

A cache hit is thereby priced by the tokens it saves, never by "has a match": a prefix that all requests share does
not send them all to one worker. Formula and constants: the social-cost reading of LMETRIC (OSDI'26) joined with
Mooncake's TTFT estimate (FAST'25).

A session stays where it is because its prefix is cached there, and `stay` makes that worker a little cheaper, so
that noise in the estimates moves no session. A prefix on its way to a worker counts there as if it were cached, so
that a stampede follows its first request as long as the queue there costs less than computing the prefix again, and
a hot prefix is replicated as soon as the queue costs more. A prefix has holders enough when they are one more than
its demand asks for (its holders' share of all streams times the number of workers, rounded up, plus one): then
`copy` prices the prefill of another replica.

Slow start: a worker that has just joined or come back counts as slower, and gets its load bit by bit. Cached tokens
that the index is not sure of (lost events, hybrid models) are left out of `matched`, so that more has to be
computed.

Measured by `make bench-routing`, on a public trace and on generated ones. What paid: Q without what has been
computed by now (3 % of mean TTFT), `room` instead of a whole backlog as the penalty for a full KV (half of the TTFT
of agents), a random choice among equal costs instead of among all within 3 % (a tenth less TPOT near saturation).
What did not matter, within noise: half or twice the `harm`, a `price_max` of 3, `backlog_ms` of 50 or 200; nor a
`copy_price` of any size, as few prefixes are ever held more often than they are asked for (it is a bound, not a
gain). A `stay` of 0.1 costs 1 % of TTFT with estimates that have no noise. A `decode_weight` of 0.1 buys goodput
near saturation with 3 % of TTFT, and loses both where KV is scarce. Slow start that multiplies the whole cost,
price included, cost a tenth of TTFT while workers restarted every minute; as a part of wait and own prefill it
costs nothing.
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta

from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery
from policies.routing.stable_random import two_distinct

DECODE_SLOWDOWN_MS = 54.0
"""Milliseconds that a decode step gains between empty and full KV (8B-class model on one GPU; only the ranking
matters)."""


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
    copy_price: Annotated[
        Weight,
        Meta(description="Price of computing a prefix on one worker more than its demand asks for."),
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
        options, most = self.options, 0
        for candidate in candidates:
            if candidate.matched_tokens > most:
                most = candidate.matched_tokens
        crowded = False
        if options.copy_price and 2 * most >= query.prompt_tokens:
            crowded = _copies_suffice(query, candidates)
        # A session's home is the worker that holds its longest prefix.
        home = most if query.session is not None and options.stay else 0
        routes: list[Route] = []
        costs: list[float] = []
        price = self._price(query, candidates)
        for candidate in candidates:
            at_home = home > 0 and candidate.matched_tokens == home
            route = self._route(query, candidate, price, at_home, crowded)
            routes.append(route)
            costs.append(route.cost_ms)
        return self._in_order(query, candidates, routes, costs)

    def _price(self, query: RouteQuery, candidates: Sequence[Candidate]) -> float:
        """Return the shadow price of compute: the mean backlog of all workers, in multiples of `backlog_ms`."""
        options, fleet = self.options, query.fleet
        if fleet is not None:
            backlog, workers = fleet.backlog_ms, fleet.workers
        else:
            backlog, workers = 0.0, len(candidates)
            for candidate in candidates:
                worker = candidate.worker
                backlog += worker.tokens_queued * worker.speed.ms_per_token
        price = backlog / workers / options.backlog_ms
        return price if price < options.price_max else options.price_max

    def _in_order(
        self,
        query: RouteQuery,
        candidates: Sequence[Candidate],
        routes: Sequence[Route],
        costs: Sequence[float],
    ) -> Ranking:
        """Return the routes by cost; of several that cost the least, one of two that are drawn comes first."""
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
        self, query: RouteQuery, candidate: Candidate, price: float, at_home: bool, crowded: bool
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
        priced, harm = own * price, own * options.harm * streams
        copy = options.copy_price * own if crowded and 2 * matched < prompt_tokens else 0.0
        start = (wait + own) * options.slow_start * youth
        stay = 1 - options.stay if at_home else 1.0
        return CostRoute(
            worker=worker.id,
            cost_ms=(wait + own + priced + harm + decode + room + copy + start) * stay,
            matched_tokens=matched,
            ms_per_queued_token=speed.ms_per_token,
            cost_terms=(wait, own, priced, harm, decode, room, copy, start, stay),
            prompt_tokens=prompt_tokens,
            off_gpu_tokens=off_gpu,
            doubted_tokens=candidate.doubted_tokens,
        )


def _copies_suffice(query: RouteQuery, candidates: Sequence[Candidate]) -> bool:
    """Return whether the workers that hold at least half of this prompt are one more than its demand asks for."""
    fleet = query.fleet
    if fleet is not None:
        workers, streams = fleet.workers, fleet.streams
        holders, holder_streams = fleet.holders, fleet.holder_streams
    else:
        workers, streams, holders, holder_streams = len(candidates), 0, 0, 0
        for candidate in candidates:
            streams += candidate.worker.streams
            if 2 * candidate.matched_tokens >= query.prompt_tokens:
                holders += 1
                holder_streams += candidate.worker.streams
    if not holders:
        return False
    share = holder_streams / streams if streams else 0.0
    return holders >= ceil(share * workers) + 1
