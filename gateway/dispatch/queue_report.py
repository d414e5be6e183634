"""Who waits, how long, why, and what each tenant has received against its share: for operators."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gateway.dispatch.placed import Placed
from gateway.dispatch.reservations import Reservations
from gateway.dispatch.waiting_room import WaitingRoom
from gateway.queue.keys import BATCH
from policies.queueing.protocol import Ticket

WAITING_MAX = 200
"""Requests that are listed, those that have waited longest first."""


def queue_report(reservations: Reservations) -> dict[str, Any]:
    """All queues of this gateway. What others have waiting they say themselves."""
    queue = reservations.queue
    return {
        "shared": queue.shared,
        "gateways": queue.gateways,
        "preemptions": reservations.preemptible.count,
        "queues": [_queue(name, room, reservations) for name, room in sorted(reservations.rooms().items())],
    }


def _queue(name: str, room: WaitingRoom[Placed], by: Reservations) -> dict[str, Any]:
    now, waiting = by.clock(), sorted(room.waiting(), key=lambda ticket: ticket.arrived_at)
    counts = Counter(ticket.tenant for ticket in waiting)
    behind = name.endswith(BATCH) and not room.goes_first
    return {
        "queue": name,
        "model": room.model,
        "waiting": len(waiting),
        "waiting_tokens": room.tokens,
        "drain_units_per_second": room.drained_per_second(),
        "evenness": room.evenness(),
        "tenants": [{**one._asdict(), "waiting": counts[one.tenant]} for one in room.account.received(now)],
        "requests": [
            {
                "tenant": ticket.tenant,
                "class": ticket.service_class,
                "waited_seconds": now - ticket.arrived_at,
                "target_in_seconds": ticket.deadline - now if ticket.deadline is not None else None,
                "uncached_tokens": ticket.uncached_tokens,
                "cached_tokens": ticket.cached_tokens,
                "cost": ticket.cost,
                "why": "others go before batch work" if behind else _why(ticket, waiting, by, room.model),
            }
            for ticket in waiting[:WAITING_MAX]
        ],
    }


def _why(ticket: Ticket, waiting: Sequence[Ticket], by: Reservations, model: str) -> str:
    able = by.fleet.serving(model)
    if not able:
        return "no worker serves the model now"
    window = by.queue.share_of(by.bounds.release_window_tokens)
    if all(worker.load.all_tokens_queued + ticket.uncached_tokens > window for worker in able):
        return "no worker has room for its prompt"
    before = sum(other.number < ticket.number for other in waiting)
    return f"{before} came before it" if before else "its turn is being given"
