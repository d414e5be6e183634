"""QueuePolicy and TenantOrder, the interfaces of rules that order waiting requests, and the values they take.

    waiting tickets --TenantOrder: the first of each tenant--> heads --QueuePolicy: which tenant--> QueueTurn

A policy works on a value: the shared counters as they are at one moment. It returns what it decided and the
counters as they should be afterwards; the store of the counters (one process, or Redis) applies them. A policy
keeps no state, reads no clock and does no I/O.

Work, not the number of requests, is the measure: `Ticket.cost` is in cost units (see cost_weights.py), charged at
an estimate when the turn is given and corrected by what was used.

Every registered policy passes tests/conformance/test_queue_policy.py.
"""

from collections.abc import Collection, Mapping, Sequence
from heapq import nlargest
from typing import ClassVar, Protocol

import msgspec

TAGS_MAX = 1024
"""Number of tags above which the lower half is dropped: a tenant that received least for long is as good as new."""


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a policy's own settings (`queueing.options`): typed and checked; an error names its path."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One waiting request, the input of a queue policy."""

    number: int
    """Order of arrival."""
    tenant: str
    cost: float
    """Estimated cost units."""
    arrived_at: float
    """Arrival, in seconds on the clock that `now` is read from."""
    weight: float = 1.0
    """The tenant's share, relative to other tenants."""
    deadline: float | None = None
    """When the first token is due, on the same clock; None: no deadline."""
    uncached_tokens: int = 0
    """Prompt tokens to compute, on the worker that holds most of the prompt."""
    cached_tokens: int = 0
    """Prompt tokens that are cached on that worker."""
    service_class: str = "chat"
    level: int = 0
    """Urgency of its class: of one tenant's tickets, and of those that a policy ties, the lowest goes first."""
    target_seconds: float = 0.0
    """The TTFT target of its class."""
    work_share: float = 0.0
    """Its tenant's share of the work of the last seconds, with it; 0: its tenant was the only one in sight."""
    worker: str = ""
    """The worker that holds most of the prompt."""
    awaits: str = ""
    """The worker of its own that it waits for (awaited_tokens.py); empty: any good one will do."""


class QueueCounters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a queue policy keeps between decisions: a virtual time, and tags (mostly one for each tenant)."""

    virtual_time: float = 0.0
    tags: Mapping[str, float] = msgspec.field(default_factory=dict)

    def with_tags(
        self,
        tags: Mapping[str, float],
        *,
        virtual_time: float | None = None,
        keep: Collection[str] = (),
    ) -> "QueueCounters":
        """Return the counters with these tags set, and with `virtual_time` unless that is None.

        Read tags from the counters that a policy is given: with many tenants the returned ones may only note what
        is to be set (noted_counters.py). If there are more than TAGS_MAX tags, only the highest half and those
        named in `keep` are left.
        """
        merged = {**self.tags, **tags}
        if len(merged) > TAGS_MAX:
            merged = highest_tags(merged, keep)
        return QueueCounters(
            virtual_time=self.virtual_time if virtual_time is None else virtual_time, tags=merged
        )


def highest_tags(tags: Mapping[str, float], keep: Collection[str] = ()) -> dict[str, float]:
    """Return the highest TAGS_MAX / 2 tags, and those named in `keep`."""
    kept = {name: tags[name] for name in keep if name in tags}
    return {**dict(nlargest(TAGS_MAX // 2, tags.items(), key=lambda item: item[1])), **kept}


class QueueTurn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ticket that goes next, and the counters once it has gone."""

    ticket: Ticket
    counters: QueueCounters


class QueuePolicy(Protocol):
    """A rule that chooses the tenant with the next turn; see the top of this file."""

    name: ClassVar[str]
    options_type: ClassVar[type[QueueOptions]]

    def arrive(self, counters: QueueCounters, ticket: Ticket, waiting: Sequence[Ticket]) -> QueueCounters:
        """Return the counters after a ticket joined those that wait already.

        A tenant that was idle may have to be lifted, so that idle time earns it no credit.
        """
        ...

    def next(self, counters: QueueCounters, waiting: Sequence[Ticket], now: float) -> QueueTurn | None:
        """Return which ticket goes now. `waiting` has all tickets, or the first one of each tenant and class.

        None only if no ticket waits: a policy never idles a free worker.
        """
        ...

    def correct(self, counters: QueueCounters, ticket: Ticket, cost_change: float) -> QueueCounters:
        """Return the counters after a request used `cost_change` cost units more than its ticket's cost."""
        ...


class TenantOrder(Protocol):
    """A rule that chooses which of one tenant's waiting requests goes first."""

    name: ClassVar[str]

    def first(self, waiting: Sequence[Ticket], now: float) -> Ticket:
        """Return which of one tenant's tickets goes first. There is at least one."""
        ...
