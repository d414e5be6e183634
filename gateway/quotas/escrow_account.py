"""The account of escrow: requests of the same scopes, the leases ahead of them, and how many there should be."""

import asyncio
from collections import deque

from gateway.quotas.quota_store import Cost, GrantedAhead, Lease, LimitStatus, Reservation

BUSY_SECONDS = 0.5
"""Two requests within this time are a reason to expect a third."""
AHEAD_SECONDS = 0.03
"""Leases are ahead of the requests that come in this time, or in the time that decisions on them took of late, if
that is longer: a decision takes up to the DELAY_SECONDS of radix_cache/redis/batch.py and a turn of the event loop,
and requests come in bursts."""


class LeaseAhead:
    """One lease ahead of requests, decided or on its way."""

    __slots__ = ("asked_at", "decided", "number", "reservation")

    def __init__(
        self, reservation: Reservation, decided: "asyncio.Future[GrantedAhead]", number: int, asked_at: float
    ) -> None:
        self.reservation = reservation
        self.decided = decided
        """The decision on all leases of the same call."""
        self.number = number
        """How many of those come before this one."""
        self.asked_at = asked_at

    def lease(self) -> Lease | None:
        """Return the lease, once it is decided; None where it was not granted."""
        granted = self.decided.result()
        if self.number >= granted.count:
            return None
        return Lease(reservation=self.reservation, limit_statuses=granted.limit_statuses)


class EscrowAccount:
    """Requests of the same scopes for the same model, and the leases ahead of them."""

    __slots__ = (
        "_requests",
        "_requests_before",
        "_window_from",
        "affordable",
        "ahead",
        "asked_at",
        "decision_seconds",
        "dropped",
        "ended",
        "gap_seconds",
        "last",
        "limit_statuses",
        "seen_at",
        "settled",
    )

    def __init__(self, first: Reservation) -> None:
        self.last = first
        """The request that came last; leases ahead are like it."""
        self.ahead: deque[LeaseAhead] = deque()
        self.dropped = False
        """Whether no request comes to this account any more: nothing is reserved ahead of it then."""
        self.ended: list[tuple[Lease, Cost]] = []
        """Leases that the store is to settle, with their actual costs."""
        self.settled: asyncio.Future[None] | None = None
        """Done when the store has settled them; None while there are none."""
        self.asked_at, self.gap_seconds = float("-inf"), float("inf")
        """When the last request came, and how long after the one before."""
        self.limit_statuses: tuple[LimitStatus, ...] = ()
        """What was left of the limits by the store's last answer, at `seen_at`."""
        self.seen_at = 0.0
        self.affordable = 0
        """How many leases might be ahead then."""
        self.decision_seconds = AHEAD_SECONDS
        """How long decisions on leases ahead take at most, of late; AHEAD_SECONDS to BUSY_SECONDS."""
        self._window_from = float("-inf")
        self._requests = self._requests_before = 0
        """Requests that came in the `decision_seconds` since `_window_from`, and in the time like that before."""

    def count(self, reservation: Reservation, now: float) -> None:
        """Count a request that has come."""
        self.last = reservation
        self.gap_seconds, self.asked_at = now - self.asked_at, now
        if now - self._window_from >= self.decision_seconds:
            self._window_from, self._requests_before, self._requests = now, self._requests, 0
        self._requests += 1

    def decided_in(self, seconds: float) -> None:
        """Learn how long a decision on a lease ahead took, and forget a tenth of older ones."""
        self.decision_seconds = min(max(seconds, 0.9 * self.decision_seconds, AHEAD_SECONDS), BUSY_SECONDS)

    def leases_wanted(self, now: float) -> int:
        """Return how many leases are to be ahead now: of the requests that come during two decisions, less one.

        A request that finds only leases that are not decided yet waits for the store. While as many are on their
        way as requests come during one decision, as many others are needed that are decided.
        """
        if (
            self.dropped
            or not self.affordable
            or self.gap_seconds > BUSY_SECONDS
            or now - self.asked_at > BUSY_SECONDS
        ):
            return 0
        wanted = self._requests if self._requests > self._requests_before else self._requests_before
        wanted += wanted - 1
        return wanted if wanted < self.affordable else self.affordable
