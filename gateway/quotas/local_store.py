"""QuotaStore in one process: exact here, blind to other gateways. Serves while Redis is away."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from gateway.quotas.events import Alert, Events
from gateway.quotas.limit import CONCURRENCY, Limit
from gateway.quotas.quota import (
    DONE,
    LEASE_SECONDS,
    ONCE_SECONDS,
    UNIT_INDEX,
    Cost,
    Done,
    Lease,
    QuotaUnavailable,
    Refusal,
    RepeatRefused,
    Reservation,
    Standing,
    Units,
)
from policies.admission.limit_windows import WindowUsage

CONCURRENCY_RETRY_SECONDS = 1.0
SWEEP_SECONDS = 60.0

NOTHING: Units = (0, 0, 0, 0, 0, 0)


@dataclass(slots=True)
class Account:
    """One scope's state, by limit: what is used, until when nobody is told of that, and who runs until when."""

    meters: dict[str, WindowUsage] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)
    running: dict[str, dict[str, float]] = field(default_factory=dict)
    used_until: float = 0.0


@dataclass(slots=True)
class Held:
    """A lease, or what is known of one that has ended. `charges`: amount and receipt by limit, None for none.

    `paid`: what earlier attempts were charged; `settled`: the same of those that were settled.
    """

    owner: str
    ends: float
    known_until: float
    fingerprint: str = ""
    attempt: int = 1
    paid: Units = NOTHING
    cost: Units = NOTHING
    settled: Units = NOTHING
    charges: list[tuple[float, float] | None] = field(default_factory=list)


