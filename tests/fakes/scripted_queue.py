"""The queue of all gateways without Redis: this gateway is alone, or the test says what the gateways decide."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from gateway.domain.errors import NoWorker
from gateway.queueing.shared.local_placements import LocalPlacements
from gateway.queueing.shared.queue_messages import SharedPlacement, SharedRoute, SharedTicket
from gateway.queueing.shared.turn_requests import TurnLost
from policies.queueing.protocol import Ticket
from radix_cache.match import WorkerId


class ScriptedQueue:
    """A SharedQueue that is alone, or shared with gateways that do not exist."""

    gateway = "g"

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.gateways = 2 if shared else 1
        self.membership = self.only_membership = self
        self.placements = LocalPlacements()
        self.turns: deque[object] = deque()
        """How the next turns end: with a worker's id, or with an exception; else with the best route."""
        self.spares: deque[WorkerId | None] = deque()
        """The workers that the next calls of `spare` name."""
        self.room = asyncio.Event()
        """Turns are given while it is set."""
        self.room.set()
        self.before_turn: Callable[[], None] = lambda: None
        """Called when a turn was decided, before the request hears of it."""
        self.offered: list[Sequence[SharedRoute]] = []
        """The routes that requests have asked with."""
        self.left: list[tuple[str, float]] = []
        """The tickets that have left, each with the change of its cost."""
        self._number = 0
        self._members: set[str] = set()

    def membership_of(self, queue: str, _tenant: str = "") -> "ScriptedQueue":
        return self

    def share_of(self, window_tokens: int) -> int:
        return window_tokens if self.shared else max(1, window_tokens // self.gateways)

    def ticket(
        self, ticket: Ticket, queue: str, kv_tokens: int, *, cost: float | None = None
    ) -> SharedTicket:
        self._number += 1
        return SharedTicket(
            id=f"{self.gateway}:{self._number}",
            queue=queue,
            tenant=ticket.tenant,
            weight=ticket.weight,
            cost=ticket.cost if cost is None else cost,
            kv_tokens=kv_tokens,
        )

    def second_ticket(self, first: SharedTicket) -> SharedTicket:
        self._number += 1
        return msgspec.structs.replace(first, id=f"{self.gateway}:{self._number}", cost=0.0)

    async def turn(
        self,
        shared: SharedTicket,
        ticket: Ticket,
        routes: Callable[[], Sequence[SharedRoute]],
        waits: Callable[[], None],
    ) -> SharedPlacement:
        if not self.shared:
            raise TurnLost
        self._members.add(shared.id)
        placed = None
        try:
            offered = routes()
            if not self.room.is_set():
                waits()
                await self.room.wait()
                offered = routes()
            self.offered.append(offered)
            if not offered:
                raise NoWorker("m")
            outcome = self.turns.popleft() if self.turns else offered[0].worker
            if isinstance(outcome, Exception):
                raise outcome
            chosen = next(route for route in offered if route.worker == outcome)
            placed = self.placements.put(shared, chosen.worker, chosen.uncached_tokens)
            self.before_turn()
            return placed
        finally:
            if placed is None:
                self.leave(shared, -shared.cost)

    def may_give(self, queue: str, tenant: str = "") -> bool:
        return False

    async def spare(self, shared: SharedTicket, routes: Sequence[SharedRoute]) -> SharedPlacement | None:
        self._members.add(shared.id)
        await asyncio.sleep(0)
        worker = self.spares.popleft() if self.spares else None
        for route in routes:
            if route.worker == worker:
                placed = self.placements.put(shared, route.worker, route.uncached_tokens)
                self.before_turn()
                return placed
        self.leave(shared, 0.0)
        return None

    def note_placed(self, shared: SharedTicket, worker: WorkerId, uncached_tokens: int) -> None:
        self.placements.put(shared, worker, uncached_tokens)
        if self.shared:
            self._members.add(shared.id)

    def note_first_token(self, shared: SharedTicket) -> None:
        self.placements.note_first_token(shared)

    def leave(self, shared: SharedTicket, cost_change: float) -> bool:
        self.placements.drop(shared)
        self.left.append((shared.id, cost_change))
        known = shared.id in self._members
        self._members.discard(shared.id)
        return known and self.shared
