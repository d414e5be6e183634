"""QuotaStore in one process: exact here, blind to other gateways. Serves while Redis is away."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter

from gateway.quotas.quota import (
    CONCURRENCY,
    DONE,
    LEASE_SECONDS,
    Cost,
    Done,
    Lease,
    Limit,
    QuotaUnavailable,
    Refusal,
    Reservation,
    Standing,
)
from policies.gcra import Bucket

CONCURRENCY_RETRY_SECONDS = 1.0
SWEEP_SECONDS = 60.0


@dataclass(slots=True)
class Account:
    """One scope's state: when each bucket is full again, and the leases it runs until they end."""

    full_at: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)


class LocalQuotaStore:
    """See QuotaStore. `clock`: seconds, never backwards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[tuple[str, str], Account] = {}
        self._held: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._sweep_at = 0.0

    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        now = self._clock()
        self._sweep(now)
        if reservation.id in self._ended:
            raise QuotaUnavailable(f"reservation {reservation.id} has ended")
        again = reservation.id in self._held
        refusal = None if again else self._refusal(reservation, now)
        if refusal is not None:
            return refusal
        if not again:
            self._held[reservation.id] = now + LEASE_SECONDS
            for account, limit in self._buckets(reservation):
                self._move(account, limit, now, reservation.cost.of(limit.unit))
            for account in self._scopes(reservation):
                account.running[reservation.id] = now + LEASE_SECONDS
        return Lease(reservation=reservation, standings=self._standings(reservation, now))

    def settle(self, lease: Lease, actual: Cost) -> Done:
        self._end(lease, actual)
        return DONE

    def release(self, lease: Lease) -> Done:
        self._end(lease, None)
        return DONE

    async def renew(self, leases: Sequence[Lease]) -> None:
        until = self._clock() + LEASE_SECONDS
        self._sweep(self._clock())
        for lease in leases:
            if lease.reservation.id in self._held:
                self._held[lease.reservation.id] = until
                for account in self._scopes(lease.reservation):
                    account.running[lease.reservation.id] = until

    def adopt(self, reservation: Reservation, seen_at: float, standings: Sequence[Standing]) -> None:
        """What another store said of these limits at that moment: no bucket is fuller than that."""
        for (account, limit), standing in zip(self._buckets(reservation), standings, strict=False):
            full_at = seen_at + standing.reset_seconds
            if full_at > account.full_at.get(limit.name, 0.0):
                account.full_at[limit.name] = full_at

    def _end(self, lease: Lease, actual: Cost | None) -> None:
        now, reservation = self._clock(), lease.reservation
        held = self._held.pop(reservation.id, None) is not None
        for account in self._scopes(reservation):
            account.running.pop(reservation.id, None)
        if reservation.id in self._ended:
            return
        self._ended[reservation.id] = now + LEASE_SECONDS
        if held or actual is not None:
            for account, limit in self._buckets(reservation):
                used = actual.of(limit.unit) if actual is not None else 0
                self._move(account, limit, now, used - reservation.cost.of(limit.unit))

    def _refusal(self, reservation: Reservation, now: float) -> Refusal | None:
        """The limit that makes this reservation wait longest; None if all of them hold."""
        conflicts: list[tuple[float, str, str, int]] = []
        for scope, account in zip(reservation.scopes, self._scopes(reservation), strict=True):
            for limit in scope.limits:
                tat, cost = account.full_at.get(limit.name, 0.0), reservation.cost.of(limit.unit)
                wait = limit.bucket.wait(tat, now, cost)
                if wait != 0.0:
                    amount = int(limit.bucket.amount)
                    conflicts.append((inf if wait is None else wait, scope.name, limit.unit, amount))
            running = sum(until > now for until in account.running.values())
            if scope.concurrency is not None and running >= scope.concurrency:
                conflicts.append((CONCURRENCY_RETRY_SECONDS, scope.name, CONCURRENCY, scope.concurrency))
        if not conflicts:
            return None
        wait, name, unit, amount = max(conflicts, key=itemgetter(0))
        return Refusal(
            scope=name,
            unit=unit,
            amount=amount,
            retry_after_seconds=None if wait == inf else wait,
            standings=self._standings(reservation, now),
        )

    def _move(self, account: Account, limit: Limit, now: float, cost: int) -> None:
        account.full_at[limit.name] = limit.bucket.spend(account.full_at.get(limit.name, 0.0), now, cost)

    def _standings(self, reservation: Reservation, now: float) -> tuple[Standing, ...]:
        return tuple(
            _standing(limit.unit, limit.bucket, account.full_at.get(limit.name, 0.0), now)
            for account, limit in self._buckets(reservation)
        )

    def _buckets(self, reservation: Reservation) -> list[tuple[Account, Limit]]:
        accounts = self._scopes(reservation)
        return [
            (a, limit)
            for a, scope in zip(accounts, reservation.scopes, strict=True)
            for limit in scope.limits
        ]

    def _scopes(self, reservation: Reservation) -> list[Account]:
        return [
            self._accounts.setdefault((reservation.organisation, scope.name), Account())
            for scope in reservation.scopes
        ]

    def _sweep(self, now: float) -> None:
        """Once a minute, drops what has ended by itself, so that memory follows what is in use."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        self._held = {name: until for name, until in self._held.items() if until > now}
        self._ended = {name: until for name, until in self._ended.items() if until > now}
        for key, account in list(self._accounts.items()):
            account.running = {name: until for name, until in account.running.items() if until > now}
            account.full_at = {name: tat for name, tat in account.full_at.items() if tat > now}
            if not account.running and not account.full_at:
                del self._accounts[key]


def _standing(unit: str, bucket: Bucket, tat: float, now: float) -> Standing:
    return Standing(
        unit=unit,
        amount=int(bucket.amount),
        remaining=bucket.remaining(tat, now),
        reset_seconds=bucket.reset_seconds(tat, now),
    )
