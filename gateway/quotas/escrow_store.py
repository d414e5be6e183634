"""QuotaStore without a round trip for most requests: quota debited in advance, spent here, and given back.

                       Redis                              this process
    debit 64 requests' worth  --- adjust --->   left: 64   --reserve-->  63 ...    no trip, nobody waits
                                                           <--settle---  63 + estimate - actual
    debit more when it is low, give back when idle or when there is too much

What is in escrow was debited as exactly as single requests are, so nothing is ever sold twice. It is a small share
of what remains, and none of it near a limit: there every request is decided in Redis, one by one; and before a
refusal stands, what is in escrow goes back and Redis is asked again. So this process refuses nothing that it could
have granted. Another one may, for as long as it takes us to be idle (a second).

Only what a process held when it died is lost: its slots until they expire, its units until the limits refill.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.quotas.quota import (
    DONE,
    LEASE_SECONDS,
    Cost,
    Lease,
    Limit,
    QuotaUnavailable,
    Refusal,
    Reservation,
    Scope,
    Standing,
)
from gateway.quotas.redis_store import Change, RedisQuotaStore

log = logging.getLogger(__name__)

REQUESTS_AHEAD = 64
"""How many requests' worth is debited at a time."""

SHARE_MAX = 0.05
"""Of what remains of a limit, so much may be in one process's escrow."""

WORTH_WHILE = 4
"""Escrow for fewer requests than this saves nothing."""

IDLE_SECONDS = 1.0
LEARNING_RATE = 0.1
ACCOUNTS_MAX = 10_000
ENDED_MAX = 10_000

Names = tuple[str, ...]
"""An account within an organisation: the names of its scopes, in order."""


