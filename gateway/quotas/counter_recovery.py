"""Recovery of what long windows had used before Redis lost it, counted again from the usage ledger.

    reserve --lost--> hours of the ledger --replayed--> usage --restore.lua--> reserve again
                          |                                        |
                          +-- cannot be read: decided without      +-- the first gateway does it; the larger counts

The ledger has what was settled, by hours: a window of the calendar is restored as it was, a smooth or rolling one
as if each hour's usage had come at once. Windows up to an hour begin again; so does everything where there is no
database. Not in the ledger yet are requests under way at the loss, and those that other gateways have recorded
within SHIP_SECONDS (gateway/ledger/shipper.py) before; this gateway ships its own first. So the account is counted
again RECOUNT_SECONDS after the loss, when those are in the ledger, and the larger count holds. A later count
misses only what other gateways have settled in the last SHIP_SECONDS before it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from gateway.quotas.limit import CONCURRENCY, Limit, Scope
from gateway.quotas.quota_store import UNIT_INDEX, Reservation, Units
from policies.admission.limit_windows import WindowUsage
from radix_cache.redis.call import RedisDown

log = logging.getLogger(__name__)

HOUR_SECONDS = 3600.0
LOOK_BACK_WINDOWS = 3
LOOK_BACK_SECONDS_MAX = 100 * 86_400.0
WAIT_SECONDS_MAX = 1.0
REST_SECONDS = 5.0
AT_ONCE_MAX = 4
RESTORING_MAX = 10_000
RECOUNT_SECONDS = (5.0, 60.0, 600.0)
"""When an account is counted again after a loss: soon for what was being shipped, later for long requests."""
RECOUNTS_MAX = 30_000
LOOK_SECONDS = 1.0
INLINE_HOURS_MAX = 250
"""The usage of so many hours is counted at once, in a few milliseconds; of more, in a thread."""


class PutBack(Protocol):
    """Puts back the usage of each limit of a scope of an organisation."""

    def __call__(
        self, organisation: str, scope: str, found: Sequence[tuple[Limit, WindowUsage]], /, *, again: bool
    ) -> Awaitable[bool]:
        """Return whether Redis had less; without `again`, nothing is put back a second time."""
        ...


class SpentUnknown(Exception):
    """The ledger cannot be read now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentHour:
    """What was settled in one hour with one model."""

    start: float
    """Unix time."""
    model: str
    units: Units


class SpentReader(Protocol):
    """Reads what accounts have used from the ledger."""

    async def hours(self, scope: str, since: float) -> Sequence[SpentHour]:
        """Return the hours of an account, by its name in Scope, since the hour of that Unix time, the oldest first.

        Raises SpentUnknown.
        """
        ...


@dataclass(frozen=True, slots=True, order=True)
class _Recount:
    """An account that is to be counted again."""

    due: float
    organisation: str = field(compare=False)
    scope: Scope = field(compare=False)
    put_back: PutBack = field(compare=False)


