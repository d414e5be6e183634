"""QuotaStore in Redis: one function per decision, exact across gateways, whatever the number of tenants.

redis_layout.py lists the keys. A Redis that was flushed has none of them. Where the key of restored usage is
missing, the usage of long windows that the usage ledger has is put back before anything is decided (see
counter_recovery.py).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from gateway.concurrency.bounded_wait import bounded_wait
from gateway.quotas.counter_recovery import CounterRecovery
from gateway.quotas.events import LimitAlert, LimitEvents
from gateway.quotas.limit import Limit
from gateway.quotas.quota_store import (
    IDEMPOTENCY_SECONDS,
    LEASE_SECONDS,
    NO_COST,
    Cost,
    GrantedAhead,
    Lease,
    LimitStatus,
    QuotaStoreUnavailable,
    Refusal,
    RepeatedReservationRefused,
    RepeatRefusalReason,
    Reservation,
)
from gateway.quotas.redis_layout import ScopeLayout, ScopeLayouts, packed_cost, packed_limits
from policies.admission.limit_windows import WindowUsage
from radix_cache.redis.call import CommandArgument, RedisDown, Script, ScriptAnswer, read_lua
from radix_cache.redis.library import library_functions
from radix_cache.redis.scripts import ScriptCaller

LEASE_MS = int(LEASE_SECONDS * 1000)
IDEMPOTENCY_MS = int(IDEMPOTENCY_SECONDS * 1000)

GRANTED, REFUSED, TOO_LATE, LOST = 1, 0, -1, -5
REPEATS: dict[int, RepeatRefusalReason] = {-2: "running", -3: "different", -4: "used up"}
"""Outcomes of reserve.lua."""

CLOCK_FORGETTING = 0.01
RESTORED_MS = 62 * 86_400_000
"""How long it is known that usage was put back: longer than any window. Putting it back again changes nothing."""

FILES = (
    "calendar",
    "windows",
    "stored_meters",
    "lease_records",
    "decisions",
    "reserve",
    "finish",
    "settle_and_reserve",
    "renew",
    "restore",
)
VERBS = ("reserve", "finish", "settle_and_reserve", "renew", "restore")


class RedisQuotaStore:
    """A QuotaStore in Redis.

    An urgent decision that takes longer than `timeout_seconds` raises QuotaStoreUnavailable, and is undone.
    """

    def __init__(
        self,
        scripts: ScriptCaller,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        prefix: str = "rg",
        events: LimitEvents | None = None,
        recovery: CounterRecovery | None = None,
    ) -> None:
        """`recovery` puts back what Redis has lost; None without a ledger."""
        self._scripts = scripts
        self._recovery = recovery
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._layouts = ScopeLayouts(prefix)
        self._prefix = prefix
        self._events = events or LimitEvents()
        self._server_ahead_ms: float | None = None
        self._check = Script.from_text("#!lua\nredis.call('SET', KEYS[1], '1', 'PX', 1000)\nreturn 1")
        self._use_library(read_lua("gateway.quotas", *FILES))

    def _use_library(self, body: str) -> None:
        """Call the functions of this Lua code from now on."""
        verbs = library_functions(body, VERBS)
        self._reserve, self._finish, self._renew = verbs["reserve"], verbs["finish"], verbs["renew"]
        self._restore, self._settle_and_reserve = verbs["restore"], verbs["settle_and_reserve"]
        self._scripts.bind(verbs)

    async def reserve(self, reservation: Reservation, *, urgent: bool = True) -> Lease | Refusal:
        """See QuotaStore. A reservation that is not urgent is waited for as long as Redis takes."""
        layout = self._layouts.of(reservation)
        recovery = self._recovery if layout.restored_key else None
        restorable = recovery is not None and recovery.ready
        while True:
            asked = self._begin_reserve(reservation, layout, restorable=restorable, urgent=urgent)
            try:
                answer = await (bounded_wait(asked, self._timeout_seconds) if urgent else asked)
            except RedisDown as err:
                raise QuotaStoreUnavailable(str(err)) from err
            except BaseException as err:
                # No request will use what this call may yet be granted, so it is given back by name.
                self._give_back(reservation, layout)
                if isinstance(err, TimeoutError):
                    raise QuotaStoreUnavailable("no decision in time") from err
                raise
            finally:
                del asked  # Its error refers to this frame, which would be a reference cycle.
            if not isinstance(answer, list):
                raise QuotaStoreUnavailable("Redis gave an answer of another shape")
            if recovery is None or answer[0] != LOST:
                return self._decision(reservation, layout, answer)
            await recovery.restore(reservation, self._put_back)
            restorable = False

    async def check(self) -> bool:
        """Return whether a decision would have come in time.

        Raises RedisDown unless a decision could be written now.
        """
        called = self._scripts.call(self._check, [f"{self._prefix}:{{check}}"], [])
        try:
            await bounded_wait(called, self._timeout_seconds)
        except TimeoutError:
            await called
            return False
        return True

    async def renew(self, leases: Sequence[Lease]) -> None:
        """See QuotaStore."""
        calls = [self._begin_renew(lease.reservation) for lease in leases]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, RedisDown):
                raise QuotaStoreUnavailable(str(result)) from result

    def _begin_reserve(
        self, reservation: Reservation, layout: ScopeLayout, *, restorable: bool, urgent: bool
    ) -> "asyncio.Future[ScriptAnswer]":
        """Request a decision. `restorable`: the answer is LOST rather than a decision on incomplete usage."""
        once = reservation.idempotency_key
        arguments: list[CommandArgument] = [
            reservation.record or reservation.id,
            LEASE_MS,
            self._latest_ms() if urgent else 0,
            *(("", 0, 0) if once is None else (once.fingerprint, once.repeats_max, IDEMPOTENCY_MS)),
            packed_cost(reservation.cost),
            layout.restored_key if restorable else 0,
            layout.packed,
            reservation.number,
        ]
        keys = [layout.lease_key(reservation), *layout.keys]
        return self._scripts.call(self._reserve, keys, arguments, urgent=urgent)

    def _begin_renew(self, reservation: Reservation) -> "asyncio.Future[ScriptAnswer]":
        layout, once = self._layouts.of(reservation), reservation.idempotency_key
        fingerprint = once.fingerprint if once is not None else ""
        keys = [layout.lease_key(reservation), *layout.concurrency_keys]
        owner, number = reservation.record or reservation.id, reservation.number
        arguments: list[CommandArgument] = [owner, LEASE_MS, fingerprint, IDEMPOTENCY_MS, number]
        return self._scripts.call(self._renew, keys, arguments, urgent=False)

    def _decision(self, reservation: Reservation, layout: ScopeLayout, answer: list[int]) -> Lease | Refusal:
        outcome, server_ms = answer[:2]
        self._learn_clock(server_ms)
        if outcome == TOO_LATE:
            raise QuotaStoreUnavailable(
                f"reservation {reservation.id} came too late or has ended", answered=True
            )
        if outcome in REPEATS:
            raise RepeatedReservationRefused(REPEATS[outcome])
        worst, retry_us, shadows = answer[2:5]
        limit_statuses = _statuses(layout, answer, 5 + shadows)
        if outcome == GRANTED:
            return Lease(
                reservation=reservation,
                limit_statuses=limit_statuses,
                shadow_refusals=tuple([limit_statuses[number - 1] for number in answer[5 : 5 + shadows]])
                if shadows
                else (),
            )
        scope, limit = layout.limits[worst - 1]
        return Refusal(
            scope=scope.name,
            limit=limit,
            retry_after_seconds=retry_us / 1e6 if retry_us >= 0 else None,
            limit_statuses=limit_statuses,
        )

    def release(self, lease: Lease) -> "asyncio.Future[None]":
        """See QuotaStore."""
        return self.settle(lease, None)

    def settle(self, lease: Lease, actual: Cost | None) -> "asyncio.Future[None]":
        """See QuotaStore; None releases the lease. The result is done when Redis has answered."""
        reservation, layout = lease.reservation, self._layouts.of(lease.reservation)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(answer: "asyncio.Future[ScriptAnswer]") -> None:
            failure = None if answer.cancelled() else answer.exception()
            if failure is None and not answer.cancelled():
                alerts = answer.result()
                if isinstance(alerts, list) and len(alerts) > 1:
                    self._send_alerts(reservation, layout, alerts)
            if ended.done():
                return
            if failure is None:
                ended.set_result(None)
            else:
                ended.set_exception(QuotaStoreUnavailable(str(failure)))
                ended.exception()  # Fetched here, because a caller that does not wait never fetches it.

        self._begin_finish(reservation, layout, actual, lease.ended_at).add_done_callback(answered)
        return ended

    def _begin_finish(
        self, reservation: Reservation, layout: ScopeLayout, actual: Cost | None, ended_at: float | None
    ) -> "asyncio.Future[ScriptAnswer]":
        once = reservation.idempotency_key
        ago_ms = max(1, round((self._clock() - ended_at) * 1000)) if ended_at is not None else 0
        arguments: list[CommandArgument] = [
            reservation.record or reservation.id,
            LEASE_MS,
            0 if actual is None else 1,
            once.fingerprint if once is not None else "",
            IDEMPOTENCY_MS,
            packed_cost(reservation.cost),
            packed_cost(actual or NO_COST),
            layout.restored_key if ago_ms and self._recovery is not None else 0,
            ago_ms,
            layout.packed,
            reservation.number,
        ]
        keys = [layout.lease_key(reservation), *layout.keys]
        return self._scripts.call(self._finish, keys, arguments, urgent=False)

    def settle_and_reserve(
        self, ended: Sequence[tuple[Lease, Cost]], ahead: Sequence[Reservation]
    ) -> Awaitable[GrantedAhead]:
        """See QuotaStore."""
        layout = self._layouts.of(ended[0][0].reservation)
        recovery = self._recovery
        restorable = recovery is not None and recovery.ready
        ended_by_record, new = _ended_by_record(ended), _new_records(ahead)
        keys = [f"{layout.lease}{owner}" for owner in (*ended_by_record, *new)]
        arguments: list[CommandArgument] = [
            LEASE_MS,
            len(ended_by_record),
            len(new),
            layout.restored_key if restorable else 0,
            layout.packed,
            packed_cost(ahead[0].cost if ahead else NO_COST),
        ]
        for owner, (reserved, leases) in ended_by_record.items():
            arguments += (owner, reserved, len(leases) // 2, *leases)
        for owner, count in new.items():
            arguments += (owner, count)
        asked = self._scripts.call(
            self._settle_and_reserve, [keys[0], *layout.keys, *keys], arguments, urgent=False
        )
        return self._granted(asked, ended[0][0].reservation, layout)

    async def _granted(
        self, asked: "asyncio.Future[ScriptAnswer]", reservation: Reservation, layout: ScopeLayout
    ) -> GrantedAhead:
        """Return the answer to settle_and_reserve of leases like this reservation."""
        try:
            answer = await asked
        except RedisDown as err:
            raise QuotaStoreUnavailable(str(err)) from err
        finally:
            del asked  # Its error refers to this frame, which would be a reference cycle.
        if not isinstance(answer, list):
            raise QuotaStoreUnavailable("Redis gave an answer of another shape")
        count, server_ms, refused, alerts = answer[:4]
        self._learn_clock(server_ms)
        statuses_at = 4 + 2 * alerts
        if alerts:
            self._send_alerts(reservation, layout, answer[3:statuses_at])
        return GrantedAhead(
            count=count, limit_statuses=_statuses(layout, answer, statuses_at), refused=refused == 1
        )

    def _send_alerts(self, reservation: Reservation, layout: ScopeLayout, answer: list[int]) -> None:
        """Send the alerts that are due by the answer to a settlement."""
        for at in range(1, len(answer), 2):
            scope, limit = layout.limits[answer[at] - 1]
            self._events.alert(LimitAlert.of(reservation, scope.name, limit, answer[at + 1]))

    def _give_back(self, reservation: Reservation, layout: ScopeLayout) -> None:
        """Send a release without waiting for it. It is sent after the reserve, and leaves a tombstone."""
        released = self._begin_finish(reservation, layout, None, None)
        released.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _put_back(
        self,
        organisation: str,
        scope: str,
        found: Sequence[tuple[Limit, WindowUsage]],
        /,
        *,
        again: bool = False,
    ) -> bool:
        """Put back the usage of these limits, all of one scope, and return whether that changed anything.

        Nothing is changed if another gateway has put the usage back already (unless `again` is true), or if one of
        these windows has ended meanwhile. Raises RedisDown.
        """
        tag = f"{self._prefix}:{{{organisation}}}"
        limits = [limit for limit, _ in found]
        packed = packed_limits(limits, [2] * len(limits))
        arguments: list[CommandArgument] = [RESTORED_MS, int(again), packed]
        for _, usage in found:
            arguments += (usage.used, round(usage.mark * 1e6))
        called = self._scripts.call(self._restore, [f"{tag}:whole", f"{tag}:used:{scope}"], arguments)
        return await called == 1

    def _learn_clock(self, server_ms: int) -> None:
        """Learn how far the server's clock is ahead.

        An answer that was read late makes the difference look smaller, so the largest one counts.
        """
        ahead = server_ms - self._clock() * 1000
        known = self._server_ahead_ms
        if known is None or ahead > known:
            self._server_ahead_ms = ahead
        else:
            self._server_ahead_ms = known + CLOCK_FORGETTING * (ahead - known)

    def _latest_ms(self) -> int:
        """Return the server's time at which this process stops waiting; 0 until its clock is known."""
        if self._server_ahead_ms is None:
            return 0
        return int(self._clock() * 1000 + self._server_ahead_ms + self._timeout_seconds * 1000) + 1


