"""The values that gateways and the shared queue in Redis exchange, and their form as arguments and answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.fleet.loads import Loads
from policies.cell_turns import QueueProgress
from policies.others_load import LoadTotals
from radix_cache.match import WorkerId
from radix_cache.redis.call import CommandArgument


class SharedRoute(msgspec.Struct, frozen=True, gc=False):
    """A worker that may serve a request, what it would have to compute, and the cost of waiting for it.

    The cost in ms is `fixed_ms`, and `ms_per_token` for every token that is queued there when the turn is given, as
    tokens_counted of policies/latency_model.py counts them.
    """

    worker: WorkerId
    uncached_tokens: int
    fixed_ms: float
    ms_per_token: float = 0.0
    queued_tokens: int = 0
    """Tokens queued there by this gateway's counts. Where several shards use the worker, they are its queue."""
    slots: int = 0
    """Requests that the worker runs at a time; 0: not known."""
    computed_tokens: int = 0
    """Of the queued tokens, those that `fixed_ms` takes off as computed."""


class WorkerRoom(msgspec.Struct, frozen=True, gc=False):
    """The room on a worker, by the loads that this gateway has, before it gives a place there by itself."""

    ahead: int
    """Tokens that are queued at the worker."""
    window_tokens: int
    """The window of the worker for the request."""
    ms_per_token: float
    """The worker's prefill time of one token."""


class SharedTicket(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that waits for its turn in the queue of all gateways."""

    id: str
    """The gateway's name, a colon, a number."""
    queue: str
    tenant: str
    weight: float
    cost: float
    kv_tokens: int
    target_seconds: float = 0.0
    """The TTFT target of its class."""
    work_share: float = 0.0
    """As of policies.queueing.protocol.Ticket."""
    shard: int = 0
    """The number of the shard that decides on it; see queue_shards.py."""


class SharedPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A ticket that has a place on a worker."""

    ticket: SharedTicket
    worker: WorkerId
    uncached_tokens: int
    """Tokens in the worker's prefill queue; 0 once the first token has come."""


class TenantCharge(msgspec.Struct, gc=False):
    """What a tenant is to be charged with in a queue, for places that this gateway gave by itself.

    In cost units over the tenant's weight.
    """

    queue: str
    tenant: str
    cost: float = 0.0
    """The cost of new turns."""
    change: float = 0.0
    """What requests used beyond the cost that was charged before."""


class QueueReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a call. Fields that the function does not return have their defaults."""

    outcome: int
    """The outcome; its meaning is that of the method of QueueStore that made the call."""
    due_seconds: float | None
    """Seconds until it has to be checked whether a turn was claimed; None: never."""
    gateways: int
    """How many gateways are alive."""
    loads: Loads = {}
    id: str = ""
    worker: WorkerId | None = None
    uncached_tokens: int = 0
    virtual_time: float = 0.0
    finish: float = 0.0
    """The finish tag of the ticket's tenant."""
    dead: tuple[str, ...] = ()
    """Gateways whose lease is over."""
    waiting: tuple[int, ...] = ()
    """How many tenants wait in the queue of the ticket, or in each of the queues of the call."""
    tags: tuple[tuple[float, float], ...] = ()
    """The virtual time and the finish tag of each tenant that was charged."""


class CellState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What this cell has under way, for other cells."""

    loads: Loads = {}
    progress: Mapping[str, QueueProgress] = {}
    """By queue."""


def reply_of(answer: Any) -> QueueReply:
    """Return what every answer begins with, as a reply."""
    outcome, due_ms, gateways = answer[:3]
    return QueueReply(outcome=outcome, due_seconds=due_ms / 1000 if due_ms >= 0 else None, gateways=gateways)


def loads_of(flat: Sequence[Any]) -> Loads:
    """Return the loads of workers from an answer: the worker and three numbers, one after another."""
    return {WorkerId(flat[at].decode()): LoadTotals(*flat[at + 1 : at + 4]) for at in range(0, len(flat), 4)}


def ticket_fields(ticket: SharedTicket) -> tuple[CommandArgument, ...]:
    """Return a ticket as the script reads it, without its queue, which is an argument of the call."""
    asked = (ticket.id, ticket.tenant, ticket.weight, ticket.cost, ticket.kv_tokens)
    return (*asked, ticket.target_seconds, ticket.work_share)


def placement_fields(place: SharedPlacement) -> tuple[CommandArgument, ...]:
    """Return a placement as the script reads it."""
    ticket = place.ticket
    return (
        *(ticket.id, ticket.queue, ticket.tenant, ticket.weight, ticket.cost, ticket.kv_tokens),
        *(place.worker, place.uncached_tokens),
    )


def route_fields(routes: Sequence[SharedRoute]) -> list[CommandArgument]:
    """Return routes as the script reads them: how many, and their fields one after another."""
    flat: list[CommandArgument] = [len(routes)]
    for route in routes:
        flat += [route.worker, route.uncached_tokens, route.fixed_ms, route.ms_per_token, route.slots]
        flat += [route.computed_tokens, route.queued_tokens]
    return flat
