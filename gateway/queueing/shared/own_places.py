"""The places that this gateway gives by itself while no request waits, from its own part of each worker's window.

A request that comes while no other waits, before a worker with little ahead, would be placed there by Redis in any
case. So it is placed here without a call, and reported to Redis afterwards, together with others:

    admit, report --"no request waits"--> for FREE_SECONDS: give --REPORT_SECONDS--> report --> Redis
                                            ^                                          |
                                            +------"no request waits"------------------+

Several gateways may do so at the same time. These bounds hold for places that are not in Redis yet:

- Windows. All gateways together fill OWN_SHARE of a worker's window in this way. Each has an equal part of it for
  places that are not in Redis yet, and uses it only while no more than that share is ahead of the worker, by the
  loads that this gateway has. A prompt longer than the part needs a call. So a worker has at most OWN_SHARE of a
  window more ahead than if Redis had decided on each place, until the next reports are there.
- The choice of a worker. Two gateways may choose the same idle worker at once, where Redis would have sent the
  second request elsewhere. No part is longer than OWN_MS, so the second request waits for so long at most. A
  longer prompt needs a call, which costs little beside its prefill.
- Order. The reply to each report says whether requests wait; from then on the gateway calls Redis for each turn.
  Until then it may give places before a request that waits at another gateway: for the time of a report, or for
  FREE_SECONDS where Redis does not reply. Each place is charged to its tenant as a turn of Redis is.
- A gateway that dies. What it has reported is free when its lease ends, as all that it held. What it has not
  reported never counted.

Redis gives all places of batch work. It also gives all places where other cells or shards use the same workers:
turns have bounds of their own there (policies/cell_turns.py).
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from gateway.queueing.shared.local_placements import LocalPlacements
from gateway.queueing.shared.membership import Membership, fetch_exception
from gateway.queueing.shared.queue_members import QueueMember
from gateway.queueing.shared.queue_messages import SharedTicket, TenantCharge, WorkerRoom
from gateway.queueing.shared.queue_store import QueueStore
from radix_cache.match import WorkerId

REPORT_SECONDS = 0.005
"""How long places wait for more of them, to be reported together; then the report waits for other calls, see
radix_cache/redis/batch.py."""

FREE_SECONDS = 0.25
"""How long a reply of Redis holds that no request waits."""

OWN_SHARE = 0.5
"""The share of a worker's window that all gateways together fill without a call to Redis."""

OWN_MS = 50.0
"""Milliseconds that a worker needs at most to compute what one gateway has placed there and Redis may not have."""

CHANGES_MAX = 256
"""Workers, and tenants, in one report; the next one has the rest."""


