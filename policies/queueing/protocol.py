"""QueuePolicy: the promise of a rule that says whose turn it is.

A policy works on a value: the shared counters as they are at one moment. It returns what it decided and the
counters as they should be afterwards; whoever holds the counters (one process, or Redis) applies them. It keeps
no state, reads no clock and does no I/O.

Work, not requests, is the measure: `Ticket.cost` is in cost units (uncached prompt tokens, cached ones at a
tenth, output tokens twice), charged at an estimate and settled by what was used.

Every registered policy passes tests/conformance/test_queue_policy.py.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec


class Ticket(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One waiting request.

    `number`: order of arrival. `weight`: the tenant's share. `cost`: estimated cost units.
    `arrived_at`, `deadline`: seconds on the clock that `now` is read from; no deadline, no hurry.
    """

    number: int
    tenant: str
    cost: float
    arrived_at: float
    weight: float = 1.0
    deadline: float | None = None


class QueueCounters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the policy keeps between decisions: a virtual time, and a tag per tenant."""

    virtual_time: float = 0.0
    tags: Mapping[str, float] = msgspec.field(default_factory=dict)


class Turn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ticket that goes next, and the counters once it has gone."""

    ticket: Ticket
    counters: QueueCounters


class QueuePolicy(Protocol):
    name: ClassVar[str]

    def arrive(self, counters: QueueCounters, ticket: Ticket) -> QueueCounters:
        """A ticket joins the queue (a tenant that was idle may have to be lifted)."""
        ...

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> Turn | None:
        """Who goes now. None only if nobody waits: a policy never idles a free worker."""
        ...

    def settle(
        self, counters: QueueCounters, tenant: str, weight: float, cost_change: float
    ) -> QueueCounters:
        """What a request used differs from its ticket's cost by `cost_change` units."""
        ...
