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

from policies.routing.estimate import kv_wait_ms, matched_tokens, own_ms, uncached_tokens, wait_ms
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


class CostPolicy:
    """The policy `cost`."""

    name: ClassVar[str] = "cost"
    options_type: ClassVar[type[PolicyOptions]] = CostOptions

    def __init__(self, options: CostOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by estimated cost; of equal costs two are drawn, and the worker with the shorter queue leads."""
        if not candidates:
            return ()
        options = self.options
        backlog, most = 0.0, 0
        for candidate in candidates:
            worker = candidate.worker
            backlog += worker.tokens_queued * worker.speed.ms_per_token
            if candidate.matched_tokens > most:
                most = candidate.matched_tokens
        price = min(options.price_max, backlog / len(candidates) / options.backlog_ms)
        crowded = 2 * most >= query.prompt_tokens and bool(options.copy_price)
        crowded = crowded and _copies_suffice(query, candidates)
        # A session's home is the worker that holds its longest prefix.
        home = most if query.session is not None and options.stay else 0
        routes = [
            self._route(query, candidate, price, bool(home) and candidate.matched_tokens == home, crowded)
            for candidate in candidates
        ]
        best_first = sorted(range(len(routes)), key=lambda at: routes[at].cost_ms)
        limit = routes[best_first[0]].cost_ms * (1 + options.tie)
        equal = sum(route.cost_ms <= limit for route in routes)
        if equal > 1:
            drawn = two_distinct(query.draw, equal)
            lead = min(drawn, key=lambda place: candidates[best_first[place]].worker.tokens_queued)
            best_first.insert(0, best_first.pop(lead))
        return tuple(routes[at] for at in best_first)

    def _route(
        self, query: RouteQuery, candidate: Candidate, price: float, at_home: bool, crowded: bool
    ) -> Route:
        worker, options = candidate.worker, self.options
        matched = matched_tokens(query, candidate)
        uncached = uncached_tokens(
            query, candidate, host_credit=options.host_credit, disk_credit=options.disk_credit
        )
        elsewhere = candidate.host_tokens + candidate.disk_tokens
        wait, own = wait_ms(worker, uncached), own_ms(worker, uncached)
        tokens_new = max(1, query.prompt_tokens - matched + elsewhere) + query.output_tokens
        full = min(1.0, worker.kv_tokens / worker.kv_tokens_max) if worker.kv_tokens_max else 0.0
        youth, seconds = 0.0, options.slow_start_seconds
        if worker.age_seconds is not None and worker.age_seconds < seconds:
            youth = 1 - worker.age_seconds / seconds
        terms = CostTerms(
            wait,
            own,
            own * price,
            own * options.harm * worker.streams,
            options.decode_weight * query.output_tokens * DECODE_SLOWDOWN_MS * full,
            kv_wait_ms(worker, tokens_new, query.output_tokens) if full else 0.0,
            options.copy_price * own if crowded and 2 * matched < query.prompt_tokens else 0.0,
            (wait + own) * options.slow_start * youth,
            1 - options.stay if at_home else 1.0,
        )
        off = f" ({elsewhere} off the GPU)" if elsewhere else ""
        doubted = f" ({candidate.doubted_tokens} more in doubt)" if candidate.doubted_tokens else ""
        return Route(
            worker=worker.id,
            cost_ms=terms.total(),
            matched_tokens=matched,
            reason=f"{matched} of {query.prompt_tokens} tokens held{off}{doubted}, waits {wait:.1f} ms, "
            f"computes {own:.1f} ms",
            ms_per_queued_token=worker.speed.ms_per_token,
            terms=terms,
        )


def _copies_suffice(query: RouteQuery, candidates: Sequence[Candidate]) -> bool:
    """Return whether the workers that hold at least half of this prompt are one more than its demand asks for."""
    holders = [c.worker for c in candidates if 2 * c.matched_tokens >= query.prompt_tokens]
    if not holders:
        return False
    streams = sum(c.worker.streams for c in candidates)
    share = sum(worker.streams for worker in holders) / streams if streams else 0.0
    return len(holders) >= ceil(share * len(candidates)) + 1
