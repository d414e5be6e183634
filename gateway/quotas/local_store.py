"""QuotaStore in one process: exact here, without what other gateways grant. It serves while Redis is away."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from gateway.quotas.events import LimitAlert, LimitEvents
from gateway.quotas.limit import CONCURRENCY, Limit
from gateway.quotas.quota_store import (
    COMPLETED,
    IDEMPOTENCY_SECONDS,
    LEASE_SECONDS,
    NO_UNITS,
    UNIT_INDEX,
    CompletedAwaitable,
    Cost,
    GrantedAhead,
    Lease,
    LimitStatus,
    QuotaStoreUnavailable,
    Refusal,
    RepeatedReservationRefused,
    Reservation,
    Units,
)
from policies.admission.limit_windows import WindowUsage

CONCURRENCY_RETRY_SECONDS = 1.0
SWEEP_SECONDS = 60.0


@dataclass(slots=True)
class AccountUsage:
    """The usage of one scope, by name of the limit."""

    windows: dict[str, WindowUsage] = field(default_factory=dict)
    alerted_until: dict[str, float] = field(default_factory=dict)
    """Until when no further alert is sent."""
    running: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of limits of concurrency, when the lease of each reservation ends."""
    used_until: float = 0.0
    """When all limits are fully available again."""


@dataclass(slots=True)
class LeaseRecord:
    """A lease, or what is known of one that has ended."""

    reservation_id: str
    """Under a client's own key, other reservations may follow it."""
    ends: float
    """When it ends unless it is renewed; 0: it has ended."""
    known_until: float
    fingerprint: str = ""
    attempt: int = 1
    charges: list[tuple[float, float] | None] = field(default_factory=list)
    """Amount and receipt by limit; None: it was not charged."""


