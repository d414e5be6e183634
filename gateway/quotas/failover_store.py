"""QuotaStore that survives the loss of its Redis: the shared store, and a local one for as long as that is away.

    shared --3 failures in a row, or 1 failed ping--> local --pings answered in time--> shared
       |                                                |
       |                                                +-- each gateway grants its share of the limits: as many
       |                                                    parts as gateways were last counted; a reservation
       |                                                    that is `closed` is refused
       +-- one failure: that one request is decided locally, or refused, and pings begin

store_availability.py counts failures and pings, gateway_share.py has the shares. Pings are sent often while the
shared store is away or something is left over from a failure, and else every few seconds, so that an outage shows
also where no tenant has limits. Ends of leases that could not be sent are sent again meanwhile, also to a Redis
that answers late.

A decision whose answer never came may have been made all the same: the shared store is sent its undoing.

The local store continues from the shared one's last answers, so that an account that had nothing left there has
nothing here. What was used on local grants is charged to the shared store as soon as that is possible, and
what could not be settled meanwhile is settled then; both are kept up to a bound, and repeating them changes
nothing.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TypeVar

import msgspec

from gateway.quotas.events import LimitEvents
from gateway.quotas.gateway_share import refusal_of_whole, share_of, status_share
from gateway.quotas.leases import CLOSE_SECONDS_MAX
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import (
    COMPLETED,
    NO_COST,
    Cost,
    GrantedAhead,
    Lease,
    LimitStatus,
    QuotaStore,
    QuotaStoreUnavailable,
    Refusal,
    Reservation,
)
from gateway.quotas.store_availability import StoreAvailability
from radix_cache.redis.call import RedisDown

log = logging.getLogger(__name__)

PING_SECONDS = 0.25
IDLE_PING_SECONDS = 5.0
"""The interval of pings while Redis answers all calls."""
UNSETTLED_MAX = 10_000
SETTLED_AT_ONCE_MAX = 256
SEEN_MAX = 10_000

LeftOver = TypeVar("LeftOver")

_scope_name = attrgetter("name")


class FailoverQuotaStore:
    """A QuotaStore that uses a shared store, and a local one while that is away.

    QuotaStoreUnavailable is raised only for reservations that are `closed`.
    """

    def __init__(
        self,
        shared: QuotaStore,
        local: LocalQuotaStore,
        ping: Callable[[], Awaitable[bool]],
        clock: Callable[[], float],
        gateways: Callable[[], int] = lambda: 1,
        events: LimitEvents | None = None,
    ) -> None:
        """`ping` returns whether the shared store answered in time, and raises RedisDown while it is away.

        `clock` is the local store's. `gateways` returns how many gateways share the limits.
        """
        self.events = events or LimitEvents()
        self._shared = shared
        self._local = local
        self._ping = ping
        self._clock = clock
        self._gateways = gateways
        self._seen: OrderedDict[tuple[str, ...], tuple[float, tuple[LimitStatus, ...]]] = OrderedDict()
        """By account, what was left by the shared store's last answer, and when it came."""
        self.availability = StoreAvailability(clock)
        """Whether the shared store can be reached."""
        self._parts = 1
        """Of how many parts of the limits the local store has one."""
        self._granted_locally: dict[str, Reservation] = {}
        self._unsettled: deque[tuple[Lease, Cost | None]] = deque(maxlen=UNSETTLED_MAX)
        """Leases to be ended in the shared store, with their actual costs; None: to be released."""
        self._unanswered: deque[Lease] = deque(maxlen=UNSETTLED_MAX)
        """Decisions of the shared store whose answer never came."""
        self.local_decisions = 0

    @property
    def away(self) -> bool:
        """Whether the shared store is away."""
        return self.availability.away

    async def reserve(self, reservation: Reservation, *, urgent: bool = True) -> Lease | Refusal:
        """See QuotaStore."""
        if not self.availability.away:
            asked_at = self._clock()
            try:
                decision = await self._shared.reserve(reservation, urgent=urgent)
            except QuotaStoreUnavailable as err:
                self.availability.count_failure(err, asked_at)
                self._unanswered.append(Lease(reservation=reservation))
            else:
                self.availability.failures = 0
                self._remember(reservation, decision.limit_statuses)
                return decision
        return await self._reserve_locally(reservation)

    async def _reserve_locally(self, reservation: Reservation) -> Lease | Refusal:
        if reservation.closed:
            raise QuotaStoreUnavailable("Redis is away")
        self.local_decisions += 1
        parts = max(1, self._gateways())
        if parts != self._parts:
            self._local.rescale(self._parts / parts)
            self._parts = parts
        share = share_of(reservation, parts)
        seen = self._seen.pop(_account(reservation), None)
        if seen is not None:
            at, statuses = seen
            self._local.adopt(share, at, [status_share(status, parts) for status in statuses])
        decision = await self._local.reserve(share)
        if isinstance(decision, Refusal):
            return refusal_of_whole(decision, reservation, parts)
        self._granted_locally[reservation.id] = share
        return msgspec.structs.replace(decision, reservation=reservation)

    def settle(self, lease: Lease, actual: Cost) -> Awaitable[None]:
        """See QuotaStore."""
        if self.availability.away or lease.reservation.id in self._granted_locally:
            return self._end_while_away(lease, actual)
        return self._end_shared(lease, actual)

    def release(self, lease: Lease) -> Awaitable[None]:
        """See QuotaStore."""
        if self.availability.away or lease.reservation.id in self._granted_locally:
            return self._end_while_away(lease, None)
        return self._end_shared(lease, None)

    def settle_and_reserve(
        self, ended: Sequence[tuple[Lease, Cost]], ahead: Sequence[Reservation]
    ) -> Awaitable[GrantedAhead]:
        """See QuotaStore; nothing is reserved ahead while the shared store is away."""
        if self.availability.away or self._granted_locally:
            for lease, actual in ended:
                self.settle(lease, actual)
            return _nothing_granted()
        answer = self._shared.settle_and_reserve(ended, ahead)
        return self._kept_if_it_failed(answer, ended, ahead, self._clock())

    async def _kept_if_it_failed(
        self,
        answer: Awaitable[GrantedAhead],
        ended: Sequence[tuple[Lease, Cost]],
        ahead: Sequence[Reservation],
        asked_at: float,
    ) -> GrantedAhead:
        """Return the shared store's answer; if there is none, keep the ends for later and undo the rest then."""
        try:
            granted = await answer
        except QuotaStoreUnavailable as err:
            for lease, actual in ended:
                self._keep(lease, actual)
            self._unanswered.extend(Lease(reservation=reservation) for reservation in ahead)
            self.availability.count_failure(err, asked_at)
            return GrantedAhead()
        self.availability.failures = 0
        if not granted.refused:  # A refusal because counters were lost does not have what is left.
            self._remember(ended[0][0].reservation, granted.limit_statuses)
        return granted

    async def renew(self, leases: Sequence[Lease]) -> None:
        """See QuotaStore."""
        here = [self._granted_locally.get(lease.reservation.id) for lease in leases]
        await self._local.renew([Lease(reservation=share) for share in here if share is not None])
        shared = [lease for lease in leases if lease.reservation.id not in self._granted_locally]
        if shared and not self.availability.away:
            asked_at = self._clock()
            try:
                await self._shared.renew(shared)
            except QuotaStoreUnavailable as err:
                self.availability.count_failure(err, asked_at)

    async def run(self) -> None:
        """Ping Redis, often while it is away, and settle what was left over once it is back."""
        try:
            await self._ping()
        except RedisDown as err:
            self.availability.go_away(err)
        pinged_at = self._clock()
        while True:
            await asyncio.sleep(PING_SECONDS)
            # Also once the shared store is back: requests come to this one only while it is away.
            self._local.sweep()
            idle = not self.availability.away and not self._unsettled and not self._unanswered
            if idle and self._clock() - pinged_at < IDLE_PING_SECONDS:
                continue
            pinged_at = self._clock()
            try:
                in_time = await self._ping()
            except RedisDown as err:
                self.availability.ping_failed(err)  # So that no request waits for Redis to find that out.
                continue
            self.availability.ping_answered(in_time=in_time)
            await self._settle_left_over()

    async def close(self) -> None:
        """Send the shared store what is left over, once `run` has ended. Waits for a bounded time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._settle_left_over()

    async def _settle_left_over(self) -> None:
        """Send the shared store what could not be sent while Redis was away."""
        for _ in range(0, len(self._unanswered), SETTLED_AT_ONCE_MAX):
            unanswered = _taken_from(self._unanswered)
            releases = [self._shared.release(lease) for lease in unanswered]
            results = await asyncio.gather(*releases, return_exceptions=True)
            self._unanswered.extend(
                lease
                for lease, result in zip(unanswered, results, strict=True)
                if isinstance(result, QuotaStoreUnavailable)
            )
        for _ in range(0, len(self._unsettled), SETTLED_AT_ONCE_MAX):
            unsettled = _taken_from(self._unsettled)
            await asyncio.gather(*(self._end_shared(*each) for each in unsettled))

    def _end_while_away(self, lease: Lease, actual: Cost | None) -> Awaitable[None]:
        """End a lease that was granted locally, or whose end cannot be sent to the shared store now.

        What was used under a local lease is charged in the shared store too: now, or once Redis is back.
        """
        share = self._granted_locally.pop(lease.reservation.id, None)
        if share is not None:
            if actual is None:
                return self._local.release(Lease(reservation=share))
            self._local.settle(Lease(reservation=share), actual)
            # The shared store does not have the reservation, and was perhaps sent the undoing of one of this name.
            forgotten = msgspec.structs.replace(
                lease.reservation,
                id=f"{lease.reservation.id}/local",
                record="",
                number=0,
                cost=NO_COST,
                idempotency_key=None,
            )
            lease = Lease(reservation=forgotten)
        if self.availability.away:
            self._keep(lease, actual)
            return COMPLETED
        return self._end_shared(lease, actual)

    def _end_shared(self, lease: Lease, actual: Cost | None) -> Awaitable[None]:
        """End a lease in the shared store; an end that fails is kept for later."""
        asked_at = self._clock()
        ending = self._shared.release(lease) if actual is None else self._shared.settle(lease, actual)
        if not isinstance(ending, asyncio.Future):
            return ending
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def keep_if_it_failed(done: "asyncio.Future[None]") -> None:
            if not done.cancelled() and isinstance(done.exception(), QuotaStoreUnavailable):
                self._keep(lease, actual)
                self.availability.count_failure(done.exception(), asked_at)
            if not settled.done():
                settled.set_result(None)

        ending.add_done_callback(keep_if_it_failed)
        return settled

    def _keep(self, lease: Lease, actual: Cost | None) -> None:
        """Keep the end of a lease until the shared store is back. The usage ledger has what was used by then."""
        if lease.ended_at is None:
            lease = msgspec.structs.replace(lease, ended_at=self._clock())
        self._unsettled.append((lease, actual))

    def _remember(self, reservation: Reservation, statuses: tuple[LimitStatus, ...]) -> None:
        # The same as _account returns, for every request.
        account = (reservation.organisation, reservation.model, *map(_scope_name, reservation.scopes))
        self._seen[account] = self._clock(), statuses
        self._seen.move_to_end(account)
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)


def _taken_from(left_over: deque[LeftOver]) -> list[LeftOver]:
    """Remove the oldest ones, as many as are sent together, and return them."""
    return [left_over.popleft() for _ in range(min(len(left_over), SETTLED_AT_ONCE_MAX))]


async def _nothing_granted() -> GrantedAhead:
    return GrantedAhead()


def _account(reservation: Reservation) -> tuple[str, ...]:
    """Return what reservations have in common that the same limits hold for; that depends on the model, too."""
    return (reservation.organisation, reservation.model, *map(_scope_name, reservation.scopes))