@dataclass(slots=True, kw_only=True)
class Balance:
    """One account's escrow. Lists go with `limits`.

    `left`: units debited and not spent; below zero, spent and not debited. `goal`: what should be left. `slots`:
    running requests that are paid for, of which `running` are in use; `spare`: how many more there should be.
    `closed`: nothing should be held, and nothing is spent. `standings`: of the shared limits at `seen_at`, when
    everything in escrow counted as used; `freed`: what single requests have given back since, of which the change
    under way has `counted` so much. `usual`: a running mean of what a request costs.
    """

    organisation: str
    scopes: tuple[Scope, ...]
    limits: tuple[Limit, ...]
    concurrency: int | None
    usual: list[float]
    left: list[int]
    goal: list[int]
    freed: list[int]
    standings: tuple[Standing, ...] = ()
    seen_at: float = 0.0
    used_at: float = 0.0
    closed: bool = True
    slots: int = 0
    running: int = 0
    spare: int = 0
    sequence: int = 0
    changing: "asyncio.Task[None] | None" = None
    counted: list[int] = field(default_factory=list)
    granted: set[str] = field(default_factory=set)

    def covers(self, costs: Sequence[int]) -> bool:
        """Is there a slot, and enough of every unit? Never while what is left is on its way back."""
        if self.closed or (self.concurrency is not None and self.running >= self.slots):
            return False
        return all(left > 0 and left >= cost for left, cost in zip(self.left, costs, strict=True))

    def holds_something(self) -> bool:
        """Could anything go back?"""
        return self.changing is not None or any(self.left) or self.slots > self.running

    def off_goal(self) -> bool:
        """Is anything less than half of what should be there, or more than twice as much?"""
        for left, goal in zip(self.left, self.goal, strict=True):
            if left * 2 < goal or left > goal * 2:
                return True
        free = self.slots - self.running
        return self.concurrency is not None and (free * 2 < self.spare or free > self.spare * 2)

    def seen(self, standings: tuple[Standing, ...], now: float, counted: Sequence[int]) -> None:
        """The shared limits stand so; from this follows what should be in escrow: nothing near a limit.

        `counted`: what of `freed` the standings have in them already.
        """
        self.standings, self.seen_at = standings, now
        self.freed = [freed - done for freed, done in zip(self.freed, counted, strict=True)]
        most = [standing.remaining * SHARE_MAX for standing in self.shown(now)]
        spare = REQUESTS_AHEAD if self.concurrency is None else int(self.concurrency * SHARE_MAX)
        if not spare or any(m < WORTH_WHILE * u for m, u in zip(most, self.usual, strict=True)):
            self.want_nothing()
            return
        self.goal = [int(min(m, REQUESTS_AHEAD * u)) for m, u in zip(most, self.usual, strict=True)]
        self.spare = min(spare, REQUESTS_AHEAD)
        self.closed = False

    def want_nothing(self) -> None:
        self.goal, self.spare, self.closed = [0] * len(self.limits), 0, True

    def shown(self, now: float) -> tuple[Standing, ...]:
        """The standings with what is left in escrow counted as unused, which it is."""
        passed = now - self.seen_at
        found = []
        for standing, limit, left, freed in zip(
            self.standings, self.limits, self.left, self.freed, strict=True
        ):
            bucket = limit.bucket
            reset = max(0.0, standing.reset_seconds - passed - (left + freed) * bucket.seconds_per_unit)
            found.append(
                Standing(
                    unit=limit.unit,
                    amount=standing.amount,
                    remaining=bucket.remaining(reset, 0.0),
                    reset_seconds=reset,
                )
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a balance stood when an exact decision was asked for: `changes` sent before it, and what was freed."""

    changes: int
    freed: tuple[int, ...]

    @classmethod
    def now(cls, balance: Balance | None) -> "_Asked":
        return cls(0, ()) if balance is None else cls(balance.sequence, tuple(balance.freed))


NO_BALANCES: Mapping[Names, Balance] = {}


class EscrowQuotaStore:
    """See QuotaStore. `clock`: seconds, never backwards."""

    def __init__(self, shared: RedisQuotaStore, clock: Callable[[], float]) -> None:
        self._shared = shared
        self._clock = clock
        self._holder = secrets.token_hex(8)
        self._balances: dict[str, dict[Names, Balance]] = {}
        self._ended: OrderedDict[str, float] = OrderedDict()

    async def reserve(self, reservation: Reservation) -> Lease | Refusal:
        now = self._clock()
        balance = self._balance(reservation)
        if reservation.id in self._ended:
            raise QuotaUnavailable(f"reservation {reservation.id} has ended")
        if balance is not None:
            balance.used_at = now
            if reservation.id not in balance.granted:
                costs = [reservation.cost.of(limit.unit) for limit in balance.limits]
                if not balance.covers(costs):
                    return await self._decided(reservation, balance)
                self._spend(balance, reservation.id, costs)
            return Lease(reservation=reservation, standings=balance.shown(now))
        return await self._decided(reservation, None)

    def settle(self, lease: Lease, actual: Cost) -> Awaitable[None]:
        return self._end(lease, actual)

    def release(self, lease: Lease) -> Awaitable[None]:
        return self._end(lease, None)

    async def renew(self, leases: Sequence[Lease]) -> None:
        balances = list(self._all())
        in_escrow = {name for balance in balances for name in balance.granted}
        await self._shared.renew([lease for lease in leases if lease.reservation.id not in in_escrow])
        for balance in balances:
            if not balance.closed:
                self._change_now(balance)

    async def run(self) -> None:
        """Until it is cancelled: what was not used for a second goes back; the rest sees how the limits stand."""
        while True:
            await asyncio.sleep(IDLE_SECONDS)
            await self.give_back(idle_seconds=IDLE_SECONDS)
            for balance in self._all():
                if not balance.closed:
                    self._change_now(balance)

    async def give_back(self, *, idle_seconds: float = 0.0) -> None:
        """What is left of accounts that were not used for so long; accounts with nothing running are forgotten."""
        now = self._clock()
        for balance in list(self._all()):
            if now - balance.used_at >= idle_seconds:
                await self._give_back(balance)
                if not balance.running and not any(balance.left) and balance.changing is None:
                    self._forget(balance)

    async def _decided(self, reservation: Reservation, balance: Balance | None) -> Lease | Refusal:
        """An exact decision. Before a refusal stands, what this process has in escrow goes back."""
        asked = _Asked.now(balance)
        decision = await self._shared.reserve(reservation)
        if isinstance(decision, Refusal) and (holding := self._holding(reservation)):
            await asyncio.gather(*map(self._give_back, holding))
            asked = _Asked.now(balance)
            decision = await self._shared.reserve(reservation)
        if isinstance(decision, Refusal):
            return decision
        balance = self._consider(reservation, decision, balance, asked)
        if balance is None:
            return decision
        return Lease(reservation=reservation, standings=balance.shown(self._clock()))

    def _consider(
        self, reservation: Reservation, lease: Lease, balance: Balance | None, asked: "_Asked"
    ) -> Balance | None:
        """After a granted exact decision: opens an account if there is none, and debits if that is worth while."""
        if balance is None:
            limits = tuple(limit for scope in reservation.scopes for limit in scope.limits)
            bounds = [scope.concurrency for scope in reservation.scopes if scope.concurrency is not None]
            accounts, names = self._balances.setdefault(reservation.organisation, {}), _names(reservation)
            if names in accounts or len(accounts) >= ACCOUNTS_MAX or len(self._balances) > ACCOUNTS_MAX:
                return None
            balance = accounts[names] = Balance(
                organisation=reservation.organisation,
                scopes=reservation.scopes,
                limits=limits,
                concurrency=min(bounds, default=None),
                usual=[float(reservation.cost.of(limit.unit)) for limit in limits],
                left=[0] * len(limits),
                goal=[0] * len(limits),
                freed=[0] * len(limits),
            )
        balance.used_at = self._clock()
        if balance.sequence == asked.changes:
            balance.seen(lease.standings, balance.used_at, asked.freed or [0] * len(balance.limits))
            self._keep_up(balance)
        elif balance.changing is not None:
            # A change was sent after it: the answer to that will count it, until then we do.
            for at, limit in enumerate(balance.limits):
                balance.freed[at] -= reservation.cost.of(limit.unit)
                balance.counted[at] -= reservation.cost.of(limit.unit)
        return balance

    def _balance(self, reservation: Reservation) -> Balance | None:
        balance = self._balances.get(reservation.organisation, NO_BALANCES).get(_names(reservation))
        same = balance is None or balance.scopes is reservation.scopes or balance.scopes == reservation.scopes
        return balance if same else None

    def _all(self) -> Iterator[Balance]:
        return (balance for accounts in list(self._balances.values()) for balance in list(accounts.values()))

    def _holding(self, reservation: Reservation) -> list[Balance]:
        """Accounts that share a scope with this one and could give something back."""
        wanted = {scope.name for scope in reservation.scopes}
        accounts = self._balances.get(reservation.organisation, NO_BALANCES)
        return [b for names, b in accounts.items() if wanted.intersection(names) and b.holds_something()]

    def _forget(self, balance: Balance) -> None:
        accounts = self._balances.get(balance.organisation, {})
        accounts.pop(tuple(scope.name for scope in balance.scopes), None)
        if not accounts:
            self._balances.pop(balance.organisation, None)

    def _spend(self, balance: Balance, name: str, costs: Sequence[int]) -> None:
        for at, cost in enumerate(costs):
            balance.left[at] -= cost
            balance.usual[at] += LEARNING_RATE * (cost - balance.usual[at])
        balance.running += 1
        balance.granted.add(name)
        self._keep_up(balance)

    def _end(self, lease: Lease, actual: Cost | None) -> Awaitable[None]:
        name, now = lease.reservation.id, self._clock()
        if name in self._ended:
            return DONE
        self._ended[name] = now + LEASE_SECONDS
        while len(self._ended) > ENDED_MAX or next(iter(self._ended.values())) <= now:
            self._ended.popitem(last=False)
        balance = self._balance(lease.reservation)
        in_escrow = balance is not None and name in balance.granted
        if balance is not None:
            to = balance.left if in_escrow else balance.freed
            for at, limit in enumerate(balance.limits):
                used = actual.of(limit.unit) if actual is not None else 0
                to[at] += lease.reservation.cost.of(limit.unit) - used
        if balance is None or not in_escrow:
            shared = self._shared
            return shared.release(lease) if actual is None else shared.settle(lease, actual)
        balance.granted.discard(name)
        balance.running -= 1
        self._keep_up(balance)
        return DONE

    def _keep_up(self, balance: Balance) -> None:
        """Starts a change if there is too little in escrow, or too much."""
        if balance.off_goal():
            self._change_now(balance)

    def _change_now(self, balance: Balance) -> None:
        if balance.changing is None:
            balance.changing = asyncio.get_running_loop().create_task(self._change(balance))

    async def _change(self, balance: Balance) -> None:
        """Brings a balance to its goal; what goes back cannot be spent meanwhile, what comes can be afterwards."""
        try:
            debt = [max(0, -left) for left in balance.left]
            if any(debt):
                # Spent already, by requests that used more than they had reserved.
                await self._adjust(balance, debt, balance.slots, forced=True)
            units = [goal - left for goal, left in zip(balance.goal, balance.left, strict=True)]
            await self._adjust(balance, units, balance.running + balance.spare)
        except QuotaUnavailable as err:
            # What was on its way is lost to us: debited perhaps, but never spent twice.
            log.debug("escrow of %s could not be changed: %s", balance.organisation, err)
            balance.want_nothing()
        finally:
            balance.changing = None

    async def _adjust(self, balance: Balance, units: list[int], slots: int, *, forced: bool = False) -> None:
        back = [min(0, change) for change in units]
        slots_before, balance.slots = balance.slots, min(balance.slots, slots)
        for at, change in enumerate(back):
            balance.left[at] += change
        balance.sequence += 1
        balance.counted = list(balance.freed)
        adjusted = await self._shared.adjust(
            Change(
                holder=self._holder,
                sequence=balance.sequence,
                organisation=balance.organisation,
                scopes=balance.scopes,
                units=tuple(units),
                slots=slots,
                forced=forced,
            )
        )
        if adjusted.done:
            balance.slots = slots
            for at, change in enumerate(units):
                balance.left[at] += max(0, change)
            balance.seen(adjusted.standings, self._clock(), balance.counted)
        else:
            # All or nothing: what was to go back is still here, and goes back next.
            balance.slots = slots_before
            for at, change in enumerate(back):
                balance.left[at] -= change
            balance.want_nothing()

    async def _give_back(self, balance: Balance) -> None:
        while balance.changing is not None:
            await asyncio.wait([balance.changing])
        balance.want_nothing()
        if balance.off_goal():
            self._change_now(balance)
        if balance.changing is not None:
            await asyncio.wait([balance.changing])


def _names(reservation: Reservation) -> Names:
    return tuple([scope.name for scope in reservation.scopes])
