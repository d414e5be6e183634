"""A request that enters the queue: what a queue policy gets of it. With a number it is a Ticket."""

import msgspec

from policies.queueing.protocol import Ticket


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a queue policy gets of a request; the fields are those of Ticket."""

    tenant: str
    cost: float
    weight: float = 1.0
    uncached_tokens: int = 0
    cached_tokens: int = 0
    worker: str = ""
    deadline: float | None = None
    service_class: str = "chat"
    level: int = 0
    target_seconds: float = 0.0
    work_share: float = 0.0


def ticket_of(asked: QueuedRequest, number: int, arrived_at: float) -> Ticket:
    """Return the ticket of a request: it came as the room's request of this number, at this moment."""
    return Ticket(
        number=number,
        tenant=asked.tenant,
        cost=asked.cost,
        weight=asked.weight,
        uncached_tokens=asked.uncached_tokens,
        cached_tokens=asked.cached_tokens,
        worker=asked.worker,
        deadline=asked.deadline,
        service_class=asked.service_class,
        level=asked.level,
        target_seconds=asked.target_seconds,
        work_share=asked.work_share,
        arrived_at=arrived_at,
    )


def with_estimate(ticket: Ticket, asked: QueuedRequest) -> Ticket:
    """Return a ticket with the tokens and the cost of a later estimate."""
    return msgspec.structs.replace(
        ticket,
        cost=asked.cost,
        uncached_tokens=asked.uncached_tokens,
        cached_tokens=asked.cached_tokens,
        worker=asked.worker,
    )