def _ended_by_record(
    ended: Sequence[tuple[Lease, Cost]],
) -> dict[str, tuple[bytes, list[CommandArgument]]]:
    """Return by record what its leases had reserved, packed, and of each its number and the actual cost, packed."""
    found: dict[str, tuple[bytes, list[CommandArgument]]] = {}
    for lease, actual in ended:
        reservation = lease.reservation
        owner = reservation.record or reservation.id
        if owner not in found:
            found[owner] = packed_cost(reservation.cost), []
        found[owner][1].extend((reservation.number, packed_cost(actual)))
    return found


def _new_records(ahead: Sequence[Reservation]) -> dict[str, int]:
    """Return the new records, with the number of leases that each is to have; 0 for a reservation by itself."""
    found: dict[str, int] = {}
    for reservation in ahead:
        found[reservation.record or reservation.id] = reservation.number
    return found


def _statuses(layout: ScopeLayout, answer: Sequence[int], at: int) -> tuple[LimitStatus, ...]:
    """Return what is left of the limits, which an answer has from this place on."""
    statuses = []
    for scope, limit in layout.limits:
        statuses.append(
            LimitStatus(
                scope=scope.name, limit=limit, remaining=answer[at], reset_seconds=answer[at + 1] / 1e6
            )
        )
        at += 2
    return tuple(statuses)
