"""Escrow: quota is reserved before the request that will use it comes, so that requests need not wait for Redis.

    a request ends      --> a lease like its own is reserved: ahead
    the next one comes  --> takes the lease, if that is large enough; it is settled to what was used, as every lease
    none comes          --> the lease is given back after IDLE_SECONDS

The store decides on each of them, so nothing is granted twice. Accounts have leases ahead while they are busy and
far from all of their limits: near a limit, what is held here would be missed elsewhere, and is given back. A
request that is refused all the same is decided once more without the leases that are ahead here of the same
scope.

Leases ahead are not urgent: the store decides on them together with other calls, a few milliseconds later.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from operator import attrgetter
from secrets import token_hex
from types import SimpleNamespace
from typing import Any, Protocol

import msgspec

from gateway.concurrency.bounded_wait import bounded_wait
from gateway.quotas.escrow_policy import (
    aged,
    covers,
    is_outdated,
    leases_affordable,
    rounded_up,
)
from gateway.quotas.leases import CLOSE_SECONDS_MAX
from gateway.quotas.quota_store import (
    Cost,
    Lease,
    LimitStatus,
    QuotaStore,
    QuotaStoreUnavailable,
    Refusal,
    Reservation,
)

BUSY_SECONDS = 0.5
"""Two requests within this time are a reason to expect a third."""
AHEAD_SECONDS = 0.03
"""As many leases as requests come in this time are ahead of an account, or in the time that decisions on them took
of late, if that is longer: a decision takes up to the DELAY_SECONDS of radix_cache/redis/batch.py and a turn of the
event loop, and requests come in bursts."""
IDLE_SECONDS = 1.0
SWEEP_SECONDS = 0.25
ACCOUNTS_MAX = 1024

AccountKey = tuple[str, ...]
"""Organisation, tenant, model, and the names of all scopes."""

_scope_name = attrgetter("name")


class LeaseAhead:
    """One lease ahead of requests, decided or on its way."""

    __slots__ = ("asked_at", "decided", "reservation")

    def __init__(
        self, reservation: Reservation, decided: "asyncio.Task[Lease | None]", asked_at: float
    ) -> None:
        self.reservation = reservation
        self.decided = decided
        """The result is None where the lease was not granted."""
        self.asked_at = asked_at


class EscrowAccount:
    """Requests of the same scopes for the same model, and the leases ahead of them."""

    __slots__ = (
        "_requests",
        "_requests_before",
        "_window_from",
        "affordable",
        "ahead",
        "asked_at",
        "decision_seconds",
        "gap_seconds",
        "last",
        "limit_statuses",
        "seen_at",
    )

    def __init__(self, first: Reservation) -> None:
        self.last = first
        """The request that came last; leases ahead are like it."""
        self.ahead: deque[LeaseAhead] = deque()
        self.asked_at, self.gap_seconds = float("-inf"), float("inf")
        """When the last request came, and how long after the one before."""
        self.limit_statuses: tuple[LimitStatus, ...] = ()
        """What the store said last, at `seen_at`."""
        self.seen_at = 0.0
        self.affordable = 0
        """How many leases might be ahead then."""
        self.decision_seconds = AHEAD_SECONDS
        """How long decisions on leases ahead take at most, of late; AHEAD_SECONDS to BUSY_SECONDS."""
        self._window_from = float("-inf")
        self._requests = self._requests_before = 0
        """Requests that came in the `decision_seconds` since `_window_from`, and in the time like that before."""

    def count(self, reservation: Reservation, now: float) -> None:
        """Count a request that has come."""
        self.last = reservation
        self.gap_seconds, self.asked_at = now - self.asked_at, now
        if now - self._window_from >= self.decision_seconds:
            self._window_from, self._requests_before, self._requests = now, self._requests, 0
        self._requests += 1

    def decided_in(self, seconds: float) -> None:
        """Learn how long a decision on a lease ahead took, and forget a tenth of older ones."""
        self.decision_seconds = min(max(seconds, 0.9 * self.decision_seconds, AHEAD_SECONDS), BUSY_SECONDS)

    def leases_wanted(self, now: float) -> int:
        """Return how many leases are to be ahead now: as many as requests come until they are decided."""
        if not self.affordable or self.gap_seconds > BUSY_SECONDS or now - self.asked_at > BUSY_SECONDS:
            return 0
        wanted = self._requests if self._requests > self._requests_before else self._requests_before
        return wanted if wanted < self.affordable else self.affordable


_ALWAYS_THERE = SimpleNamespace(away=False)


class Availability(Protocol):
    """What knows whether the store can be asked."""

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
        """`availability` knows whether the store is away; None: it never is. `enabled`: whether to reserve ahead.

        `flush` has the store decide at once on what it was asked. `timeout_seconds`: how long a request waits for a
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
        self._accounts: OrderedDict[AccountKey, EscrowAccount] = OrderedDict()
        self._keys_of: dict[str, set[AccountKey]] = {}
        """Accounts by organisation: a refusal concerns no others."""
        self._name, self._numbers = token_hex(8), count()
        self._tasks: set[asyncio.Future[Any]] = set()

    async def reserve(self, reservation: Reservation, *, urgent: bool = True) -> Lease | Refusal:
        """See QuotaStore."""
        if self._availability.away or not self._enabled:
            return await self._store.reserve(reservation, urgent=urgent)
        account = None
        if reservation.idempotency_key is None:
            account, now = self._account(reservation), self._clock()
            account.count(reservation, now)
            ahead = self._take(account, reservation.cost) if account.ahead else None
            if ahead is not None:
                lease = ahead.decided.result() if ahead.decided.done() else await self._wait_for(ahead)
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
        """Have the store decide on the request itself."""
        now = self._clock()
        decision = await self._store.reserve(reservation, urgent=urgent)
        if account is not None:
            self._learn(account, decision, rounded_up(reservation.cost), now)
        return decision

    def settle(self, lease: Lease, actual: Cost) -> Awaitable[None]:
        """See QuotaStore."""
        # In this order both leave together, and the lease is settled first.
        settled = self._store.settle(lease, actual)
        self._reserve_ahead(lease.reservation)
        return settled

    def release(self, lease: Lease) -> Awaitable[None]:
        """See QuotaStore."""
        return self._store.release(lease)

    async def renew(self, leases: Sequence[Lease]) -> None:
        """See QuotaStore."""
        await self._store.renew(leases)

    async def run(self) -> None:
        """Give back leases that no request came for, again and again."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            oldest = self._clock() - IDLE_SECONDS
            for key, account in list(self._accounts.items()):
                while account.ahead and account.ahead[0].asked_at < oldest:
                    self._give_back(account.ahead.popleft())
                if not account.ahead and account.asked_at < oldest:
                    self._drop(key)

    async def close(self) -> None:
        """Give everything back, wait for that for a bounded time, and reserve nothing more ahead."""
        self._closed = True
        for account in self._accounts.values():
            self._give_back_all(account)
        self._flush()
        until = time.monotonic() + CLOSE_SECONDS_MAX
        while self._tasks and (seconds := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _account(self, reservation: Reservation) -> EscrowAccount:
        """Return the request's account, a new one where other limits hold from now on."""
        names = map(_scope_name, reservation.scopes)
        key = (reservation.organisation, reservation.tenant, reservation.model, *names)
        account = self._accounts.get(key)
        if account is None or account.last.scopes != reservation.scopes:
            if account is not None:
                self._give_back_all(account)
            account = self._accounts[key] = EscrowAccount(reservation)
            self._keys_of.setdefault(key[0], set()).add(key)
            if len(self._accounts) > ACCOUNTS_MAX:
                self._drop(next(iter(self._accounts)))
        self._accounts.move_to_end(key)
        return account

    def _drop(self, key: AccountKey) -> None:
        self._give_back_all(self._accounts.pop(key))
        keys = self._keys_of[key[0]]
        keys.discard(key)
        if not keys:
            del self._keys_of[key[0]]

    def _learn(self, account: EscrowAccount, decision: Lease | Refusal, held: Cost, asked_at: float) -> None:
        """Take over what the store says of the limits; `held` is the cost of a lease ahead."""
        account.limit_statuses, account.seen_at = decision.limit_statuses, asked_at
        account.affordable = leases_affordable(decision, held) if isinstance(decision, Lease) else 0
        while len(account.ahead) > account.affordable:
            self._give_back(account.ahead.popleft())

    def _make_room(self, reservation: Reservation, refusal: Refusal) -> bool:
        """Give back leases ahead of the scope that refused a request, and return whether there were any."""
        if refusal.retry_after_seconds is None:
            return False  # There will never be enough.
        made = False
        for key in self._keys_of.get(reservation.organisation, ()):
            account = self._accounts[key]
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
            return await bounded_wait(ahead.decided, self._timeout_seconds)
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
        if age > IDLE_SECONDS or is_outdated(lease, age):
            self._give_back(ahead)
            return None
        # What is left is reported as of the last decision, which may be on another lease ahead.
        return Lease(
            reservation=lease.reservation,
            limit_statuses=aged(account.limit_statuses, now - account.seen_at),
        )

    def _reserve_ahead(self, ended: Reservation) -> None:
        """Reserve leases like the last request, now that one has ended and others may come."""
        names = map(_scope_name, ended.scopes)
        account = self._accounts.get((ended.organisation, ended.tenant, ended.model, *names))
        if account is None or ended.idempotency_key is not None or self._closed:
            return
        if self._availability.away or not self._enabled:
            return
        now = self._clock()
        missing = account.leases_wanted(now) - len(account.ahead)
        if missing <= 0:
            return
        cost = rounded_up(account.last.cost)
        for _ in range(missing):
            name = f"ahead-{self._name}-{next(self._numbers)}"
            reservation = msgspec.structs.replace(account.last, id=name, cost=cost)
            decided = self._begin(self._ask_ahead(account, reservation))
            account.ahead.append(LeaseAhead(reservation, decided, now))

    async def _ask_ahead(self, account: EscrowAccount, reservation: Reservation) -> Lease | None:
        now = self._clock()
        try:
            decision = await self._store.reserve(reservation, urgent=False)
        except QuotaStoreUnavailable:
            account.affordable = 0
            return None
        self._learn(account, decision, reservation.cost, now)
        account.decided_in(self._clock() - now)
        if isinstance(decision, Refusal):
            return None
        if decision.shadow_refusals:
            # A shadow limit would have refused a request, and the event names that request: there is none yet.
            self._store.release(decision)
            return None
        return decision

    def _give_back_all(self, account: EscrowAccount) -> None:
        while account.ahead:
            self._give_back(account.ahead.popleft())

    def _give_back(self, ahead: LeaseAhead) -> None:
        if not ahead.decided.done():
            self._begin(self._give_back_later(ahead))
        elif (lease := ahead.decided.result()) is not None:
            # At once: a request that the store decides on next finds it there.
            self._keep_task(self._store.release(lease))

    async def _give_back_later(self, ahead: LeaseAhead) -> None:
        if (lease := await ahead.decided) is not None:
            await self._store.release(lease)

    def _begin(self, work: Coroutine[None, None, Lease | None]) -> "asyncio.Task[Lease | None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _keep_task(self, work: Awaitable[object]) -> None:
        """Keep work that is under way, to wait for it at the end."""
        if isinstance(work, asyncio.Future):
            self._tasks.add(work)
            work.add_done_callback(self._tasks.discard)