class LocalQuotaStore:
    """See QuotaStore. `clock`: seconds, never backwards. `wall`: Unix time, for windows of the calendar."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        events: Events | None = None,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._events = events or Events()
        self._accounts: dict[tuple[str, str], Account] = {}
        self._leases: dict[tuple[str, str], Held] = {}
        self._sweep_at = 0.0

    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        now = self._clock()
        self._sweep(now)
        known = self._leases.get(_name(reservation))
        again = known is not None and known.owner == reservation.id
        if again and known is not None and not known.ends:
            raise QuotaUnavailable(f"reservation {reservation.id} has ended")
        held = known if again and known is not None else self._opened(reservation, known, now)
        shadowed: list[int] = []
        if not again:
            refused = self._judge(reservation, held, now, shadowed)
            if refused is not None:
                return refused
            self._take(reservation, held, now)
        standings = self._standings(reservation, now)
        return Lease(
            reservation=reservation,
            standings=standings,
            shadowed=tuple(standings[at] for at in shadowed),
            settled=held.settled if held.settled != NOTHING else None,
        )

    def settle(self, lease: Lease, actual: Cost) -> Done:
        self._end(lease.reservation, actual.units)
        return DONE

    def release(self, lease: Lease) -> Done:
        self._end(lease.reservation, None)
        return DONE

    async def renew(self, leases: Sequence[Lease]) -> None:
        until = self._clock() + LEASE_SECONDS
        self._sweep(self._clock())
        for lease in leases:
            held = self._leases.get(_name(lease.reservation))
            if held is None or held.owner != lease.reservation.id or not held.ends:
                continue
            held.ends, held.known_until = until, max(held.known_until, until)
            for account, limit in self._limits(lease.reservation):
                running = account.running.get(limit.name, {})
                if lease.reservation.id in running:
                    running[lease.reservation.id] = until

    def adopt(self, reservation: Reservation, seen_at: float, standings: Sequence[Standing]) -> None:
        """What another store said of these limits at that moment: no more is left than that."""
        now, epoch = self._clock(), self._wall()
        known = {(standing.scope, standing.limit.name): standing for standing in standings}
        for (scope, limit), (account, _) in zip(reservation.limits(), self._limits(reservation), strict=True):
            standing = known.get((scope.name, limit.name))
            if standing is None or limit.unit == CONCURRENCY:
                continue
            used = max(0.0, limit.amount - standing.remaining)
            mark = seen_at if limit.window.reset == "smooth" else seen_at + standing.reset_seconds
            seen = limit.window.current(WindowUsage(used, mark), limit.amount, now, epoch)
            mine = self._meter(account, limit, now)
            if seen.used > mine.used:
                self._put(account, limit, seen, now)

    def _opened(self, reservation: Reservation, known: Held | None, now: float) -> Held:
        """A lease for this attempt, if it may be made. Raises RepeatRefused."""
        once, attempt, paid, settled = reservation.once, 1, NOTHING, NOTHING
        fingerprint = once.fingerprint if once is not None else ""
        if known is not None and once is not None:
            if known.fingerprint != fingerprint:
                raise RepeatRefused("different")
            if known.ends > now:
                raise RepeatRefused("running")
            if known.attempt >= once.attempts_max:
                raise RepeatRefused("used up")
            attempt, paid = (
                known.attempt + 1,
                known.paid if not known.ends else _larger(known.paid, known.cost),
            )
            settled = known.settled
        ends = now + LEASE_SECONDS
        return Held(
            owner=reservation.id,
            ends=ends,
            known_until=now + ONCE_SECONDS if once is not None else ends,
            fingerprint=fingerprint,
            attempt=attempt,
            paid=paid,
            cost=reservation.cost.units,
            settled=settled,
        )

    def _judge(self, reservation: Reservation, held: Held, now: float, shadowed: list[int]) -> Refusal | None:
        """The limit that makes this reservation wait longest; None if all of them hold. Notes what each is due."""
        worst: tuple[float, int] | None = None
        for at, (account, limit) in enumerate(self._limits(reservation)):
            if limit.unit == CONCURRENCY:
                due, free = 1.0, limit.amount - _running(account, limit, now)
                wait: float | None = 0.0 if free > 0 else CONCURRENCY_RETRY_SECONDS
            else:
                unit = UNIT_INDEX[limit.unit]
                due = max(0.0, held.cost[unit] - held.paid[unit])
                wait = limit.window.wait(self._meter(account, limit, now), limit.amount, now, due)
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
            standings=self._standings(reservation, now),
        )

    def _take(self, reservation: Reservation, held: Held, now: float) -> None:
        for at, (account, limit) in enumerate(self._limits(reservation)):
            charge = held.charges[at]
            if charge is None:
                continue
            if limit.unit == CONCURRENCY:
                account.running.setdefault(limit.name, {})[reservation.id] = held.ends
                account.used_until = max(account.used_until, held.ends)
                continue
            meter = limit.window.charge(self._meter(account, limit, now), now, charge[0])
            held.charges[at] = charge[0], limit.window.receipt(meter, limit.amount, now)
            self._put(account, limit, meter, now)
        self._leases[_name(reservation)] = held

    def _end(self, reservation: Reservation, actual: Units | None) -> None:
        now = self._clock()
        held = self._leases.get(_name(reservation))
        if held is not None and (held.owner != reservation.id or not held.ends):
            return
        total, paid = actual or NOTHING, held.paid if held is not None else NOTHING
        for at, (account, limit) in enumerate(self._limits(reservation)):
            if limit.unit == CONCURRENCY:
                account.running.get(limit.name, {}).pop(reservation.id, None)
                continue
            unit, meter = UNIT_INDEX[limit.unit], self._meter(account, limit, now)
            charge = held.charges[at] if held is not None else None
            if charge is not None:
                due = max(0.0, total[unit] - paid[unit])
                meter = limit.window.settled(
                    meter, limit.amount, now, charged=charge[0], actual=due, receipt=charge[1]
                )
            elif held is None:
                meter = limit.window.charge(
                    meter, now, max(0.0, total[unit] - reservation.cost.units[unit]) if actual else 0.0
                )
            self._put(account, limit, meter, now)
            if actual is not None and (held is None or charge is not None):
                self._tell(reservation, at, account, meter, now)
        self._note_end(reservation, held, actual, now)

    def _note_end(
        self, reservation: Reservation, held: Held | None, actual: Units | None, now: float
    ) -> None:
        once = reservation.once
        self._leases[_name(reservation)] = Held(
            owner=reservation.id,
            ends=0.0,
            known_until=now + (ONCE_SECONDS if once is not None else LEASE_SECONDS),
            fingerprint=once.fingerprint if once is not None else "",
            # An attempt for which nothing was charged does not count.
            attempt=(held.attempt if held is not None else 1) - (actual is None),
            paid=_larger(held.paid if held is not None else NOTHING, actual or NOTHING),
            settled=_larger(held.settled if held is not None else NOTHING, actual or NOTHING),
        )

    def _tell(
        self, reservation: Reservation, at: int, account: Account, meter: WindowUsage, now: float
    ) -> None:
        scope, limit = reservation.limits()[at]
        if limit.alert_at is None or meter.used < limit.amount * limit.alert_at:
            return
        if account.told.get(limit.name, 0.0) <= now:
            smooth = limit.window.reset == "smooth"
            account.told[limit.name] = now + limit.window.seconds if smooth else meter.mark
            used = round(meter.used)
            self._events.alert(Alert.of(reservation, scope.name, limit, used))

    def _standings(self, reservation: Reservation, now: float) -> tuple[Standing, ...]:
        found = []
        for (scope, limit), (account, _) in zip(reservation.limits(), self._limits(reservation), strict=True):
            if limit.unit == CONCURRENCY:
                remaining, reset = max(0, limit.amount - _running(account, limit, now)), 0.0
            else:
                meter = self._meter(account, limit, now)
                remaining = limit.window.remaining(meter, limit.amount)
                reset = limit.window.reset_seconds(meter, limit.amount, now)
            found.append(Standing(scope=scope.name, limit=limit, remaining=remaining, reset_seconds=reset))
        return tuple(found)

    def _meter(self, account: Account, limit: Limit, now: float) -> WindowUsage:
        known = account.meters.get(limit.name, WindowUsage())
        return limit.window.current(known, limit.amount, now, self._wall())

    def _put(self, account: Account, limit: Limit, meter: WindowUsage, now: float) -> None:
        account.meters[limit.name] = meter
        whole_at = now + limit.window.reset_seconds(meter, limit.amount, now)
        account.used_until = max(account.used_until, whole_at, account.told.get(limit.name, 0.0))

    def _limits(self, reservation: Reservation) -> list[tuple[Account, Limit]]:
        return [
            (self._accounts.setdefault((reservation.organisation, scope.name), Account()), limit)
            for scope in reservation.scopes
            for limit in scope.limits
        ]

    def _sweep(self, now: float) -> None:
        """Once a minute, drops what has ended by itself, so that memory follows what is in use."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        self._leases = {name: held for name, held in self._leases.items() if held.known_until > now}
        self._accounts = {name: a for name, a in self._accounts.items() if a.used_until > now}
        for account in self._accounts.values():
            for limit, running in account.running.items():
                account.running[limit] = {name: until for name, until in running.items() if until > now}


def _name(reservation: Reservation) -> tuple[str, str]:
    if reservation.once is not None:
        return reservation.organisation, f"once:{reservation.once.name}"
    return reservation.organisation, f"lease:{reservation.id}"


def _running(account: Account, limit: Limit, now: float) -> int:
    return sum(until > now for until in account.running.get(limit.name, {}).values())


def _larger(one: Units, other: Units) -> Units:
    first, second, third, fourth, fifth, sixth = map(max, one, other)
    return first, second, third, fourth, fifth, sixth
