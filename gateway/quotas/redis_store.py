"""QuotaStore in Redis: one script a decision, exact across gateways.

Keys of one organisation share a hash tag, so that all its scopes are decided in one place:

    rg:{acme}:lease:<reservation id>     held | ended
    rg:{acme}:full:<scope>               hash: limit name -> microsecond at which the bucket is full again
    rg:{acme}:running:<scope>            sorted set: reservation id -> millisecond at which its lease ends
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from gateway.quotas.quota import (
    CONCURRENCY,
    LEASE_SECONDS,
    Cost,
    Lease,
    QuotaUnavailable,
    Refusal,
    Reservation,
    Scope,
    Standing,
)
from gateway.within import within
from radix_cache.redis.call import Answer, RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller

LEASE_MS = int(LEASE_SECONDS * 1000)
GRANTED, ENDED = 1, -1
CLOCK_FORGETTING = 0.01

Argument = str | int | float


class RedisQuotaStore:
    """See QuotaStore. A decision that takes longer than `timeout_seconds` is QuotaUnavailable, and undone."""

    def __init__(
        self,
        scripts: ScriptCaller,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        prefix: str = "rg",
    ) -> None:
        self._scripts = scripts
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._prefix = prefix
        self._server_ahead_ms: float | None = None
        self._check = Script.of("#!lua\nredis.call('SET', KEYS[1], '1', 'PX', 1000)\nreturn 1")
        self._reserve = Script.read("gateway.quotas", "reserve")
        self._finish = Script.read("gateway.quotas", "finish")
        self._renew = Script.read("gateway.quotas", "renew")

    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        arguments: list[Argument] = [reservation.id, LEASE_MS, self._latest_ms()]
        for scope in reservation.scopes:
            arguments += [scope.concurrency or 0, len(scope.limits)]
            for limit in scope.limits:
                period_us = int(limit.bucket.period_seconds * 1e6)
                cost = reservation.cost.of(limit.unit)
                arguments += [limit.name, int(limit.bucket.amount), period_us, cost]
        called = self._scripts.call(self._reserve, self._keys(reservation), arguments)
        try:
            answer = await within(called, self._timeout_seconds)
        except RedisDown as err:
            raise QuotaUnavailable(str(err)) from err
        except BaseException as err:
            # Nobody will use what this call may yet be granted, so it is given back by name.
            self._give_back(reservation)
            if isinstance(err, TimeoutError):
                raise QuotaUnavailable("no decision in time") from err
            raise
        return self._decision(reservation, answer)

    def settle(self, lease: Lease, actual: Cost) -> "asyncio.Future[None]":
        return self._end(lease.reservation, actual)

    def release(self, lease: Lease) -> "asyncio.Future[None]":
        return self._end(lease.reservation, None)

    async def check(self) -> bool:
        """Raises RedisDown unless a decision could be written down now. Would it have come in time?"""
        called = self._scripts.call(self._check, [f"{self._prefix}:{{check}}"], [])
        try:
            await within(called, self._timeout_seconds)
        except TimeoutError:
            await called
            return False
        return True

    async def renew(self, leases: Sequence[Lease]) -> None:
        calls = [
            self._scripts.call(self._renew, self._keys(lease.reservation), [lease.reservation.id, LEASE_MS])
            for lease in leases
        ]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, RedisDown):
                raise QuotaUnavailable(str(result)) from result

    def _decision(self, reservation: Reservation, answer: Answer) -> Lease | Refusal:
        if not isinstance(answer, list):
            raise QuotaUnavailable("Redis gave an answer of another shape")
        outcome, server_ms, scope_at, limit_at, retry_us, *pairs = answer
        self._learn_clock(server_ms)
        if outcome == ENDED:
            raise QuotaUnavailable(f"reservation {reservation.id} came too late or has ended")
        standings = _standings(reservation.scopes, pairs)
        if outcome == GRANTED:
            return Lease(reservation=reservation, standings=standings)
        scope = reservation.scopes[scope_at - 1]
        limit = scope.limits[limit_at - 1] if limit_at else None
        return Refusal(
            scope=scope.name,
            unit=limit.unit if limit else CONCURRENCY,
            amount=int(limit.bucket.amount) if limit else scope.concurrency or 0,
            retry_after_seconds=retry_us / 1e6 if retry_us >= 0 else None,
            standings=standings,
        )

    def _end(self, reservation: Reservation, actual: Cost | None) -> "asyncio.Future[None]":
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(answer: "asyncio.Future[Answer]") -> None:
            failure = None if answer.cancelled() else answer.exception()
            if ended.done():
                return
            if failure is None:
                ended.set_result(None)
            else:
                ended.set_exception(QuotaUnavailable(str(failure)))
                ended.exception()  # Whoever does not wait for it does not ask either.

        self._ending(reservation, actual).add_done_callback(done)
        return ended

    def _ending(self, reservation: Reservation, actual: Cost | None) -> "asyncio.Future[Answer]":
        arguments: list[Argument] = [reservation.id, LEASE_MS, 0 if actual is None else 1]
        for scope in reservation.scopes:
            arguments.append(len(scope.limits))
            for limit in scope.limits:
                used = actual.of(limit.unit) if actual is not None else 0
                period_us = int(limit.bucket.period_seconds * 1e6)
                change = used - reservation.cost.of(limit.unit)
                arguments += [limit.name, int(limit.bucket.amount), period_us, change]
        return self._scripts.call(self._finish, self._keys(reservation), arguments)

    def _give_back(self, reservation: Reservation) -> None:
        """Sends a release that nobody waits for. It is sent after the reserve, and leaves a tombstone."""
        self._ending(reservation, None).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _keys(self, reservation: Reservation) -> list[str]:
        tag = f"{self._prefix}:{{{reservation.organisation}}}"
        keys = [f"{tag}:lease:{reservation.id}"]
        for scope in reservation.scopes:
            keys += [f"{tag}:full:{scope.name}", f"{tag}:running:{scope.name}"]
        return keys

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


def _standings(scopes: Sequence[Scope], pairs: Sequence[int]) -> tuple[Standing, ...]:
    """From (remaining, reset in us) of every limit of every scope, in order."""
    limits = [limit for scope in scopes for limit in scope.limits]
    return tuple(
        Standing(
            unit=limit.unit,
            amount=int(limit.bucket.amount),
            remaining=pairs[2 * at],
            reset_seconds=pairs[2 * at + 1] / 1e6,
        )
        for at, limit in enumerate(limits)
    )