class OwnPlaces:
    """Gives places without a call to Redis, and reports them."""

    def __init__(
        self,
        store: QueueStore,
        places: LocalPlacements,
        membership: Membership,
        clock: Callable[[], float],
        *,
        some_wait: Callable[[], bool],
        in_cell: bool,
    ) -> None:
        """Create the places of a gateway that has given none.

        Args:
            store: Reports them.
            places: Has all placements of this gateway.
            membership: This gateway's part among all that share the queue.
            clock: Returns seconds and never goes backwards.
            some_wait: Whether requests of this gateway wait for a turn, which an end may give them.
            in_cell: Whether other cells use the same workers.
        """
        self.member: QueueMember
        self._store = store
        self._places = places
        self._membership = membership
        self._clock = clock
        self._some_wait = some_wait
        self._in_cell = in_cell
        self._free_until: dict[str, float] = {}
        """By queue: until when it counts as free of waiting requests."""
        self._charges: dict[tuple[str, str], TenantCharge] = {}
        """By queue and tenant: what is not reported yet."""
        self._queues: set[str] = set()
        """The queues of the placements that have changed since the last report."""
        self._timer: asyncio.TimerHandle | None = None
        self._under_way = False
        self._reports = 0

    def note_waiting(self, queue: str, waiting: int, called_at: float) -> None:
        """Note how many tenants wait in a queue, by the reply to a call that was made at `called_at`."""
        if waiting or self._in_cell or self._store.is_divided(queue):
            self._free_until.pop(queue, None)
        else:
            self._free_until[queue] = called_at + FREE_SECONDS

    def may_give(self, queue: str) -> bool:
        """Return whether requests of this queue may have places without a call to Redis."""
        until = self._free_until.get(queue)
        return until is not None and self._clock() < until and self._membership.shared

    def give(self, ticket: SharedTicket, worker: WorkerId, uncached_tokens: int, room: WorkerRoom) -> bool:
        """Give a place on a worker if this gateway's part of its window has space, and return whether it has.

        The caller has checked `may_give`.
        """
        share_tokens = OWN_SHARE * room.window_tokens
        unreported = self._places.sums.unreported_tokens(worker) + uncached_tokens
        if (
            room.ahead + uncached_tokens > share_tokens
            or unreported > share_tokens / self._membership.gateways
            or unreported * room.ms_per_token > OWN_MS
        ):
            return False
        self._places.put_in_sums(ticket, worker, uncached_tokens)
        self._changed(ticket, cost=ticket.cost / ticket.weight)
        return True

    def note_first_token(self, ticket: SharedTicket) -> None:
        """Report soon that the prompt of a place is computed."""
        self._changed(ticket)

    def end(self, ticket: SharedTicket, cost_change: float) -> None:
        """Report soon that a request has ended; its usage differs from its cost by `cost_change`."""
        self._changed(ticket, change=cost_change / ticket.weight)

    def report(self) -> None:
        """Report all changes to Redis now, unless the reply to the last report has not come yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sums = self._places.sums
        if self._under_way or not self._membership.up or not (self._charges or sums.changed):
            return
        charges = [self._charges.pop(key) for key in list(islice(self._charges, CHANGES_MAX))]
        self._queues.update(charge.queue for charge in charges)
        near = (self._membership.queues(queue) for queue in sorted(self._queues))
        queues = list(dict.fromkeys(queue for queues in near for queue in queues))
        changes = sums.take_changes(CHANGES_MAX)
        if not sums.changed:
            self._queues.clear()
        self._reports += 1
        self._under_way, called_at = True, self._clock()
        id = f"{self._store.gateway}.r{self._reports}"
        answer = self._store.report(queues, id, changes, charges, urgent=self._some_wait())
        answer.add_done_callback(fetch_exception)

        async def process() -> None:
            try:
                reply = await self._membership.await_reply(answer)
            finally:
                self._under_way = False
            if reply is None:
                return
            sums.note_reply()
            for queue, waiting in zip(queues, reply.waiting, strict=True):
                self.note_waiting(queue, waiting, called_at)
            if self._membership.shared:
                for charge, (virtual_time, finish) in zip(charges, reply.tags, strict=True):
                    self.member.adopt_tag(charge.queue, charge.tenant, virtual_time, finish)
            self._membership.process(reply)
            if self._charges or sums.changed:
                self._schedule()

        self._membership.start(process())

    def _changed(self, ticket: SharedTicket, *, cost: float = 0.0, change: float = 0.0) -> None:
        """Add to what is to be reported, in units over the tenant's weight."""
        self._queues.add(ticket.queue)
        if cost or change:
            key = ticket.queue, ticket.tenant
            charge = self._charges.get(key)
            if charge is None:
                charge = self._charges[key] = TenantCharge(ticket.queue, ticket.tenant)
            charge.cost += cost
            charge.change += change
        if self._timer is None and not self._under_way:
            self._schedule()

    def _schedule(self) -> None:
        """Report at once where requests may wait for what has changed, else together with later changes."""
        if self._some_wait() or not all(map(self.may_give, self._queues)):
            self.report()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self.report)
