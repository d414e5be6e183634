"""The tags of start-time fair queueing for very many tenants: no operation goes through all of them.

Redis changes the counters of its queue in place, and so do these: NotedCounters notes what is to change, `apply`
changes it.
"""

from collections.abc import Generator
from heapq import heappop, heappush, nsmallest

from policies.queueing.noted_counters import NotedCounters
from policies.queueing.protocol import QueueCounters

TAGS_MAX, DROPPED = 10_000, 100
"""Of more tags than this, so many of the least are dropped: as gateway/queueing/shared/lua/tenants.lua does."""


class TenantsByTag:
    """The waiting tenants in the order of their tags; one without a tag is at the virtual time."""

    def __init__(self) -> None:
        self._tags: dict[str, float] = {}
        self.counters: QueueCounters = NotedCounters(tags=self._tags)
        self._waiting: dict[str, float | None] = {}
        self._untagged: set[str] = set()
        self._heap: list[tuple[float, str]] = []
        """An entry is outdated if it does not have its tenant's tag in `_waiting`."""

    def apply(self, counters: QueueCounters) -> None:
        """Take over changed counters."""
        assert isinstance(counters, NotedCounters)
        self._tags.update(counters.changes)
        moved = list(counters.changes)
        if len(self._tags) > TAGS_MAX:
            dropped = nsmallest(DROPPED, self._tags, key=self._tags.__getitem__)
            for tenant in dropped:
                del self._tags[tenant]
            moved += dropped
        self.counters = NotedCounters(virtual_time=counters.virtual_time, tags=self._tags)
        for tenant in moved:
            if tenant in self._waiting:
                self.wait(tenant)

    def wait(self, tenant: str) -> None:
        """Put a tenant in order that waits, or whose tag has changed."""
        tag = self._waiting[tenant] = self._tags.get(tenant)
        if tag is None:
            self._untagged.add(tenant)
        else:
            self._untagged.discard(tenant)
            heappush(self._heap, (tag, tenant))

    def leave(self, tenant: str) -> None:
        """Leave a tenant out that waits no longer."""
        del self._waiting[tenant]
        self._untagged.discard(tenant)

    def in_order(self) -> Generator[list[str], None, None]:
        """Return the waiting tenants, each time all those with the least tag of the rest; end it with `close`."""
        kept: list[tuple[float, str]] = []
        untagged, at = list(self._untagged), self.counters.virtual_time
        heap, seen = self._heap, set[str]()
        try:
            while True:
                while heap and (self._waiting.get(heap[0][1]) != heap[0][0] or heap[0][1] in seen):
                    heappop(heap)
                if not heap and not untagged:
                    return
                least = min(heap[0][0], at) if heap and untagged else heap[0][0] if heap else at
                found: list[str] = []
                while heap and heap[0][0] == least:
                    entry = heappop(heap)
                    if self._waiting.get(entry[1]) == entry[0] and entry[1] not in seen:
                        seen.add(entry[1])
                        kept.append(entry)
                        found.append(entry[1])
                if untagged and at == least:
                    found += untagged
                    untagged = []
                yield found
        finally:
            for entry in kept:
                heappush(heap, entry)
