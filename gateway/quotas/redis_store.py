"""QuotaStore in Redis: one function a decision, exact across gateways, whatever the number of tenants.

Keys of one organisation share a hash tag, so that all its scopes are decided in one place:

    rg:{acme}:lease:<reservation id>       what was charged, until it is settled; then that it has ended
    rg:{acme}:once:<name>                  the same, for a request that its client may repeat
    rg:{acme}:used:<scope>                 hash: limit name -> what is used, since or until when
    rg:{acme}:running:<scope>[:<limit>]    sorted set: reservation id -> millisecond at which its lease ends
    rg:{acme}:whole                        hash: key of what is used -> millisecond since which that is whole

A Redis that was flushed has none of them. Where the last one is missing, what the usage ledger knows of long
windows is put back before anything is decided (see restoring).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from gateway.concurrency.bounded_wait import bounded_wait
from gateway.quotas.counter_recovery import Restorer, is_long
from gateway.quotas.events import Alert, Events
from gateway.quotas.limit import CONCURRENCY, Limit, Scope
from gateway.quotas.quota import (
    LEASE_SECONDS,
    ONCE_SECONDS,
    UNIT_INDEX,
    Cost,
    Lease,
    QuotaUnavailable,
    Refusal,
    RepeatRefused,
    Reservation,
    Standing,
    Units,
    WhyNot,
)
from policies.admission.limit_windows import WindowUsage
from radix_cache.redis.call import RedisDown, Script, ScriptAnswer, read_lua
from radix_cache.redis.library import library_functions
from radix_cache.redis.scripts import ScriptCaller

LEASE_MS = int(LEASE_SECONDS * 1000)
ONCE_MS = int(ONCE_SECONDS * 1000)
GRANTED, TOO_LATE, LOST = 1, -1, -5
REPEATS: dict[int, WhyNot] = {-2: "running", -3: "different", -4: "used up"}
CLOCK_FORGETTING = 0.01
WHOLE_MS = 62 * 86_400_000
"""Longer than any window. Being asked once more puts nothing back twice."""

NOTHING = Cost(prompt_tokens=0, requests=0)

FILES = ("windows", "leases", "reserve", "finish", "renew", "restore")
VERBS = ("reserve", "finish", "renew", "restore")

Argument = str | int | float


class RedisQuotaStore:
    """See QuotaStore. A decision that takes longer than `timeout_seconds` is QuotaUnavailable, and undone.

    `restorer`: puts back what Redis has lost; None where nobody else keeps accounts.
    """

    def __init__(
        self,
        scripts: ScriptCaller,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        prefix: str = "rg",
        events: Events | None = None,
        restorer: Restorer | None = None,
    ) -> None:
        self._scripts = scripts
        self._restorer = restorer
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._prefix = prefix
        self._events = events or Events()
        self._server_ahead_ms: float | None = None
        self._check = Script.from_text("#!lua\nredis.call('SET', KEYS[1], '1', 'PX', 1000)\nreturn 1")
        verbs = library_functions(read_lua("gateway.quotas", *FILES), VERBS)
        self._reserve, self._finish, self._renew = verbs["reserve"], verbs["finish"], verbs["renew"]
        self._restore = verbs["restore"]
        scripts.bind(verbs)

    async def reserve(self, reservation: Reservation, *, urgent: bool = True) -> Lease | Refusal:
        restorer = self._restorer
        asks = restorer is not None and restorer.ready
        answer = await self._ask(reservation, asks, urgent)
        if restorer is not None and isinstance(answer, list) and answer[0] == LOST:
            await restorer.restore(reservation, self._put_back)
            answer = await self._ask(reservation, asks=False)
        return self._decision(reservation, answer)

    async def _ask(self, reservation: Reservation, asks: bool, urgent: bool = True) -> ScriptAnswer:
        """The decision of reserve. `asks`: it says LOST rather than decide on what is not whole."""
        once = reservation.once
        keys, limits = self._layout(reservation)
        whole = self._whole(reservation, keys) if asks else 0
        arguments: list[Argument] = [reservation.id, LEASE_MS, self._latest_ms()]
        arguments += [once.fingerprint, once.attempts_max, ONCE_MS] if once is not None else ["", 0, 0]
        arguments += (*reservation.cost.units, whole)
        for key, limit in limits:
            arguments += (key, _text(limit))
        called = self._scripts.call(self._reserve, keys, arguments, urgent=urgent)
        try:
            answer = await bounded_wait(called, self._timeout_seconds)
        except RedisDown as err:
            raise QuotaUnavailable(str(err)) from err
        except BaseException as err:
            # Nobody will use what this call may yet be granted, so it is given back by name.
            self._give_back(reservation)
            if isinstance(err, TimeoutError):
                raise QuotaUnavailable("no decision in time") from err
            raise
        return answer

    def settle(self, lease: Lease, actual: Cost) -> "asyncio.Future[None]":
        return self._end(lease, actual)

    def release(self, lease: Lease) -> "asyncio.Future[None]":
        return self._end(lease, None)

    async def check(self) -> bool:
        """Raises RedisDown unless a decision could be written down now. Would it have come in time?"""
        called = self._scripts.call(self._check, [f"{self._prefix}:{{check}}"], [])
        try:
            await bounded_wait(called, self._timeout_seconds)
        except TimeoutError:
            await called
            return False
        return True

    async def renew(self, leases: Sequence[Lease]) -> None:
        calls = [self._renewal(lease.reservation) for lease in leases]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, RedisDown):
                raise QuotaUnavailable(str(result)) from result

    def _renewal(self, reservation: Reservation) -> "asyncio.Future[ScriptAnswer]":
        keys, limits = self._layout(reservation)
        running = [keys[number - 1] for number, limit in limits if limit.unit == CONCURRENCY]
        fingerprint = reservation.once.fingerprint if reservation.once is not None else ""
        arguments: list[Argument] = [reservation.id, LEASE_MS, fingerprint, ONCE_MS]
        return self._scripts.call(self._renew, [keys[0], *running], arguments)

    def _decision(self, reservation: Reservation, answer: ScriptAnswer) -> Lease | Refusal:
        if not isinstance(answer, list):
            raise QuotaUnavailable("Redis gave an answer of another shape")
        outcome, server_ms = answer[:2]
        self._learn_clock(server_ms)
        if outcome == TOO_LATE:
            raise QuotaUnavailable(f"reservation {reservation.id} came too late or has ended")
        if outcome in REPEATS:
            raise RepeatRefused(REPEATS[outcome])
        worst, retry_us, shadows = answer[2:5]
        limits, pairs = reservation.limits(), answer[5 + shadows :]
        standings = tuple(
            Standing(
                scope=scope.name,
                limit=limit,
                remaining=pairs[2 * at],
                reset_seconds=pairs[2 * at + 1] / 1e6,
            )
            for at, (scope, limit) in enumerate(limits)
        )
        if outcome == GRANTED:
            shadowed = tuple(standings[at - 1] for at in answer[5 : 5 + shadows])
            return Lease(
                reservation=reservation,
                standings=standings,
                shadowed=shadowed,
                settled=_units(pairs[2 * len(limits) :]),
            )
        scope, limit = limits[worst - 1]
        return Refusal(
            scope=scope.name,
            limit=limit,
            retry_after_seconds=retry_us / 1e6 if retry_us >= 0 else None,
            standings=standings,
        )

    def _end(self, lease: Lease, actual: Cost | None) -> "asyncio.Future[None]":
        reservation = lease.reservation
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(answer: "asyncio.Future[ScriptAnswer]") -> None:
            failure = None if answer.cancelled() else answer.exception()
            if failure is None and not answer.cancelled():
                self._tell(reservation, answer.result())
            if ended.done():
                return
            if failure is None:
                ended.set_result(None)
            else:
                ended.set_exception(QuotaUnavailable(str(failure)))
                ended.exception()  # Whoever does not wait for it does not ask either.

        self._ending(reservation, actual, lease.ended_at).add_done_callback(done)
        return ended

    def _ending(
        self, reservation: Reservation, actual: Cost | None, ended_at: float | None = None
    ) -> "asyncio.Future[ScriptAnswer]":
        keys, limits = self._layout(reservation)
        once = reservation.once
        ago_ms = max(1, round((self._clock() - ended_at) * 1000)) if ended_at is not None else 0
        whole = self._whole(reservation, keys) if ago_ms and self._restorer is not None else 0
        arguments: list[Argument] = [reservation.id, LEASE_MS, 0 if actual is None else 1]
        arguments += [once.fingerprint if once is not None else "", ONCE_MS]
        arguments += reservation.cost.units
        arguments += (*(actual or NOTHING).units, whole, ago_ms)
        for key, limit in limits:
            arguments += (key, _text(limit))
        return self._scripts.call(self._finish, keys, arguments, urgent=False)

    def _tell(self, reservation: Reservation, answer: ScriptAnswer) -> None:
        told = answer[1:] if isinstance(answer, list) else []
        for at, used in zip(told[::2], told[1::2], strict=True):
            scope, limit = reservation.limits()[at - 1]
            self._events.alert(Alert.of(reservation, scope.name, limit, used))

    def _give_back(self, reservation: Reservation) -> None:
        """Sends a release that nobody waits for. It is sent after the reserve, and leaves a tombstone."""
        self._ending(reservation, None).add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _put_back(
        self, organisation: str, scope: str, found: Sequence[tuple[Limit, WindowUsage]]
    ) -> bool:
        """What is used of these limits, all of one scope. False: nothing was to be done, or not with these windows.

        Raises RedisDown.
        """
        tag = f"{self._prefix}:{{{organisation}}}"
        arguments: list[Argument] = [WHOLE_MS]
        for limit, meter in found:
            arguments += (_text(limit), meter.used, round(meter.mark * 1e6))
        return (
            await self._scripts.call(self._restore, [f"{tag}:whole", f"{tag}:used:{scope}"], arguments) == 1
        )

    def _whole(self, reservation: Reservation, keys: list[str]) -> int:
        """The number of one more key, that of what was put back; 0 where there is no long window."""
        if not any(is_long(limit) for scope in reservation.scopes for limit in scope.limits):
            return 0
        keys.append(f"{self._prefix}:{{{reservation.organisation}}}:whole")
        return len(keys)

    def _layout(self, reservation: Reservation) -> tuple[list[str], list[tuple[int, Limit]]]:
        """Keys, and for every limit the number of its key (from 1, as Lua counts)."""
        tag, once = f"{self._prefix}:{{{reservation.organisation}}}", reservation.once
        keys = [f"{tag}:once:{once.name}" if once is not None else f"{tag}:lease:{reservation.id}"]
        limits: list[tuple[int, Limit]] = []
        for scope in reservation.scopes:
            used = 0
            for limit in scope.limits:
                if limit.unit == CONCURRENCY:
                    keys.append(_running(tag, scope, limit))
                    limits.append((len(keys), limit))
                    continue
                if not used:
                    keys.append(f"{tag}:used:{scope.name}")
                    used = len(keys)
                limits.append((used, limit))
        return keys, limits

    def _learn_clock(self, server_ms: int) -> None:
        """How far the server's clock is ahead. An answer that lay unread makes it look less, so the most counts."""
        ahead = server_ms - self._clock() * 1000
        known = self._server_ahead_ms
        if known is None or ahead > known:
            self._server_ahead_ms = ahead
        else:
            self._server_ahead_ms = known + CLOCK_FORGETTING * (ahead - known)

    def _latest_ms(self) -> int:
        """The server's time at which this process stops waiting; 0 until its clock is known."""
        if self._server_ahead_ms is None:
            return 0
        return int(self._clock() * 1000 + self._server_ahead_ms + self._timeout_seconds * 1000) + 1


def _units(told: Sequence[int]) -> Units | None:
    """As reserve gives them for a repeat."""
    if not any(told):
        return None
    requests, uncached, cached, output, total, spend = told
    return requests, uncached, cached, output, total, spend


def _running(tag: str, scope: Scope, limit: Limit) -> str:
    name = "" if limit.name == CONCURRENCY else f":{limit.name}"
    return f"{tag}:running:{scope.name}{name}"


@lru_cache(maxsize=16384)
def _text(limit: Limit) -> str:
    """As lua/reserve.lua reads it. The name comes last: it may have anything in it."""
    unit = UNIT_INDEX[limit.unit] + 1 if limit.unit != CONCURRENCY else 0
    window, alert_at = limit.window, limit.amount * limit.alert_at if limit.alert_at is not None else 0
    length_us = int(window.seconds * 1e6)
    words = (unit, window.reset, window.period, length_us, limit.amount, limit.mode, alert_at, limit.name)
    return "\1".join(map(str, words))
