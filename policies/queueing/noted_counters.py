"""NotedCounters: counters of a queue policy that are changed in place by their keeper.

The counters of a queue are a value (protocol.py), which is copied whenever a policy changes it: the cost of a
request would grow with the number of tenants. These note what is to change, and their keeper sets it in the one
dictionary that all of them share.
"""

from collections.abc import Collection, Mapping

import msgspec

from policies.queueing.protocol import QueueCounters


class NotedCounters(QueueCounters, frozen=True, kw_only=True, gc=False):
    """Counters with changes that their keeper has still to apply to `tags`."""

    changes: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The tags that are to be set."""
    keep: Collection[str] = ()
    """Names of tags that the keeper must not drop when there are too many."""

    def with_tags(
        self,
        tags: Mapping[str, float],
        *,
        virtual_time: float | None = None,
        keep: Collection[str] = (),
    ) -> "NotedCounters":
        """Return the counters with these changes noted, and with `virtual_time` unless that is None."""
        changes = {**self.changes, **tags} if self.changes else tags
        moved = self.virtual_time if virtual_time is None else virtual_time
        return NotedCounters(virtual_time=moved, tags=self.tags, changes=changes, keep=keep)
