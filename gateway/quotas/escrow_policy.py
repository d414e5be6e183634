"""How much may be reserved ahead of requests: what a limit can spare, and for how long. No I/O; see escrow.py."""

import msgspec

from gateway.quotas.counter_recovery import is_long
from gateway.quotas.limit import CONCURRENCY, Limit
from gateway.quotas.quota import UNIT_INDEX, Cost, Lease, Standing, Units

AHEAD_MAX = 4
"""Leases ahead of one account."""
CONCURRENT_EACH = 64
"""One lease ahead for so much concurrency: each takes a place that requests at other gateways are refused for."""
LEFT_MIN, LEFT_OF_LONG_MIN = 256, 4096
"""So many times a lease's cost is left of every limit. More of long windows: a lease that nobody has used when its
gateway dies stays charged."""
LEFT_CONCURRENT_SHARE = 0.5
EARLY_SHARE = 1 / 60
"""A smooth window is charged that part of its length before the use, at most: meanwhile it has refilled."""


def rounded_up(cost: Cost) -> Cost:
    """To powers of two: the next request may be somewhat longer. Any of its tokens may be cached."""
    return Cost(
        prompt_tokens=_power(cost.prompt_tokens),
        cached_tokens=None,
        output_tokens=_power(cost.output_tokens),
        requests=cost.requests,
        spend=_power(cost.spend),
    )


def is_far(lease: Lease) -> bool:
    """Is so much left of every limit that a few more leases like this are nothing?"""
    units = rounded_up(lease.reservation.cost).units
    return not lease.shadowed and all(_is_far(standing, units) for standing in lease.standings)


def most_ahead(limit: Limit) -> int:
    """Leases that may be ahead of this limit."""
    return limit.amount // CONCURRENT_EACH if limit.unit == CONCURRENCY else AHEAD_MAX


def _is_far(standing: Standing, units: Units) -> bool:
    limit = standing.limit
    if limit.unit == CONCURRENCY:
        return standing.remaining >= max(2 * AHEAD_MAX, LEFT_CONCURRENT_SHARE * limit.amount)
    times = LEFT_OF_LONG_MIN if is_long(limit) else LEFT_MIN
    return standing.remaining >= times * max(1, units[UNIT_INDEX[limit.unit]])


def is_over(lease: Lease, seconds: float) -> bool:
    """Has a window that it was charged to ended since, or a smooth one been charged too early?"""
    return any(_is_late(standing, seconds) for standing in lease.standings)


def _is_late(standing: Standing, seconds: float) -> bool:
    limit = standing.limit
    if limit.unit == CONCURRENCY:
        return False
    return seconds >= (standing.reset_seconds if limit.is_budget else EARLY_SHARE * limit.window.seconds)


def aged(standing: Standing, seconds: float) -> Standing:
    """As it is so much later."""
    return msgspec.structs.replace(standing, reset_seconds=max(0.0, standing.reset_seconds - seconds))


def fits(cost: Cost, held: Cost) -> bool:
    """Is as much held of every unit as this costs?"""
    return all(needed <= there for needed, there in zip(cost.units, held.units, strict=True))


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length() if number > 1 else number
