"""Escrow: quota that is reserved before the request that will use it has come, so that it need not wait for Redis.

    a request ends --> a lease like its own is reserved: ahead
    the next comes --> takes it over, if it is large enough; it is settled to what was used, as every lease
    nobody comes   --> it is given back after IDLE_SECONDS

The store decides on each of them, so nothing is granted twice. Accounts have leases ahead while they are busy and
far from all of their limits: near one, what is held here would be missed elsewhere, and is given back. Whoever is
refused all the same asks once more without what is ahead here of the same scope.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from secrets import token_hex
from typing import Any

import msgspec

from gateway.quotas.escrow_policy import AHEAD_MAX, aged, fits, is_far, is_over, most_ahead, rounded_up
from gateway.quotas.leases import CLOSE_SECONDS_MAX
from gateway.quotas.quota import (
    Cost,
    Lease,
    QuotaStore,
    QuotaUnavailable,
    Refusal,
    Reservation,
    Standing,
)

BUSY_SECONDS = 0.5
"""Two requests within so long are a reason to expect a third."""
AHEAD_SECONDS = 0.01
"""As many leases as requests come in so long, at least one, are ahead of one account."""
IDLE_SECONDS = 1.0
SWEEP_SECONDS = 0.25
ACCOUNTS_MAX = 1024

AccountKey = tuple[str, ...]


class Ahead:
    """One lease, there or on its way. `decided` gives None where it was not granted."""

    __slots__ = ("asked_at", "decided", "reservation")

    def __init__(
        self, reservation: Reservation, decided: "asyncio.Task[Lease | None]", asked_at: float
    ) -> None:
        self.reservation = reservation
        self.decided = decided
        self.asked_at = asked_at


class Account:
    """Requests of the same scopes for the same model. `last`: the one that came last; what is ahead is like it.

    `far`: from all of their limits, when they were last seen. `most`: leases that may be ahead.
    """

    __slots__ = ("ahead", "asked_at", "far", "gap_seconds", "last", "most", "seen_at", "standings")

    def __init__(self, first: Reservation) -> None:
        self.last = first
        self.most = min([AHEAD_MAX, *(most_ahead(limit) for _, limit in first.limits())])
        self.ahead: deque[Ahead] = deque()
        self.asked_at, self.gap_seconds = float("-inf"), float("inf")
        self.standings: tuple[Standing, ...] = ()
        self.seen_at = 0.0
        self.far = False

    def asks(self, reservation: Reservation, now: float) -> None:
        """One more request has come."""
        self.last = reservation
        self.gap_seconds, self.asked_at = now - self.asked_at, now

    def wants(self, now: float) -> int:
        """So many leases ahead."""
        if not self.far or max(self.gap_seconds, now - self.asked_at) > BUSY_SECONDS:
            return 0
        return min(self.most, 1 + int(AHEAD_SECONDS / max(self.gap_seconds, AHEAD_SECONDS / AHEAD_MAX)))


class Escrow:
    """See QuotaStore: what `store` promises. `resting`: says whether nothing is to be reserved ahead now.

    Counts in `taken` the requests that found their lease.
    """

    def __init__(
        self,
        store: QuotaStore,
        resting: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.taken = 0
        self._store = store
        self._resting = resting
        self._clock = clock
        self._closed = False
        self._accounts: OrderedDict[AccountKey, Account] = OrderedDict()
        self._of: dict[str, set[AccountKey]] = {}
        """By organisation: a refusal looks at no others."""
        self._name, self._numbers = token_hex(8), count()
        self._tasks: set[asyncio.Future[Any]] = set()

    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        if self._resting():
            return await self._store.reserve(reservation)
        account = None
        if reservation.once is None:
            account = self._account(reservation)
            account.asks(reservation, self._clock())
            lease = await self._taken(account, reservation.cost) if account.ahead else None
            if lease is not None:
                self.taken += 1
                return lease
        decision = await self._decided(account, reservation)
        if isinstance(decision, Refusal) and self._makes_room(reservation, decision):
            decision = await self._decided(account, reservation)
        return decision

    async def _decided(self, account: Account | None, reservation: Reservation) -> Lease | Refusal:
        """By the store."""
        now = self._clock()
        decision = await self._store.reserve(reservation)
        if account is not None:
            self._sees(account, decision, now)
        return decision

    def settle(self, lease: Lease, actual: Cost) -> Awaitable[None]:
        # In this order both go out together, and it is settled first.
        self._expect(lease.reservation)
        return self._store.settle(lease, actual)

    def release(self, lease: Lease) -> Awaitable[None]:
        return self._store.release(lease)

    async def renew(self, leases: Sequence[Lease]) -> None:
        await self._store.renew(leases)

    async def run(self) -> None:
        """Gives back what nobody came for."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            oldest = self._clock() - IDLE_SECONDS
            for key, account in list(self._accounts.items()):
                while account.ahead and account.ahead[0].asked_at < oldest:
                    self._give_back(account.ahead.popleft())
                if not account.ahead and account.asked_at < oldest:
                    self._drop(key)

    async def close(self) -> None:
        """Gives everything back, waits for that for a bounded time, and reserves nothing more ahead."""
        self._closed = True
        for account in self._accounts.values():
            self._forget(account)
        until = time.monotonic() + CLOSE_SECONDS_MAX
        while self._tasks and (seconds := until - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _account(self, reservation: Reservation) -> Account:
        key = _key(reservation)
        account = self._accounts.get(key)
        if account is None or account.last.scopes != reservation.scopes:
            if account is not None:  # Other limits hold from now on.
                self._forget(account)
            account = self._accounts[key] = Account(reservation)
            self._of.setdefault(key[0], set()).add(key)
            if len(self._accounts) > ACCOUNTS_MAX:
                self._drop(next(iter(self._accounts)))
        self._accounts.move_to_end(key)
        return account

    def _drop(self, key: AccountKey) -> None:
        self._forget(self._accounts.pop(key))
        of = self._of[key[0]]
        of.discard(key)
        if not of:
            del self._of[key[0]]

    def _sees(self, account: Account, decision: Lease | Refusal, asked_at: float) -> None:
        """What the store has told last."""
        account.standings, account.seen_at = decision.standings, asked_at
        account.far = isinstance(decision, Lease) and is_far(decision)
        if not account.far:
            self._forget(account)

    def _makes_room(self, reservation: Reservation, refusal: Refusal) -> bool:
        """Was something ahead here of what a request was refused for? It is given back."""
        if refusal.retry_after_seconds is None:
            return False  # There will never be enough.
        made = False
        for key in self._of.get(reservation.organisation, ()):
            account = self._accounts[key]
            if account.ahead and any(scope.name == refusal.scope for scope in account.last.scopes):
                self._forget(account)
                made = True
        return made

    async def _taken(self, account: Account, cost: Cost) -> Lease | None:
        """The oldest lease ahead that is large enough, if its windows have not ended."""
        ahead = next((each for each in account.ahead if fits(cost, each.reservation.cost)), None)
        if ahead is None:
            # Requests have become longer, and so will what is ahead.
            self._give_back(account.ahead.popleft())
            return None
        account.ahead.remove(ahead)
        if not ahead.decided.done():
            try:
                await asyncio.shield(ahead.decided)
            except asyncio.CancelledError:
                self._give_back(ahead)
                raise
        lease, now = ahead.decided.result(), self._clock()
        if lease is None:
            return None
        if now - ahead.asked_at > IDLE_SECONDS or is_over(lease, now - ahead.asked_at):
            self._give_back(ahead)
            return None
        # What is left is told as of the last decision, which may be of another lease ahead.
        age = now - account.seen_at
        return msgspec.structs.replace(lease, standings=tuple(aged(each, age) for each in account.standings))

    def _expect(self, ended: Reservation) -> None:
        """One request has ended, so others may come: like the last one, and within the limits that hold now."""
        account, now = self._accounts.get(_key(ended)), self._clock()
        if account is None or ended.once is not None or self._closed or self._resting():
            return
        for _ in range(len(account.ahead), account.wants(now)):
            name = f"ahead-{self._name}-{next(self._numbers)}"
            reservation = msgspec.structs.replace(account.last, id=name, cost=rounded_up(account.last.cost))
            decided = self._begin(self._asked(account, reservation))
            account.ahead.append(Ahead(reservation, decided, now))

    async def _asked(self, account: Account, reservation: Reservation) -> Lease | None:
        now = self._clock()
        try:
            decision = await self._store.reserve(reservation)
        except QuotaUnavailable:
            account.far = False
            return None
        self._sees(account, decision, now)
        if isinstance(decision, Lease) and decision.shadowed:
            self._store.release(decision)  # Of this somebody is to be told, once there is a request.
            return None
        return decision if isinstance(decision, Lease) else None

    def _forget(self, account: Account) -> None:
        while account.ahead:
            self._give_back(account.ahead.popleft())

    def _give_back(self, ahead: Ahead) -> None:
        if not ahead.decided.done():
            self._begin(self._given_back(ahead))
        elif (lease := ahead.decided.result()) is not None:
            # At once: whoever asks the store next finds it there.
            self._note(self._store.release(lease))

    async def _given_back(self, ahead: Ahead) -> None:
        if (lease := await ahead.decided) is not None:
            await self._store.release(lease)

    def _begin(self, work: Coroutine[None, None, Lease | None]) -> "asyncio.Task[Lease | None]":
        task = asyncio.ensure_future(work)
        self._note(task)
        return task

    def _note(self, work: Awaitable[object]) -> None:
        """It is under way: waited for at the end."""
        if isinstance(work, asyncio.Future):
            self._tasks.add(work)
            work.add_done_callback(self._tasks.discard)


def _key(reservation: Reservation) -> AccountKey:
    names = [scope.name for scope in reservation.scopes]
    return (reservation.organisation, reservation.tenant, reservation.model, *names)