class LocalQuotaStore:
    """A QuotaStore in the memory of this process."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        events: LimitEvents | None = None,
    ) -> None:
        """`clock` returns seconds and never goes backwards; `wall` returns Unix time, for calendar windows."""
        self._clock = clock
        self._wall = wall
        self._events = events or LimitEvents()
        self._accounts: dict[tuple[str, str], AccountUsage] = {}
        self._leases: dict[tuple[str, str], LeaseRecord] = {}
        self._sweep_at = 0.0

    async def reserve(self, reservation: Reservation, *, urgent: bool = True) -> Lease | Refusal:
        """See QuotaStore; every reservation is decided at once."""
        return self._decide(reservation)

    def _decide(self, reservation: Reservation) -> Lease | Refusal:
        now = self._clock()
        self.sweep(now)
        known = self._leases.get(_name(reservation))
        again = known is not None and known.reservation_id == reservation.id
        if again and known is not None and not known.ends:
            raise QuotaStoreUnavailable(f"reservation {reservation.id} has ended")
        held = known if again and known is not None else self._opened(reservation, known, now)
        shadowed: list[int] = []
        if not again:
            refused = self._judge(reservation, held, now, shadowed)
            if refused is not None:
                return refused
            self._take(reservation, held, now)
        statuses = self._statuses(reservation, now)
        return Lease(
            reservation=reservation,
            limit_statuses=statuses,
            shadow_refusals=tuple(statuses[at] for at in shadowed),
        )

    def settle(self, lease: Lease, actual: Cost) -> CompletedAwaitable:
        """See QuotaStore."""
        self._end(lease.reservation, actual.units)
        return COMPLETED

    def release(self, lease: Lease) -> CompletedAwaitable:
        """See QuotaStore."""
        self._end(lease.reservation, None)
        return COMPLETED

    def settle_and_reserve(
        self, ended: Sequence[tuple[Lease, Cost]], ahead: Sequence[Reservation]
    ) -> Awaitable[GrantedAhead]:
        """See QuotaStore."""
        for lease, actual in ended:
            self.settle(lease, actual)
        return _answer(self._reserve_ahead(ahead))

    def _reserve_ahead(self, ahead: Sequence[Reservation]) -> GrantedAhead:
        """Reserve until a limit refuses."""
        statuses: tuple[LimitStatus, ...] = ()
        for count, reservation in enumerate(ahead):
            decision = self._decide(reservation)
            if isinstance(decision, Lease) and decision.shadow_refusals:
                self.release(decision)
            elif isinstance(decision, Lease):
                statuses = decision.limit_statuses
                continue
            return GrantedAhead(count=count, limit_statuses=decision.limit_statuses, refused=True)
        return GrantedAhead(count=len(ahead), limit_statuses=statuses)

    async def renew(self, leases: Sequence[Lease]) -> None:
        """See QuotaStore."""
        until = self._clock() + LEASE_SECONDS
        self.sweep()
        for lease in leases:
            held = self._leases.get(_name(lease.reservation))
            if held is None or held.reservation_id != lease.reservation.id or not held.ends:
                continue
            held.ends, held.known_until = until, max(held.known_until, until)
            for account, limit in self._limits(lease.reservation):
                running = account.running.get(limit.name, {})
                if lease.reservation.id in running:
                    running[lease.reservation.id] = until

    def adopt(self, reservation: Reservation, seen_at: float, statuses: Sequence[LimitStatus]) -> None:
        """Take over the statuses that another store gave at that time: no more than that is left here."""
        now, epoch = self._clock(), self._wall()
        known = {(status.scope, status.limit.name): status for status in statuses}
        for (scope, limit), (account, _) in zip(reservation.limits(), self._limits(reservation), strict=True):
            status = known.get((scope.name, limit.name))
            if status is None or limit.unit == CONCURRENCY:
                continue
            used = max(0.0, limit.amount - status.remaining)
            mark = seen_at if limit.window.reset == "smooth" else seen_at + status.reset_seconds
            seen = limit.window.current(WindowUsage(used, mark), limit.amount, now, epoch)
            mine = self._usage(account, limit, now)
            if seen.used > mine.used:
                self._put(account, limit, seen, now)

    def rescale(self, factor: float) -> None:
        """Multiply what was used of every window, as the limits will be: the same share of each is left."""
        for account in self._accounts.values():
            for limit, usage in account.windows.items():
                account.windows[limit] = WindowUsage(usage.used * factor, usage.mark)

    def sweep(self, now: float | None = None) -> None:
        """Drop what has ended by itself, once a minute, so that memory follows what is in use."""
        now = self._clock() if now is None else now
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        self._leases = {name: held for name, held in self._leases.items() if held.known_until > now}
        self._accounts = {name: a for name, a in self._accounts.items() if a.used_until > now}
        for account in self._accounts.values():
            for limit, running in account.running.items():
                account.running[limit] = {name: until for name, until in running.items() if until > now}

    def _opened(self, reservation: Reservation, known: LeaseRecord | None, now: float) -> LeaseRecord:
        """Return the record of a new lease. Raises RepeatedReservationRefused if the attempt may not be made."""
        once, attempt = reservation.idempotency_key, 1
        fingerprint = once.fingerprint if once is not None else ""
        if known is not None and once is not None:
            if known.fingerprint != fingerprint:
                raise RepeatedReservationRefused("different")
            if known.ends > now:
                raise RepeatedReservationRefused("running")
            if known.attempt >= once.repeats_max:
                raise RepeatedReservationRefused("used up")
            attempt = known.attempt + 1
        ends = now + LEASE_SECONDS
        return LeaseRecord(
            reservation_id=reservation.id,
            ends=ends,
            known_until=now + IDEMPOTENCY_SECONDS if once is not None else ends,
            fingerprint=fingerprint,
            attempt=attempt,
        )

    def _judge(
        self, reservation: Reservation, held: LeaseRecord, now: float, shadowed: list[int]
    ) -> Refusal | None:
        """Note what each limit is to be charged, and return the refusal of the limit with the longest wait, if any.

        `shadowed` gets the numbers of shadow limits that would have refused.
        """
        worst: tuple[float, int] | None = None
        for at, (account, limit) in enumerate(self._limits(reservation)):
            if limit.unit == CONCURRENCY:
                due, free = 1.0, limit.amount - _running(account, limit, now)
                wait: float | None = 0.0 if free > 0 else CONCURRENCY_RETRY_SECONDS
            else:
                unit = UNIT_INDEX[limit.unit]
                due = float(reservation.cost.units[unit])
                wait = limit.window.wait(self._usage(account, limit, now), limit.amount, now, due)
            held.charges.append((due, 0.0))
            if wait == 0.0:
                continue
            if limit.mode == "shadow":
                shadowed.append(at)
                held.charges[at] = None
            elif limit.enforced and (worst is None or (inf if wait is None else wait) > worst[0]):
                worst = inf if wait is None else wait, at
        if worst is None:
            return None
        wait, at = worst
        scope, limit = reservation.limits()[at]
        return Refusal(
            scope=scope.name,
            limit=limit,
            retry_after_seconds=None if wait == inf else wait,
            limit_statuses=self._statuses(reservation, now),
        )

    def _take(self, reservation: Reservation, held: LeaseRecord, now: float) -> None:
        for at, (account, limit) in enumerate(self._limits(reservation)):
            charge = held.charges[at]
            if charge is None:
                continue
            if limit.unit == CONCURRENCY:
                account.running.setdefault(limit.name, {})[reservation.id] = held.ends
                account.used_until = max(account.used_until, held.ends)
                continue
            usage = limit.window.charge(self._usage(account, limit, now), now, charge[0])
            held.charges[at] = charge[0], limit.window.receipt(usage, limit.amount, now)
            self._put(account, limit, usage, now)
        self._leases[_name(reservation)] = held

    def _end(self, reservation: Reservation, actual: Units | None) -> None:
        now = self._clock()
        held = self._leases.get(_name(reservation))
        if held is not None and (held.reservation_id != reservation.id or not held.ends):
            return
        total = actual or NO_UNITS
        for at, (account, limit) in enumerate(self._limits(reservation)):
            if limit.unit == CONCURRENCY:
                account.running.get(limit.name, {}).pop(reservation.id, None)
                continue
            unit, usage = UNIT_INDEX[limit.unit], self._usage(account, limit, now)
            charge = held.charges[at] if held is not None else None
            if charge is not None:
                usage = limit.window.settled(
                    usage, limit.amount, now, charged=charge[0], actual=total[unit], receipt=charge[1]
                )
            elif held is None:
                usage = limit.window.charge(
                    usage, now, max(0.0, total[unit] - reservation.cost.units[unit]) if actual else 0.0
                )
            self._put(account, limit, usage, now)
            if actual is not None and (held is None or charge is not None):
                self._alert_if_due(reservation, at, account, usage, now)
        self._note_end(reservation, held, actual, now)

    def _note_end(
        self, reservation: Reservation, held: LeaseRecord | None, actual: Units | None, now: float
    ) -> None:
        once = reservation.idempotency_key
        attempt = held.attempt if held is not None else 1
        self._leases[_name(reservation)] = LeaseRecord(
            reservation_id=reservation.id,
            ends=0.0,
            known_until=now + (IDEMPOTENCY_SECONDS if once is not None else LEASE_SECONDS),
            fingerprint=once.fingerprint if once is not None else "",
            attempt=attempt if actual is not None else attempt - 1,  # Without a charge it does not count.
        )

    def _alert_if_due(
        self, reservation: Reservation, at: int, account: AccountUsage, usage: WindowUsage, now: float
    ) -> None:
        scope, limit = reservation.limits()[at]
        if limit.alert_at is None or usage.used < limit.amount * limit.alert_at:
            return
        if account.alerted_until.get(limit.name, 0.0) <= now:
            smooth = limit.window.reset == "smooth"
            account.alerted_until[limit.name] = now + limit.window.seconds if smooth else usage.mark
            used = round(usage.used)
            self._events.alert(LimitAlert.of(reservation, scope.name, limit, used))

    def _statuses(self, reservation: Reservation, now: float) -> tuple[LimitStatus, ...]:
        found = []
        for (scope, limit), (account, _) in zip(reservation.limits(), self._limits(reservation), strict=True):
            if limit.unit == CONCURRENCY:
                remaining, reset = max(0, limit.amount - _running(account, limit, now)), 0.0
            else:
                usage = self._usage(account, limit, now)
                remaining = limit.window.remaining(usage, limit.amount)
                reset = limit.window.reset_seconds(usage, limit.amount, now)
            found.append(LimitStatus(scope=scope.name, limit=limit, remaining=remaining, reset_seconds=reset))
        return tuple(found)

    def _usage(self, account: AccountUsage, limit: Limit, now: float) -> WindowUsage:
        known = account.windows.get(limit.name, WindowUsage())
        return limit.window.current(known, limit.amount, now, self._wall())

    def _put(self, account: AccountUsage, limit: Limit, usage: WindowUsage, now: float) -> None:
        account.windows[limit.name] = usage
        whole_at = now + limit.window.reset_seconds(usage, limit.amount, now)
        account.used_until = max(account.used_until, whole_at, account.alerted_until.get(limit.name, 0.0))

    def _limits(self, reservation: Reservation) -> list[tuple[AccountUsage, Limit]]:
        return [
            (self._accounts.setdefault((reservation.organisation, scope.name), AccountUsage()), limit)
            for scope in reservation.scopes
            for limit in scope.limits
        ]


async def _answer(granted: GrantedAhead) -> GrantedAhead:
    return granted


def _name(reservation: Reservation) -> tuple[str, str]:
    if reservation.idempotency_key is not None:
        return reservation.organisation, f"once:{reservation.idempotency_key.name}"
    return reservation.organisation, f"lease:{reservation.id}"


def _running(account: AccountUsage, limit: Limit, now: float) -> int:
    return sum(until > now for until in account.running.get(limit.name, {}).values())
