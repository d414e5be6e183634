"""The shared queue of a Redis Cluster: shards, each with the queues of some groups of models and a slot of its own.

Models that share workers are in one shard, since room on a worker is decided in one place. Tenants take turns
within the queue of a model, so that no shard needs to know of another one. The shard of a group follows from its
name. Where one model is too much for one shard, its tenants are divided among several, which shards_in_step.py
keeps in step. When models come to share workers, the requests that wait in a shard that is no longer theirs enter
the other one. Those that have a placement keep it, and it counts in the shard that gave it until it ends.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from gateway.queueing.shared.membership import Membership
from gateway.queueing.shared.queue_messages import SharedPlacement, SharedRoute, SharedTicket, WorkerRoom
from gateway.queueing.shared.shard_layout import ShardLayout
from gateway.queueing.shared.shared_queue import SharedQueue
from policies.queueing.protocol import TenantOrder, Ticket
from radix_cache.match import WorkerId


class QueueShards:
    """The shards as one queue; see SharedTurns."""

    def __init__(self, shards: Sequence[SharedQueue], messages: int, layout: ShardLayout) -> None:
        """`messages`: the number of the shard with the messages between gateways, which every gateway joins."""
        self._shards = shards
        self._messages = shards[messages]
        self.layout = layout

    @property
    def gateway(self) -> str:
        """This gateway's name among all gateways."""
        return self._messages.gateway

    @property
    def gateways(self) -> int:
        """How many gateways are alive."""
        return self._messages.gateways

    @property
    def is_alone(self) -> bool:
        """Whether this gateway is known to be the only one."""
        return self._messages.is_alone

    @property
    def shared(self) -> bool:
        """Whether all gateways give turns together, for every model that has workers."""
        return self._messages.shared and all(
            shard.shared for shard in self._shards if shard.membership.queues()
        )

    @property
    def shards(self) -> Sequence[SharedQueue]:
        """All shards, that with the messages between gateways first."""
        return [self._messages, *(shard for shard in self._shards if shard is not self._messages)]

    def of(self, queue: str, tenant: str = "") -> SharedQueue:
        """Return the shard of a tenant's requests in a queue, as of now."""
        return self._shards[self.layout.shard_of(queue, tenant)]

    @property
    def only_membership(self) -> None:
        """None: there is one for each shard."""
        return None

    def membership_of(self, queue: str, tenant: str = "") -> Membership:
        """Return this gateway's part among those that share the tenant's requests in the queue of this name."""
        return self.of(queue, tenant).membership

    def reconfigure(self, order: TenantOrder, hold: float | None, *, enabled: bool) -> None:
        """Follow these rules from now on; see SharedQueue."""
        for shard in self._shards:
            shard.reconfigure(order, hold, enabled=enabled)

    def ticket(
        self, ticket: Ticket, queue: str, kv_tokens: int, *, cost: float | None = None
    ) -> SharedTicket:
        """Return a ticket of the queue's shard; see SharedQueue."""
        return self.of(queue, ticket.tenant).ticket(ticket, queue, kv_tokens, cost=cost)

    def second_ticket(self, first: SharedTicket) -> SharedTicket:
        """Return another ticket of the same request, at no cost."""
        return self._shards[first.shard].second_ticket(first)

    async def turn(
        self,
        shared: SharedTicket,
        ticket: Ticket,
        routes: Callable[[], Sequence[SharedRoute]],
        waits: Callable[[], None],
    ) -> SharedPlacement:
        """Return a place in the request's turn; see SharedQueue. Raises TurnLost, NoWorker."""
        return await self._shards[shared.shard].turn(shared, ticket, routes, waits)

    def may_give(self, queue: str, tenant: str = "") -> bool:
        """Return whether a tenant's requests in a queue may have places without a call to Redis."""
        return self.of(queue, tenant).may_give(queue)

    def give(
        self,
        shared: SharedTicket,
        worker: WorkerId,
        uncached_tokens: int,
        room: WorkerRoom,
    ) -> bool:
        """Give a place without a call to Redis, and return whether there is one; see SharedQueue."""
        return self._shards[shared.shard].give(shared, worker, uncached_tokens, room)

    async def spare(self, shared: SharedTicket, routes: Sequence[SharedRoute]) -> SharedPlacement | None:
        """Return a place that no request of any gateway waits for; see SharedQueue."""
        return await self._shards[shared.shard].spare(shared, routes)

    def note_placed(self, shared: SharedTicket, worker: WorkerId, uncached_tokens: int) -> None:
        """Note a place that was given here, without the queue."""
        self._shards[shared.shard].note_placed(shared, worker, uncached_tokens)

    def note_first_token(self, shared: SharedTicket) -> None:
        """Note that the request's prefill is done."""
        self._shards[shared.shard].note_first_token(shared)

    def leave(self, shared: SharedTicket, cost_change: float) -> bool:
        """Note that a request has ended or waits no longer; see SharedQueue."""
        return self._shards[shared.shard].leave(shared, cost_change)

    def dismiss(self, error: Exception) -> None:
        """End all waits with this error."""
        for shard in self._shards:
            shard.dismiss(error)

    def fleet_changed(self) -> None:
        """Send all waiting requests to Redis again, to another shard where their model is in another group now."""
        for shard in self._shards:
            shard.requests.move_out(partial(self._is_elsewhere, shard))
            shard.fleet_changed()

    def _is_elsewhere(self, shard: SharedQueue, queue: str, tenant: str) -> bool:
        return self.of(queue, tenant) is not shard

    async def close(self) -> None:
        """Leave all shards: what this gateway holds is free at once."""
        await asyncio.gather(*(shard.close() for shard in self._shards))