class CounterRecovery:
    """Puts back what accounts have used: each account once at a time, a few accounts together."""

    def __init__(
        self,
        ledger: SpentReader,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wall` returns the Unix time in seconds; `clock` returns seconds and never goes backwards."""
        self._ledger = ledger
        self._wall = wall
        self._clock = clock
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._recounts: list[_Recount] = []
        self._rest_until = float("-inf")
        self._failing = False

    @property
    def ready(self) -> bool:
        """Whether to try: not for a while after the ledger could not be read, so that no request waits for it."""
        return self._clock() >= self._rest_until

    async def restore(self, reservation: Reservation, put_back: PutBack) -> None:
        """Put back the long windows of a reservation's accounts, as many as can be read soon."""
        wanted = [scope for scope in reservation.scopes if any(map(is_long, scope.limits))]
        tasks = [self._task(reservation.organisation, scope, put_back) for scope in wanted]
        waited = [task for task in tasks if task is not None]
        if waited:
            await asyncio.wait(waited, timeout=WAIT_SECONDS_MAX)

    async def run(self) -> None:
        """Count accounts again after their loss, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.recount()

    async def recount(self) -> None:
        """Count again the accounts for which it is time."""
        while self._recounts and self._recounts[0].due <= self._clock():
            one = heappop(self._recounts)
            await self._counted_and_put_back(one.organisation, one.scope, one.put_back, again=True)

    def _task(self, organisation: str, scope: Scope, put_back: PutBack) -> "asyncio.Task[None] | None":
        key = (organisation, scope.name)
        task = self._running.get(key)
        if task is None and len(self._running) < RESTORING_MAX:
            task = asyncio.ensure_future(self._restored(organisation, scope, put_back))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return task

    async def _restored(self, organisation: str, scope: Scope, put_back: PutBack) -> None:
        # An account without earlier usage has lost none.
        if await self._counted_and_put_back(organisation, scope, put_back, again=False):
            now = self._clock()
            for seconds in RECOUNT_SECONDS:
                if len(self._recounts) < RECOUNTS_MAX:
                    heappush(self._recounts, _Recount(now + seconds, organisation, scope, put_back))

    async def _counted_and_put_back(
        self, organisation: str, scope: Scope, put_back: PutBack, *, again: bool
    ) -> bool:
        """Count an account in the ledger, put that back, and return whether the ledger has any usage."""
        limits = [limit for limit in scope.limits if is_long(limit)]
        try:
            async with self._turns:
                now = self._wall()
                hours = await self._ledger.hours(scope.name, now - max(map(_look_back, limits)))
                count = partial(_counted, limits, hours, now)
                found = count() if len(hours) <= INLINE_HOURS_MAX else await asyncio.to_thread(count)
                if await put_back(organisation, scope.name, found, again=again):
                    # Both look the same here: Redis has no record that the long windows of the account are whole.
                    log.warning(
                        "Redis had counted less of %s than the usage ledger, whose count holds now: "
                        "Redis has lost data, or the account had no window longer than an hour before",
                        scope.name,
                    )
                self._failing = False
        except (SpentUnknown, RedisDown) as err:
            self._rest_until = self._clock() + REST_SECONDS
            # Once: an outage is long, and requests come all the time.
            level = logging.DEBUG if self._failing else logging.WARNING
            log.log(level, "what %s has used before cannot be put back yet: %s", scope.name, err)
            self._failing = True
            return False
        return any(usage.used for _, usage in found)


def is_long(limit: Limit) -> bool:
    """Return whether the limit loses more than an hour's usage in a flush."""
    return limit.unit != CONCURRENCY and limit.window.seconds > HOUR_SECONDS


def spent(limit: Limit, hours: Iterable[SpentHour], now: float) -> WindowUsage:
    """Return what these hours, the oldest first, have used of a limit. Times are Unix times.

    A smooth window is charged at an hour's end, so that its usage is no less than it was; a rolling one begins with
    an hour.
    """
    window, usage, unit = limit.window, WindowUsage(), UNIT_INDEX[limit.unit]
    for hour in hours:
        if not limit.holds_for(hour.model) or not hour.units[unit]:
            continue
        at = min(now, hour.start + HOUR_SECONDS) if window.reset == "smooth" else hour.start
        usage = window.charge(window.current(usage, limit.amount, at, at), at, hour.units[unit])
    return window.current(usage, limit.amount, now, now)


def _counted(
    limits: Sequence[Limit], hours: Sequence[SpentHour], now: float
) -> list[tuple[Limit, WindowUsage]]:
    return [(limit, spent(limit, hours, now)) for limit in limits]


def _look_back(limit: Limit) -> float:
    """Return the seconds to look back: enough for a window of the calendar, and for others to have ended."""
    if limit.window.reset == "calendar":
        return limit.window.seconds + 86_400.0
    return min(LOOK_BACK_WINDOWS * limit.window.seconds, LOOK_BACK_SECONDS_MAX)
