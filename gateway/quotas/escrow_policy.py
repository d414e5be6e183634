"""How much quota may be reserved ahead of requests, and for how long: what limits can spare. See escrow.py."""

from gateway.quotas.counter_recovery import HOUR_SECONDS
from gateway.quotas.limit import CONCURRENCY, Limit
from gateway.quotas.quota import UNIT_INDEX, Cost, Lease, LimitStatus

AHEAD_MAX = 8
"""Leases ahead of one account."""
CONCURRENT_EACH = 64
"""One lease ahead is held for so much concurrency: each takes a place from requests at other gateways."""
LEFT_MIN, LEFT_OF_LONG_MIN = 256, 4096
"""How many times a lease's cost must be left of every limit, and of one with a long window: a lease that is unused
when its gateway dies stays charged until the window ends."""
LEFT_CONCURRENT_SHARE = 0.5
EARLY_SHARE = 1 / 60
"""The share of a smooth window's length by which it is charged before the use, at most: the charge has drained by
then."""


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


def has_ample_quota(lease: Lease, held: Cost) -> bool:
    """Return whether so much is left of every limit that a few more leases that hold this cost do not matter."""
    if lease.shadow_refusals:
        return False
    units = held.units
    for status in lease.limit_statuses:
        limit, left = status.limit, status.remaining
        if limit.unit == CONCURRENCY:
            if left < 2 * AHEAD_MAX or left < LEFT_CONCURRENT_SHARE * limit.amount:
                return False
        elif left < (LEFT_OF_LONG_MIN if limit.window.seconds > HOUR_SECONDS else LEFT_MIN) * (
            units[UNIT_INDEX[limit.unit]] or 1
        ):
            return False
    return True


def leases_ahead_max(limit: Limit) -> int:
    """Return how many leases may be ahead of this limit."""
    return limit.amount // CONCURRENT_EACH if limit.unit == CONCURRENCY else AHEAD_MAX


def is_outdated(lease: Lease, seconds: float) -> bool:
    """Return whether a lease of this age was charged to a window that has ended, or too early to a smooth one."""
    for status in lease.limit_statuses:
        limit = status.limit
        if limit.unit != CONCURRENCY:
            smooth = limit.window.reset == "smooth"
            if seconds >= (EARLY_SHARE * limit.window.seconds if smooth else status.reset_seconds):
                return True
    return False


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
