"""QueuePolicy and TenantOrder: the promises of the rules that say whose turn it is.

    waiting tickets --TenantOrder: the first of each tenant--> heads --QueuePolicy: which tenant--> turn

A policy works on a value: the shared counters as they are at one moment. It returns what it decided and the
counters as they should be afterwards; whoever holds the counters (one process, or Redis) applies them. It keeps
no state, reads no clock and does no I/O.

Work, not requests, is the measure: `Ticket.cost` is in cost units (see cost.py), charged at an estimate when the
turn is given and settled by what was used.

Every registered policy passes tests/conformance/test_queue_policy.py.
"""

from collections.abc import Collection, Mapping, Sequence
from heapq import nlargest
from typing import ClassVar, Protocol

import msgspec

TAGS_MAX = 1024
"""Of more tags than this the lower half is dropped: who received least for long is as one who comes anew."""


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a policy's own settings (`queueing.options`): typed, checked, refused with their path."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One waiting request.

    `number`: order of arrival. `weight`: the tenant's share. `cost`: estimated cost units. `uncached_tokens`,
    `cached_tokens`: of its prompt, at the worker that holds most of it; `worker`: which one that is.
    `arrived_at`, `deadline`: seconds on the clock that `now` is read from; no deadline, no hurry.
    `level`: of its class; of one tenant's tickets the lowest goes first.
    """

    number: int
    tenant: str
    cost: float
    arrived_at: float
    weight: float = 1.0
    deadline: float | None = None
    uncached_tokens: int = 0
    cached_tokens: int = 0
    service_class: str = "chat"
    level: int = 0
    worker: str = ""


class QueueCounters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the policy keeps between decisions: a virtual time, and tags (most policies: one a tenant)."""

    virtual_time: float = 0.0
    tags: Mapping[str, float] = msgspec.field(default_factory=dict)

    def moved(
        self,
        tags: Mapping[str, float],
        *,
        virtual_time: float | None = None,
        keep: Collection[str] = (),
    ) -> "QueueCounters":
        """With these tags instead. Of too many the highest half is left, and those that are to be kept."""
        merged = {**self.tags, **tags}
        if len(merged) > TAGS_MAX:
            kept = {name: merged[name] for name in keep if name in merged}
            merged = {**dict(nlargest(TAGS_MAX // 2, merged.items(), key=lambda item: item[1])), **kept}
        return QueueCounters(
            virtual_time=self.virtual_time if virtual_time is None else virtual_time, tags=merged
        )


class Turn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ticket that goes next, and the counters once it has gone."""

    ticket: Ticket
    counters: QueueCounters


class QueuePolicy(Protocol):
    name: ClassVar[str]
    options_type: ClassVar[type[QueueOptions]]

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        """A ticket joins those who wait already (a tenant that was idle may have to be lifted)."""
        ...

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> Turn | None:
        """Who goes now. `waiting`: all, or the first ticket of each tenant and class.

        None only if nobody waits: a policy never idles a free worker.
        """
        ...

    def settle(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        """What a request used differs from its ticket's cost by `cost_change` units."""
        ...


class TenantOrder(Protocol):
    name: ClassVar[str]

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        """Which of one tenant's tickets goes first. There is at least one."""
        ...
