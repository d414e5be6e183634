"""How much quota may be reserved ahead of requests, and for how long: what limits can spare. See escrow.py."""

from collections.abc import Sequence
from functools import lru_cache
from math import inf

from gateway.quotas.counter_recovery import HOUR_SECONDS
from gateway.quotas.limit import CONCURRENCY
from gateway.quotas.quota_store import UNIT_INDEX, Cost, LimitStatus, Units

AHEAD_MAX = 128
"""Leases ahead of one account."""
CONCURRENT_EACH = 64
"""One lease ahead is held for so much concurrency: each takes a place from requests at other gateways."""
LEFT_MIN, LEFT_OF_LONG_MIN = 256, 4096
"""How many times a lease's cost must be left of every limit, and of one with a long window: a lease that is unused
when its gateway dies stays charged until the window ends."""
AHEAD_AT_MIN = 4
"""Leases ahead where just so much is left; where more is left, in proportion more."""
LEFT_CONCURRENT_SHARE = 0.5
"""The share of a limit of concurrency that must be left."""
EARLY_SHARE = 1 / 60
"""The share of a smooth window's length by which it is charged before the use, at most: the charge has drained by
then."""


@lru_cache(maxsize=4096)
def _units_of(cost: Cost) -> Units:
    return cost.units


def rounded_up(cost: Cost) -> Cost:
    """Return the cost rounded up to powers of two: the next request may be somewhat longer.

    Any of its tokens may be cached.
    """
    prompt, output, spend = cost.prompt_tokens, cost.output_tokens, cost.spend
    return Cost(
        prompt_tokens=1 << (prompt - 1).bit_length() if prompt > 1 else prompt,
        cached_tokens=None,
        output_tokens=1 << (output - 1).bit_length() if output > 1 else output,
        requests=cost.requests,
        spend=1 << (spend - 1).bit_length() if spend > 1 else spend,
    )


def leases_affordable(statuses: Sequence[LimitStatus], held: Cost) -> int:
    """Return how many leases of this cost may be ahead; none near a limit, where they would be missed elsewhere.

    `statuses` are what was left when the last lease was granted.
    """
    units, found = _units_of(held), AHEAD_MAX
    for status in statuses:
        limit = status.limit
        if limit.unit == CONCURRENCY:
            enough = status.remaining >= LEFT_CONCURRENT_SHARE * limit.amount
            leases = limit.amount // CONCURRENT_EACH if enough else 0
        else:
            least = LEFT_OF_LONG_MIN if limit.window.seconds > HOUR_SECONDS else LEFT_MIN
            least *= units[UNIT_INDEX[limit.unit]] or 1
            leases = AHEAD_AT_MIN * status.remaining // least if status.remaining >= least else 0
        if leases < found:
            found = leases
    return found


def seconds_ahead_max(statuses: Sequence[LimitStatus]) -> float:
    """Return how long a lease may be ahead of its request: until a window that it was charged to ends.

    To a smooth window it would be charged too early. `statuses` are what was left when it was granted.
    """
    seconds = inf
    for status in statuses:
        limit = status.limit
        if limit.unit != CONCURRENCY:
            smooth = limit.window.reset == "smooth"
            left = EARLY_SHARE * limit.window.seconds if smooth else status.reset_seconds
            seconds = min(seconds, left)
    return seconds


def aged(statuses: tuple[LimitStatus, ...], seconds: float) -> tuple[LimitStatus, ...]:
    """Return the statuses as they are so much later."""
    found = []
    for status in statuses:
        left = status.reset_seconds - seconds
        found.append(
            LimitStatus(
                scope=status.scope,
                limit=status.limit,
                remaining=status.remaining,
                reset_seconds=left if left > 0.0 else 0.0,
            )
        )
    return tuple(found)


def covers(held: Cost, cost: Cost) -> bool:
    """Return whether a lease that holds this much is enough for a request of this cost."""
    return (
        cost.prompt_tokens <= held.prompt_tokens
        and cost.output_tokens <= held.output_tokens
        and cost.requests <= held.requests
        and cost.spend <= held.spend
    )
