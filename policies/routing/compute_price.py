"""The shadow price of compute: how much a millisecond of prefill counts besides itself, for the requests it delays.

    price of fleet   = mean over workers of min(s Q0, BACKLOG_MAX_MS) / backlog_ms
    price of compute = price of fleet (mean / s) min(1, (R + A) / light)     on one worker
    mean  = workers / sum of 1 / s over workers                        ms per token of a worker of mean speed
    light = S / s / (2 sum of 1 / s over workers)      half of the worker's fair part of S requests, by speed

S is the sum of R + A over the workers; A are the requests that wait in the gateway for this worker, which holds
most of their prompt. Q0 are the uncached tokens that were sent to a worker and whose prefill has not ended,
computed ones included; the other symbols are those of cost.py. An idle fleet has no price: replicating a prefix is
free there, and fastest. Where all workers have a backlog it is high: computing a prefix twice takes time from every
request. A longer backlog at one worker is a long prompt, or a queue that requests can avoid, and is no
sign of more work at the others: with the default `backlog_ms` no price of the fleet is above 6.

In a millisecond a slow worker does less of the work that waits, and fewer requests wait for it there. So its
millisecond costs them less, in proportion to its speed, and a token costs the same on every worker.

A worker with R + A below `light` is lightly used: it has joined lately, or is slow, and holds few prefixes that
requests have, while the others work for its part too. Its price is lower, and zero if it has no request. Requests
that wait for no certain worker count nowhere.

Lost: all waiting requests counted in S, and in no R. Then every worker was lightly used as soon as more requests
waited than ran, and engines computed the same prefixes many times. The mean TTFT of conversations beside agents
past saturation was 1.57, 1.90 and 1.68 times that of now (three seeds). Those that wait for no certain worker
counted in S: 1.22 and 1.27 times (two seeds).

Lost: the same price for a millisecond of every worker. Under backlog requests then waited at fast workers while
slow ones had less to do: mean TTFT 1.04 times that of now in 42 scenarios of workers of unequal speed, unseen seed
(docs/pages/measures/policy-experiments.md).
"""

from collections.abc import Sequence
from typing import NamedTuple

from policies.routing.cost_options import CostOptions
from policies.routing.protocol import Candidate, FleetTotals
from workers.worker import WorkerSnapshot

BACKLOG_MAX_MS = 600.0
"""Backlog of one worker that counts for the price, at most."""

LIGHT = 0.5
"""Share of its fair part of all requests below which a worker is lightly used."""


class ComputePrice(NamedTuple):
    """The shadow price of compute on every worker."""

    of_fleet: float
    """The price on a worker of mean speed that is not lightly used."""
    light_share: float
    """Requests times ms per token below which a worker is lightly used."""
    mean_ms_per_token: float
    """Milliseconds per token of a worker of mean speed."""

    def on(self, ms_per_token: float, requests: int) -> float:
        """Return the price on a worker with so many requests, under way or waiting for it."""
        price = self.at_speed(ms_per_token)
        light = self.light_share / ms_per_token
        return price * requests / light if requests < light else price

    def at_speed(self, ms_per_token: float) -> float:
        """Return the price on a worker of this speed that is not lightly used."""
        return self.of_fleet * self.mean_ms_per_token / ms_per_token


def counted_backlog_ms(worker: WorkerSnapshot) -> float:
    """Return the milliseconds of a worker's queued prefill, as far as they count for the price."""
    ms = (worker.tokens_queued - worker.away_tokens) * worker.speed.ms_per_token
    return ms if ms < BACKLOG_MAX_MS else BACKLOG_MAX_MS


def fleet_totals(candidates: Sequence[Candidate]) -> FleetTotals:
    """Return the sums over the candidates, which are used for the fleet where a query has no sums of its own."""
    backlog_ms = tokens_per_ms = 0.0
    streams = awaiting = 0
    for candidate in candidates:
        worker = candidate.worker
        ms_per_token = worker.speed.ms_per_token
        # counted_backlog_ms, written out: this runs for every request of a small fleet.
        ms = (worker.tokens_queued - worker.away_tokens) * ms_per_token
        backlog_ms += ms if ms < BACKLOG_MAX_MS else BACKLOG_MAX_MS
        tokens_per_ms += 1 / ms_per_token
        streams += worker.streams
        awaiting += worker.requests_awaiting
    return FleetTotals(
        workers=len(candidates),
        backlog_ms=backlog_ms,
        streams=streams,
        requests_awaiting=awaiting,
        tokens_per_ms=tokens_per_ms,
    )


def compute_price(fleet: FleetTotals, options: CostOptions) -> ComputePrice:
    """Return the shadow price of compute of a fleet with these loads."""
    return ComputePrice(
        fleet.backlog_ms / fleet.workers / options.backlog_ms,
        LIGHT * (fleet.streams + fleet.requests_awaiting + 1) / fleet.tokens_per_ms,
        fleet.workers / fleet.tokens_per_ms,
    )
