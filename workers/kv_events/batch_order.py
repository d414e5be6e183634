"""The order of an engine's batches: which number is expected, and what another number means.

number expected    the batch is next
number too high    a gap: the batches between are missing; LOST if the engine does not keep them any more
number too low     the engine has restarted, and counts from 0 again: RESTARTED

The engine has also restarted if it keeps another batch under the number of the last one received, with another
time. Clocks are not compared, since an engine's clock may step back.
"""

from collections.abc import Sequence
from enum import Enum

from radix_cache.events import EventBatch


class FeedNotice(Enum):
    """What a subscriber reports besides the batches."""

    RESTARTED = "restarted"
    """The engine restarted: everything known about its cache is obsolete."""
    LOST = "lost"
    """Batches are lost: what is known about the cache may be wrong."""
    CAUGHT_UP = "caught up"
    """All earlier batches that the engine keeps have been passed on. Reported once, before the live ones."""


class BatchOrder:
    """The numbers of one engine's batches, as far as they have been passed on."""

    def __init__(self) -> None:
        self.expected = 0
        """The number of the next batch."""
        self._last_at: float | None = None
        """When the last batch was published, by the engine's clock; None before the first, -1 after a restart."""
        self._replayed: dict[int, float] = {}
        """Times of the batches that the first replay brought, by their numbers."""

    def take(self, batch: EventBatch) -> EventBatch:
        """Return a batch that is passed on next; the one after it is expected then."""
        self.expected, self._last_at = batch.sequence + 1, batch.at
        return batch

    def restart(self) -> FeedNotice:
        """Expect the batches from 0 on, and return the notice of it."""
        self.expected, self._last_at = 0, -1.0
        return FeedNotice.RESTARTED

    def repeats(self, batch: EventBatch) -> bool:
        """Return whether a live batch came in the first replay already; after the first new one none does."""
        if self._replayed.get(batch.sequence) == batch.at:
            return True
        self._replayed = {}
        return False

    def is_last(self, batch: EventBatch) -> bool:
        """Return whether this is the batch that was passed on last."""
        return (batch.sequence, batch.at) == (self.expected - 1, self._last_at)

    def shows_restart(self, kept: Sequence[EventBatch]) -> bool:
        """Return whether the engine keeps another batch under the number of the last one."""
        return (
            bool(self.expected and kept)
            and kept[0].sequence == self.expected - 1
            and not self.is_last(kept[0])
        )

    def take_kept(self, kept: Sequence[EventBatch], until: int | None) -> list[EventBatch | FeedNotice]:
        """Return what is passed on of the batches that the engine keeps, up to number `until`, and notices.

        `until` is None when subscribing, for all of them. Then nothing after a hole is taken, and the hole is no
        loss yet: with the next live batch it is a gap, whose batches are requested again.
        """
        items: list[EventBatch | FeedNotice] = []
        if kept and self.expected and self.is_last(kept[0]):
            kept = kept[1:]
        if self._last_at is not None and kept and kept[0].sequence > self.expected:
            items.append(FeedNotice.LOST)
            self.expected = kept[0].sequence
        for number, batch in enumerate(kept):
            if number and batch.sequence != self.expected:
                break
            if until is None:
                self._replayed[batch.sequence] = batch.at
            elif batch.sequence >= until:
                break
            items.append(self.take(batch))
        if until is not None and self.expected < until:
            items.append(FeedNotice.LOST)
        return items
