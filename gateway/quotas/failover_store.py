"""QuotaStore that outlives its Redis: the shared store, and a local one for as long as that is away.

    shared --3 failures in a row--> local --pings answered in time--> shared
       |                              |
       |                              +-- each gateway grants its share of the limits: as many parts as gateways
       |                                  were last seen; who is `closed` is refused
       +-- one failure: that one request is decided locally, or refused

One answered ping brings the shared store back. If it is away again soon after, it takes twice as many in a row, and
so on: a Redis that is now a little faster than `timeout_ms` and now a little slower is not changed to and fro all
the time. One that answers, but late, is told what was left over all the same.

A decision that was never heard of may have been made all the same: the shared store is told to undo it.

The local store goes on from where the shared one was last seen, so that who had nothing left there has nothing
here. What was used on local grants is charged to the shared store as soon as that is possible, and what could not
be settled meanwhile is settled then; both are kept up to a bound, and repeating them changes nothing.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import msgspec

from gateway.quotas.events import Events
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota import (
    DONE,
    UNIT_INDEX,
    Cost,
    Lease,
    QuotaStore,
    QuotaUnavailable,
    Refusal,
    Reservation,
    Standing,
)
from radix_cache.redis.call import RedisDown

log = logging.getLogger(__name__)

FAILURES_MAX = 3
PING_SECONDS = 0.25
PINGS_MAX = 32
STEADY_SECONDS = 10.0
"""Who was back for so long is trusted again at the first ping."""

UNSETTLED_MAX = 10_000
SETTLED_AT_ONCE_MAX = 256
SEEN_MAX = 10_000
AGAIN_SECONDS = 1.0
NOTHING = Cost(prompt_tokens=0, requests=0)


class GuardedQuotaStore:
    """See QuotaStore; QuotaUnavailable is for those who are `closed`.

    `ping` raises RedisDown while it is away, and says whether a request would have waited that long for an answer.
    `clock`: the local store's. `gateways`: how many share the limits.
    """

    def __init__(
        self,
        shared: QuotaStore,
        local: LocalQuotaStore,
        ping: Callable[[], Awaitable[bool]],
        clock: Callable[[], float],
        gateways: Callable[[], int] = lambda: 1,
        events: Events | None = None,
    ) -> None:
        self.events = events or Events()
        self._shared = shared
        self._local = local
        self._ping = ping
        self._clock = clock
        self._gateways = gateways
        self._seen: OrderedDict[tuple[str, ...], tuple[float, tuple[Standing, ...]]] = OrderedDict()
        self._failures = 0
        self._pings, self._pings_wanted = 0, 1
        self._back_at = float("-inf")
        self._granted_locally: dict[str, Reservation] = {}
        self._unsettled: deque[tuple[Lease, Cost | None]] = deque(maxlen=UNSETTLED_MAX)
        self._unheard: deque[Lease] = deque(maxlen=UNSETTLED_MAX)
        self.away = False
        self.local_decisions = 0

    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        if not self.away:
            try:
                decision = await self._shared.reserve(reservation)
            except QuotaUnavailable as err:
                self._failed(err)
                self._unheard.append(Lease(reservation=reservation))
            else:
                self._failures = 0
                self._see(reservation, decision.standings)
                return decision
        if reservation.closed:
            raise QuotaUnavailable("Redis is away")
        self.local_decisions += 1
        parts = max(1, self._gateways())
        share = _share(reservation, parts)
        seen = self._seen.pop(_account(reservation), None)
        if seen is not None:
            at, standings = seen
            self._local.adopt(share, at, [_share_of(standing, parts) for standing in standings])
        decision = await self._local.reserve(share)
        if isinstance(decision, Refusal):
            return _refused(decision, reservation, parts)
        self._granted_locally[reservation.id] = share
        return msgspec.structs.replace(decision, reservation=reservation)

    def settle(self, lease: Lease, actual: Cost) -> Awaitable[None]:
        return self._end(lease, actual)

    def release(self, lease: Lease) -> Awaitable[None]:
        return self._end(lease, None)

    async def renew(self, leases: Sequence[Lease]) -> None:
        here = [self._granted_locally.get(lease.reservation.id) for lease in leases]
        await self._local.renew([Lease(reservation=share) for share in here if share is not None])
        shared = [lease for lease in leases if lease.reservation.id not in self._granted_locally]
        if shared and not self.away:
            try:
                await self._shared.renew(shared)
            except QuotaUnavailable as err:
                self._failed(err)

    async def run(self) -> None:
        """While Redis is away, asks for it; and settles what was left over once it is back."""
        try:
            await self._ping()
        except RedisDown as err:
            self._go_away(err)
        while True:
            await asyncio.sleep(PING_SECONDS)
            if not self.away and not self._unsettled and not self._unheard:
                continue
            try:
                in_time = await self._ping()
            except RedisDown:
                self._pings = 0
                continue
            self._pings = self._pings + 1 if in_time else 0
            if self.away and self._pings >= self._pings_wanted:
                self._come_back()
            await self._settle_left_over()

    async def _settle_left_over(self) -> None:
        for _ in range(len(self._unheard)):
            lease = self._unheard.popleft()
            try:
                await self._shared.release(lease)
            except QuotaUnavailable:
                self._unheard.append(lease)
        for _ in range(0, len(self._unsettled), SETTLED_AT_ONCE_MAX):
            some = [self._unsettled.popleft() for _ in range(min(len(self._unsettled), SETTLED_AT_ONCE_MAX))]
            await asyncio.gather(*(self._end_shared(*each) for each in some))

    def _end(self, lease: Lease, actual: Cost | None) -> Awaitable[None]:
        share = self._granted_locally.pop(lease.reservation.id, None)
        if share is not None:
            if actual is None:
                return self._local.release(Lease(reservation=share))
            self._local.settle(Lease(reservation=share), actual)
            # The shared store has not heard of it, and has perhaps been told to forget its name.
            forgotten = msgspec.structs.replace(
                lease.reservation, id=f"{lease.reservation.id}/local", cost=NOTHING, once=None
            )
            lease = Lease(reservation=forgotten)
        if self.away:
            self._keep(lease, actual)
            return DONE
        return self._end_shared(lease, actual)

    def _end_shared(self, lease: Lease, actual: Cost | None) -> Awaitable[None]:
        """Kept for later if it fails."""
        ending = _ended(self._shared, lease, actual)
        if not isinstance(ending, asyncio.Future):
            return ending
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def keep_if_it_failed(done: "asyncio.Future[None]") -> None:
            if not done.cancelled() and isinstance(done.exception(), QuotaUnavailable):
                self._keep(lease, actual)
                self._failed(done.exception())
            if not settled.done():
                settled.set_result(None)

        ending.add_done_callback(keep_if_it_failed)
        return settled

    def _keep(self, lease: Lease, actual: Cost | None) -> None:
        """For later. What it used is in the ledger long before the shared store hears of it."""
        if lease.ended_at is None:
            lease = msgspec.structs.replace(lease, ended_at=self._clock())
        self._unsettled.append((lease, actual))

    def _failed(self, err: BaseException | None) -> None:
        self._failures += 1
        if not self.away and self._failures >= FAILURES_MAX:
            self._go_away(err)

    def _come_back(self) -> None:
        self.away, self._failures, self._back_at = False, 0, self._clock()
        log.warning("Redis is back: quotas are shared again")

    def _go_away(self, err: BaseException | None) -> None:
        steady = self._clock() - self._back_at > STEADY_SECONDS
        self._pings, self._pings_wanted = 0, 1 if steady else min(2 * self._pings_wanted, PINGS_MAX)
        self.away = True
        log.warning("Redis is away: quotas are decided by each gateway alone (%s)", err)

    def _see(self, reservation: Reservation, standings: tuple[Standing, ...]) -> None:
        account = _account(reservation)
        self._seen[account] = self._clock(), standings
        self._seen.move_to_end(account)
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)


def _account(reservation: Reservation) -> tuple[str, ...]:
    # Which limits hold depends on the model.
    return (reservation.organisation, reservation.model, *(scope.name for scope in reservation.scopes))


def _share(reservation: Reservation, parts: int) -> Reservation:
    """The same within one gateway's part of every limit."""
    if parts == 1:
        return reservation
    scopes = tuple(
        replace(
            scope,
            limits=tuple(replace(limit, amount=max(1, limit.amount // parts)) for limit in scope.limits),
        )
        for scope in reservation.scopes
    )
    return msgspec.structs.replace(reservation, scopes=scopes)


def _share_of(standing: Standing, parts: int) -> Standing:
    return msgspec.structs.replace(standing, remaining=standing.remaining // parts)


def _refused(refusal: Refusal, reservation: Reservation, parts: int) -> Refusal:
    """What is more than this gateway's part may well fit when all of it is there again."""
    if refusal.retry_after_seconds is None and parts > 1:
        whole = {(scope.name, limit.name): limit for scope, limit in reservation.limits()}
        limit = whole[refusal.scope, refusal.limit.name]
        if reservation.cost.units[UNIT_INDEX[limit.unit]] <= limit.amount:
            return replace(refusal, retry_after_seconds=AGAIN_SECONDS)
    return refusal


def _ended(store: QuotaStore, lease: Lease, actual: Cost | None) -> Awaitable[None]:
    return store.release(lease) if actual is None else store.settle(lease, actual)
