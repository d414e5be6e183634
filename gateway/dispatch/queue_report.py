"""A report on the waiting rooms for operators: the waiting requests, and what each tenant received and is due.

Each gateway reports its own waiting rooms (`queue_report`); queue_reporter.py merges the reports of all gateways.
"""

import os
import socket
from collections import Counter
from collections.abc import Sequence

import msgspec

from gateway.dispatch.acquisition.queue_wait import waiting_reason
from gateway.dispatch.dispatch import Dispatch
from gateway.dispatch.placement import Placement
from gateway.queueing.waiting_room import WaitingRoom
from policies.queueing.protocol import Ticket
from policies.service_class import BATCH

WAITING_MAX = 200
"""Requests of a queue that a report lists at most, those that have waited longest first."""


class WaitingRequestReport(msgspec.Struct, kw_only=True):
    """A request that waits for a worker."""

    tenant: str
    service_class: str = msgspec.field(name="class")
    gateway: str
    """The gateway at which the request waits, as host name and process id."""
    waited_seconds: float
    target_in_seconds: float | None
    """Seconds until the first token is due by the service class; None without a target."""
    uncached_tokens: int
    cached_tokens: int
    cost: float
    """In the cost units of the queue policy."""
    why: str
    """Why the request still waits, in words."""


class TenantShareReport(msgspec.Struct, kw_only=True):
    """What one tenant has received of a queue's work, and what it was due."""

    tenant: str
    weight: float
    units: float
    """Recent work for the tenant, in cost units."""
    share: float
    """The tenant's part of the recent work for all tenants."""
    due: float
    """The tenant's part of the weights of all tenants that waited in the last minute; 0 if it did not wait."""
    waiting: int
    """Requests of the tenant that wait now."""


class ModelQueueReport(msgspec.Struct, kw_only=True):
    """One queue: the requests that wait for a model, and the tenants' shares."""

    queue: str
    model: str
    waiting: int
    waiting_tokens: int
    drain_units_per_second: float
    evenness: float
    """Jain's fairness index of the work that waiting tenants received, relative to their weights."""
    tenants: list[TenantShareReport]
    requests: list[WaitingRequestReport]


class QueueReport(msgspec.Struct, kw_only=True):
    """The queues of one or more gateways."""

    shared: bool
    """Whether all gateways keep one order of turns together."""
    gateways: int
    """Gateways that are alive."""
    answered: list[str]
    """The gateways that this report covers, as host name and process id."""
    preemptions: int
    """Batch requests that were preempted."""
    queues: list[ModelQueueReport]


def gateway_name() -> str:
    """Return the name by which reports call this gateway: host name and process id."""
    return f"{socket.gethostname()}/{os.getpid()}"


def queue_report(dispatch: Dispatch) -> QueueReport:
    """Return the report of this gateway."""
    queue, name = dispatch.queue, gateway_name()
    return QueueReport(
        shared=queue.shared,
        gateways=queue.gateways,
        answered=[name],
        preemptions=dispatch.preemption.count,
        queues=[_queue(*each, dispatch, name) for each in sorted(dispatch.rooms.all().items())],
    )


def _queue(name: str, room: WaitingRoom[Placement], dispatch: Dispatch, gateway: str) -> ModelQueueReport:
    now, waiting = dispatch.fleet.now(), sorted(room.waiting(), key=lambda ticket: ticket.arrived_at)
    counts = Counter(ticket.tenant for ticket in waiting)
    return ModelQueueReport(
        queue=name,
        model=room.model,
        waiting=len(waiting),
        waiting_tokens=room.tokens,
        drain_units_per_second=room.received.units_per_second(),
        evenness=room.received.evenness(),
        tenants=[
            TenantShareReport(**one._asdict(), waiting=counts[one.tenant])
            for one in room.received.account.tenant_shares(now)
        ],
        requests=[
            WaitingRequestReport(
                tenant=ticket.tenant,
                service_class=ticket.service_class,
                gateway=gateway,
                waited_seconds=now - ticket.arrived_at,
                target_in_seconds=ticket.deadline - now if ticket.deadline is not None else None,
                uncached_tokens=ticket.uncached_tokens,
                cached_tokens=ticket.cached_tokens,
                cost=ticket.cost,
                why=_why(ticket, waiting, dispatch, room),
            )
            for ticket in waiting[:WAITING_MAX]
        ],
    )


def _why(ticket: Ticket, waiting: Sequence[Ticket], dispatch: Dispatch, room: WaitingRoom[Placement]) -> str:
    before = sum(other.number < ticket.number for other in waiting)
    background = ticket.service_class == BATCH.name
    window = dispatch.window.of(room.model)
    is_narrow = dispatch.window.is_narrow(room, ticket.tenant, background=background)
    shared = dispatch.queue.membership_of(room.model, ticket.tenant).shared
    return waiting_reason(dispatch.fleet, room, ticket, before, window, is_narrow, shared)
