"""SharedTurns: the turns that all gateways give together, decided in one place or in the shards of a cluster."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gateway.queueing.shared.membership import Membership
from gateway.queueing.shared.queue_messages import SharedPlacement, SharedRoute, SharedTicket, WorkerRoom
from policies.queueing.protocol import TenantOrder, Ticket
from radix_cache.match import WorkerId

if TYPE_CHECKING:
    from gateway.queueing.shared.shared_queue import SharedQueue


class SharedTurns(Protocol):
    """The queue of all gateways, as the requests of one gateway use it; SharedQueue explains the methods."""

    @property
    def gateway(self) -> str:
        """This gateway's name among all gateways."""
        ...

    @property
    def gateways(self) -> int:
        """How many gateways are alive."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether this gateway is known to be the only one."""
        ...

    @property
    def shared(self) -> bool:
        """Whether all gateways give turns together, for every model."""
        ...

    @property
    def shards(self) -> "Sequence[SharedQueue]":
        """The parts of the queue that are decided apart; the one with the messages between gateways comes first."""
        ...

    @property
    def only_membership(self) -> Membership | None:
        """The membership of all queues where they are decided in one place; None for shards."""
        ...

    def membership_of(self, queue: str, tenant: str = "") -> Membership:
        """Return this gateway's part among those that share the tenant's requests in the queue of this name."""
        ...

    def reconfigure(self, order: TenantOrder, hold: float | None, *, enabled: bool) -> None:
        """Follow these rules from now on."""
        ...

    def ticket(
        self, ticket: Ticket, queue: str, kv_tokens: int, *, cost: float | None = None
    ) -> SharedTicket:
        """Return a ticket under a name that no other ticket has."""
        ...

    def second_ticket(self, first: SharedTicket) -> SharedTicket:
        """Return another ticket of the same request, at no cost."""
        ...

    async def turn(
        self,
        shared: SharedTicket,
        ticket: Ticket,
        routes: Callable[[], Sequence[SharedRoute]],
        waits: Callable[[], None],
    ) -> SharedPlacement:
        """Return a place in the request's turn. Raises TurnLost, NoWorker."""
        ...

    def may_give(self, queue: str, tenant: str = "") -> bool:
        """Return whether a tenant's requests in a queue may have places without a call to Redis."""
        ...

    def give(
        self,
        shared: SharedTicket,
        worker: WorkerId,
        uncached_tokens: int,
        room: WorkerRoom,
    ) -> bool:
        """Give a place without a call to Redis, and return whether there is one."""
        ...

    async def spare(self, shared: SharedTicket, routes: Sequence[SharedRoute]) -> SharedPlacement | None:
        """Return a place that no request of any gateway waits for."""
        ...

    def note_placed(self, shared: SharedTicket, worker: WorkerId, uncached_tokens: int) -> None:
        """Note a place that was given here, without the queue."""
        ...

    def note_first_token(self, shared: SharedTicket) -> None:
        """Note that the request's prefill is done."""
        ...

    def leave(self, shared: SharedTicket, cost_change: float) -> bool:
        """Note that a request has ended or waits no longer; False if the caller has to correct its cost itself."""
        ...

    def dismiss(self, error: Exception) -> None:
        """End all waits with this error."""
        ...

    def fleet_changed(self) -> None:
        """Send all waiting requests to Redis again: their routes have changed."""
        ...

    async def close(self) -> None:
        """Leave: what this gateway holds is free at once."""
        ...
