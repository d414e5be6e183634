"""The arithmetic of a waiting room: when it is full, when a standing queue sheds, when a refused client returns.

How long a request may wait in all is a setting; gateway/queueing/waiting_room.py ends the waits.
"""

from collections import deque
from typing import Literal

import msgspec

DRAIN_SECONDS = 30.0
"""How far back the drain rate looks."""

TURNS_REMEMBERED = 512
"""Turns that the drain rate is computed from, at most."""

SHED_SHARE = 0.3
"""Share of its TTFT target that a request may wait in a standing queue."""


class WaitingRoomBounds(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many requests and uncached prompt tokens may wait: in all, and of one tenant (None: no own bound)."""

    requests_max: int
    tokens_max: int
    tenant_requests_max: int | None = None
    tenant_tokens_max: int | None = None


class WaitingTotals(msgspec.Struct, frozen=True, gc=False):
    """How many requests wait, and how many uncached prompt tokens they have together."""

    requests: int = 0
    tokens: int = 0

    def plus(self, requests: int, tokens: int) -> "WaitingTotals":
        """Return the totals with so many more requests and tokens."""
        return WaitingTotals(self.requests + requests, self.tokens + tokens)


NONE_WAITING = WaitingTotals()


def flood_of(own: WaitingTotals, requests: int) -> WaitingTotals:
    """Return what waits of a tenant if that is most of all `requests` that wait; else nothing."""
    return own if 2 * own.requests > requests else NONE_WAITING


def refused_by(
    bounds: WaitingRoomBounds, total: WaitingTotals, own: WaitingTotals, tenants: int, tokens: int
) -> Literal["tenant", "others"] | None:
    """Return which bound keeps one more request of `tokens` tokens out of the room; None if it may enter.

    "tenant": the tenant has reached its own bound, or holds its even share of a full room or more. "others": the
    room is full because of other tenants. `total` is what waits in the room, `own` what waits of this tenant, and
    `tenants` the number of tenants that wait, this one included. An empty room takes any prompt.
    """
    if own.requests and _exceeds(own, tokens, bounds.tenant_requests_max, bounds.tenant_tokens_max):
        return "tenant"
    if not total.requests or not _exceeds(total, tokens, bounds.requests_max, bounds.tokens_max):
        return None
    even = WaitingTotals(max(1, bounds.requests_max // tenants), bounds.tokens_max // tenants)
    by_count = total.requests >= bounds.requests_max
    more = own.requests >= even.requests if by_count else own.tokens + tokens > even.tokens
    return "tenant" if more else "others"


def _exceeds(waiting: WaitingTotals, tokens: int, requests_max: int | None, tokens_max: int | None) -> bool:
    return (requests_max is not None and waiting.requests >= requests_max) or (
        tokens_max is not None and waiting.tokens + tokens > tokens_max
    )


def shed_after_seconds(ttft_seconds: float, standing_seconds: float) -> float:
    """Return how long a request of a class that sheds may wait before it is turned away.

    `ttft_seconds` is the target of the class, `standing_seconds` how long the queue has not been empty. In a burst
    a request may wait as long as its target. A queue that has stood for longer than the target is no burst, and
    every request in it would miss: then the time is SHED_SHARE of the target, so that requests that are served are
    served in time. This is CoDel's idea (Nichols, Jacobson 2012), in the form that needs no rate.
    """
    return ttft_seconds if standing_seconds <= ttft_seconds else SHED_SHARE * ttft_seconds


class DrainRate:
    """How many cost units of waiting work get a turn per second, measured over the last DRAIN_SECONDS."""

    def __init__(self) -> None:
        self._turns: deque[tuple[float, float]] = deque(maxlen=TURNS_REMEMBERED)

    def record(self, now: float, units: float) -> None:
        """Record a turn that was given to a request of `units` cost units."""
        self._turns.append((now, units))

    def per_second(self, now: float) -> float:
        """Return cost units per second, 0 if fewer than two turns are known."""
        while self._turns and self._turns[0][0] < now - DRAIN_SECONDS:
            self._turns.popleft()
        if len(self._turns) < 2:
            return 0.0
        seconds = now - self._turns[0][0]
        return sum(units for _, units in self._turns) / seconds if seconds > 0 else 0.0


def retry_after_seconds(waiting_units: float, units_per_second: float, longest_seconds: float) -> float:
    """Return after how many seconds a refused client should try again: once all that waits now has had its turn.

    Without a measured rate the answer is one second. It is never less than a second, and never more than
    `longest_seconds`, the longest time that a request is left to wait.
    """
    if units_per_second <= 0:
        return 1.0
    return min(max(waiting_units / units_per_second, 1.0), longest_seconds)
