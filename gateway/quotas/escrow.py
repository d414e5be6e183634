"""Escrow: quota is reserved before the request that will use it comes, so that requests need not wait for Redis.

    a request ends      --> a lease like its own is reserved: ahead
    the next one comes  --> takes the lease, if that is large enough; it is settled to what was used, as every lease
    none comes          --> the lease is given back after IDLE_SECONDS

The store decides on each of them, so nothing is granted twice. Accounts have leases ahead while they are busy and
far from all of their limits: near a limit, what is held here would be missed elsewhere, and is given back. A
request that is refused all the same is decided once more without the leases that are ahead here of the same
scope.

None of this is urgent: leases of one account that end within a few milliseconds are settled by one call, which also
reserves what is to be ahead then.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from secrets import token_hex
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import msgspec

from gateway.concurrency.bounded_wait import bounded_wait
from gateway.quotas.escrow_account import EscrowAccount, LeaseAhead
from gateway.quotas.escrow_accounts import EscrowAccounts
from gateway.quotas.escrow_policy import (
    aged,
    covers,
    leases_affordable,
    rounded_up,
    seconds_ahead_max,
)
from gateway.quotas.leases import CLOSE_SECONDS_MAX
from gateway.quotas.quota_store import (
    Cost,
    GrantedAhead,
    Lease,
    LimitStatus,
    QuotaStore,
    QuotaStoreUnavailable,
    Refusal,
    Reservation,
)

TOGETHER_SECONDS = 0.005
"""For so long leases that have ended wait for others, to be settled by one call."""
TOGETHER_SECONDS_FAR = 0.02
"""The same far from all limits, where what they give back is not missed meanwhile: less than AHEAD_SECONDS."""
TOGETHER_MAX = 64
"""Leases that are settled by one call, and as many are reserved: the store does nothing else meanwhile."""
IDLE_SECONDS = 1.0
SWEEP_SECONDS = 0.25

Result = TypeVar("Result")

_ALWAYS_THERE = SimpleNamespace(away=False)


class Availability(Protocol):
    """The part that has whether the store can be reached."""

    away: bool
    """Whether the store is away: nothing is reserved ahead then."""


class Escrow:
    """A QuotaStore that reserves ahead in another one, and promises what that promises."""

    def __init__(
        self,
        store: QuotaStore,
        availability: Availability | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        enabled: bool = True,
        flush: Callable[[], None] = lambda: None,
        timeout_seconds: float = 1.0,
    ) -> None:
        """`availability` has whether the store is away; None: it never is. `enabled`: whether to reserve ahead.

        `flush` makes the store decide at once on all calls made. `timeout_seconds`: how long a request waits for a
        lease ahead that is not decided, before the store decides on the request itself.
        """
        self.taken = 0
        """How many requests found their lease ahead."""
        self._store = store
        self._availability = availability or _ALWAYS_THERE
        self._enabled = enabled
        self._clock = clock
        self._flush = flush
        self._timeout_seconds = timeout_seconds
        self._closed = False
        self._accounts = EscrowAccounts(self._give_back_all)
        self._name, self._numbers = token_hex(8), count()
        self._due: list[EscrowAccount] = []
        """Accounts with leases that have ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Future[Any]] = set()

    async def reserve(self, reservation: Reservation, *, urgent: bool = True) -> Lease | Refusal:
        """See QuotaStore."""
        if self._availability.away or not self._enabled:
            return await self._store.reserve(reservation, urgent=urgent)
        account = None
        if reservation.idempotency_key is None:
            account, now = self._accounts.of(reservation), self._clock()
            account.count(reservation, now)
            ahead = self._take(account, reservation.cost) if account.ahead else None
            if ahead is not None:
                lease = ahead.lease() if ahead.decided.done() else await self._wait_for(ahead)
                if lease is not None and (lease := self._usable(account, ahead, lease)) is not None:
                    self.taken += 1
                    return lease
        decision = await self._ask_store(account, reservation, urgent)
        if isinstance(decision, Refusal) and self._make_room(reservation, decision):
            decision = await self._ask_store(account, reservation, urgent)
        return decision

    async def _ask_store(
        self, account: EscrowAccount | None, reservation: Reservation, urgent: bool
    ) -> Lease | Refusal:
        """Let the store decide on the request itself, after all leases that have ended are settled."""
        self._settle_due()
        now = self._clock()
        decision = await self._store.reserve(reservation, urgent=urgent)
        if account is not None:
            affordable = 0
            if isinstance(decision, Lease) and not decision.shadow_refusals:
                affordable = leases_affordable(decision.limit_statuses, rounded_up(reservation.cost))
            self._learn(account, decision.limit_statuses, affordable, now)
        return decision

    def settle(self, lease: Lease, actual: Cost) -> Awaitable[None]:
        """See QuotaStore. It is settled together with others of its account that end soon after."""
        ended = lease.reservation
        apart = ended.idempotency_key is not None or self._closed or not self._enabled
        account = None if apart else self._accounts.known(ended)
        if account is None:
            return self._store.settle(lease, actual)
        account.ended.append((lease, actual))
        settled = account.settled
        if settled is None:
            loop = asyncio.get_running_loop()
            settled = account.settled = loop.create_future()
            self._due.append(account)
            due_at = loop.time() + (TOGETHER_SECONDS_FAR if account.affordable else TOGETHER_SECONDS)
            if self._timer is None or due_at < self._timer.when():
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = loop.call_at(due_at, self.flush)
        elif len(account.ended) >= TOGETHER_MAX:
            self.flush()
        return settled

    def settle_and_reserve(
        self, ended: Sequence[tuple[Lease, Cost]], ahead: Sequence[Reservation]
    ) -> Awaitable[GrantedAhead]:
        """See QuotaStore."""
        return self._store.settle_and_reserve(ended, ahead)

    def flush(self) -> None:
        """Make the store settle at once what has ended, and decide on all other calls made."""
        self._settle_due()
        self._flush()

    def flush_if_short(self) -> None:
        """Do what `flush` does, unless leases are ahead of the next requests of all accounts that have ended some.

        Then what has ended waits for others: one caller after the other costs no call of the store each.
        """
        if not self._due or not all(account.ahead for account in self._due):
            self.flush()

    def release(self, lease: Lease) -> Awaitable[None]:
        """See QuotaStore."""
        return self._store.release(lease)

    async def renew(self, leases: Sequence[Lease]) -> None:
        """See QuotaStore."""
        await self._store.renew(leases)

    async def run(self) -> None:
        """Give back leases that no request came for, every while, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            oldest = self._clock() - IDLE_SECONDS
            for account in list(self._accounts):
                while account.ahead and account.ahead[0].asked_at < oldest:
                    self._give_back(account.ahead.popleft())
                if not account.ahead and account.asked_at < oldest:
                    self._accounts.drop(account)

    async def close(self) -> None:
        """Give everything back, wait for that for a bounded time, and reserve nothing more ahead."""
        self._closed = True
        for account in self._accounts:
            self._give_back_all(account)
        self.flush()
        until = time.monotonic() + CLOSE_SECONDS_MAX
        while self._tasks and (seconds := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _learn(
        self, account: EscrowAccount, statuses: tuple[LimitStatus, ...], affordable: int, asked_at: float
    ) -> None:
        """Take over what is left of the limits by the store's answer, and how many leases may be ahead by that."""
        account.limit_statuses, account.seen_at, account.affordable = statuses, asked_at, affordable
        while len(account.ahead) > account.affordable:
            self._give_back(account.ahead.popleft())

    def _make_room(self, reservation: Reservation, refusal: Refusal) -> bool:
        """Give back leases ahead of the scope that refused a request, and return whether there were any."""
        if refusal.retry_after_seconds is None:
            return False  # There will never be enough.
        made = False
        for account in self._accounts.of_organisation(reservation.organisation):
            if account.ahead and any(scope.name == refusal.scope for scope in account.last.scopes):
                self._give_back_all(account)
                made = True
        return made

    def _take(self, account: EscrowAccount, cost: Cost) -> LeaseAhead | None:
        """Remove and return the oldest lease ahead that is large enough."""
        for ahead in account.ahead:
            if covers(ahead.reservation.cost, cost):
                account.ahead.remove(ahead)
                return ahead
        # Requests have become longer, and the next leases ahead will be.
        self._give_back(account.ahead.popleft())
        return None

    async def _wait_for(self, ahead: LeaseAhead) -> Lease | None:
        """Return a lease ahead that was not decided when its request came; None if there is none in time."""
        self._flush()
        try:
            await bounded_wait(ahead.decided, self._timeout_seconds)
            return ahead.lease()
        except TimeoutError:
            self._give_back(ahead)
            return None
        except asyncio.CancelledError:
            self._give_back(ahead)
            raise

    def _usable(self, account: EscrowAccount, ahead: LeaseAhead, lease: Lease) -> Lease | None:
        """Return the lease as it is now; None if its windows have ended, and it was given back."""
        now = self._clock()
        age = now - ahead.asked_at
        if age > IDLE_SECONDS or age >= ahead.decided.result().seconds_ahead_max:
            self._give_back(ahead)
            return None
        # What is left is reported as of the last decision, which may be on another lease ahead.
        return Lease(
            reservation=lease.reservation,
            limit_statuses=aged(account.limit_statuses, now - account.seen_at),
        )

    def _settle_due(self) -> None:
        """Make the store settle what has ended, and reserve ahead of requests that may come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due, self._due = self._due, []
        for account in due:
            ended, account.ended = account.ended, []
            settled, account.settled = account.settled, None
            assert settled is not None, "an account is due once a lease of it has ended"
            now = self._clock()
            ahead = [] if self._availability.away else self._missing(account, now)
            answer = self._store.settle_and_reserve(ended, ahead)
            decided = self._begin(self._decided(account, answer, ahead, settled, now))
            account.ahead.extend(LeaseAhead(each, decided, number, now) for number, each in enumerate(ahead))

    def _missing(self, account: EscrowAccount, now: float) -> list[Reservation]:
        """Return reservations like the last request's, as many as are missing ahead."""
        missing = 0 if self._closed else account.leases_wanted(now) - len(account.ahead)
        if missing <= 0:
            return []
        cost, record = rounded_up(account.last.cost), f"ahead-{self._name}-{next(self._numbers)}"
        return [
            msgspec.structs.replace(
                account.last, id=f"{record}:{number}", record=record, number=number, cost=cost
            )
            for number in range(1, min(missing, TOGETHER_MAX) + 1)
        ]

    async def _decided(
        self,
        account: EscrowAccount,
        answer: Awaitable[GrantedAhead],
        ahead: Sequence[Reservation],
        settled: "asyncio.Future[None]",
        asked_at: float,
    ) -> GrantedAhead:
        """Return the store's decision on leases ahead, and learn from it."""
        try:
            granted = await answer
        except QuotaStoreUnavailable as err:
            account.affordable = 0
            if not settled.done():
                settled.set_exception(err)
                settled.exception()  # Fetched here, because a caller that does not wait never fetches it.
            return GrantedAhead()
        if not settled.done():
            settled.set_result(None)
        account.decided_in(self._clock() - asked_at)
        if granted.count:
            seconds = seconds_ahead_max(granted.limit_statuses)
            granted = msgspec.structs.replace(granted, seconds_ahead_max=seconds)
        if ahead and (granted.limit_statuses or granted.refused):
            statuses = granted.limit_statuses
            affordable = 0 if granted.refused else leases_affordable(statuses, ahead[0].cost)
            self._learn(account, statuses, affordable, asked_at)
        return granted

    def _give_back_all(self, account: EscrowAccount) -> None:
        while account.ahead:
            self._give_back(account.ahead.popleft())

    def _give_back(self, ahead: LeaseAhead) -> None:
        if not ahead.decided.done():
            self._begin(self._give_back_later(ahead))
        elif (lease := ahead.lease()) is not None:
            # At once: a request that the store decides on next finds it there.
            self._keep_task(self._store.release(lease))

    async def _give_back_later(self, ahead: LeaseAhead) -> None:
        await ahead.decided
        if (lease := ahead.lease()) is not None:
            await self._store.release(lease)

    def _begin(self, work: Coroutine[None, None, Result]) -> "asyncio.Task[Result]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _keep_task(self, work: Awaitable[object]) -> None:
        """Keep work that is under way, to wait for it at the end."""
        if isinstance(work, asyncio.Future):
            self._tasks.add(work)
            work.add_done_callback(self._tasks.discard)
