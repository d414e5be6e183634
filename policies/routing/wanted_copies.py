"""Wanted copies of prefixes: parts of a prompt that other requests share, and how much one more copy is worth.

Of a prefix that c requests have (this one, those under way at all gateways, those that wait: one more than
`requests` of SharedPrefix), and that h of W workers hold, h S / W requests are the holders' fair part of all S
requests. The others would find shorter queues elsewhere, if only the prefix were there:

    excess = c - h S / W - 1
    share  = excess / (excess + h + 1)      of each part of the prompt with excess > 0 and h < W

`share` of the time to compute the part is charged to later requests. A conversation has c = 1 and stays where it
is; one prompt that all requests share is copied by the first few of them.

A part that no worker has computed yet is *coming*: a burst of requests has brought it, and waits for its holders.
These requests are the backlog, so it is no reason to leave other workers idle. A copy of it pays, per millisecond,

    fee = min(price of compute, price by the worker's own backlog) + w delayed (h + 1) / (c + h)

in place of price and delay (w and `delayed`: see cost.py): the delay of the running streams is shared by all
requests that wait for the part. The second of the prices is that of compute_price.py, with the worker's backlog in
place of the mean. A copy pays no delay where `share` is above 0, and for the memory that it takes (memory_price.py)
by (h + 1) / (c + h), too.
"""

from collections.abc import Sequence
from typing import NamedTuple

from policies.routing.protocol import FleetTotals, RouteQuery


class WantedCopy(NamedTuple):
    """A part of the prompt that other requests have too, and of which the fleet may need one more copy."""

    begin: int
    """Tokens of the prompt before it."""
    end: int
    """Tokens of the prompt up to its end."""
    share: float
    """Share of its prefill that is charged to later requests on any worker; 0: its holders can serve them."""
    requests: int
    """How many other requests have it."""
    holders: int
    """About how many workers hold it or are about to."""
    regret_ms: float
    """What requests have waited for one more copy of it."""
    coming: bool
    """Whether no worker has computed it yet."""


def wanted_copies(query: RouteQuery, fleet: FleetTotals) -> list[WantedCopy]:
    """Return the parts of the prompt that other requests have, and that some worker does not hold.

    A part with a share of 0 is among them: waits for it (`regret_ms`) may still pay for a copy.
    """
    workers, requests = fleet.workers, fleet.streams + query.requests_waiting + 1
    wanted: list[WantedCopy] = []
    begin = 0
    for prefix in query.shared:
        holders = prefix.holders
        if holders < workers:
            excess = prefix.requests - holders * requests / workers
            share = excess / (excess + holders + 1) if excess > 0 else 0.0
            coming = holders > 0 and not prefix.computed
            wanted.append(
                WantedCopy(begin, prefix.tokens, share, prefix.requests, holders, prefix.regret_ms, coming)
            )
        begin = prefix.tokens
    return wanted


def tokens_of_others(coming: Sequence[WantedCopy], matched: int) -> float:
    """Return how many tokens of these coming parts, beyond the first `matched` ones, others pay the memory of."""
    return sum(
        (part.end - max(part.begin, matched)) * part.requests / (part.requests + part.holders + 1)
        for part in coming
        if part.end > matched
    )


def copy_terms(
    wanted: Sequence[WantedCopy],
    *,
    matched: int,
    ms_per_token: float,
    lacking_requests: float,
    copy_share: float,
    price: float,
    worker_price: float,
    delay: float,
) -> tuple[float, float, float]:
    """Return `copy` of cost.py on one worker, `copied`, and the `fees` of coming parts.

    `matched`: tokens of the prompt that the worker holds. `lacking_requests`: how many requests it has less than
    `light`. `price`, `delay`: what a millisecond of prefill costs there besides itself. `worker_price`: the price
    by that worker's own backlog.
    """
    copy = copied = fees = 0.0
    for part in wanted:
        if part.end <= matched:
            continue
        ms = ms_per_token * (part.end - max(part.begin, matched))
        share = part.share
        extra = 0.0  # what a millisecond of computing the part costs besides itself
        if part.coming:
            copied += ms
            extra = worker_price
            if not share:
                extra += delay * (part.holders + 1) / (part.requests + part.holders + 1)
            fees += ms * extra
        else:
            if lacking_requests > 0:  # More of it is charged to later requests on a lightly used worker.
                lack = min(part.requests, lacking_requests)
                share = max(share, lack / (lack + part.holders + 1))
            if share:
                copied += ms
            else:
                extra = price + delay
        copy -= max(ms * copy_share * share, min(part.regret_ms, ms * (1 + extra)))
    return copy, copied, fees
