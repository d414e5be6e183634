"""Publishes the index of a machine's first process in a segment, which becomes visible once it is complete."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from radix_cache.machine.published_replica import PublishedReplica
from radix_cache.machine.segment import (
    ALIVE_AT,
    BYTES_NEEDED,
    GENERATION,
    LOST_SHARDS,
    IndexSegment,
    order_stores,
)

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 0.1
NAMESPACES_ROUNDS = 20
CLEARED_AFTER_SECONDS = 1.0
"""How long other processes may still read a replaced segment before it is cleared."""


def free_segment(segments: Collection[IndexSegment]) -> IndexSegment:
    """Clear and return a segment that is not the newest complete one."""
    oldest = min(segments, key=lambda segment: segment.generation)
    oldest.clear()
    return oldest


class Publisher:
    """Publishes a segment once it is complete, and the time of its writer; run `run` until the process stops.

    Args:
        segments: All segments of the machine.
        segment: The segment that `replica` is written to.
        replica: The replica that is published.
        lost_shards: Returns the shards that the replica cannot follow.
    """

    def __init__(
        self,
        segments: Collection[IndexSegment],
        segment: IndexSegment,
        replica: PublishedReplica,
        lost_shards: Callable[[], Collection[int]],
    ) -> None:
        self._segments = segments
        self._segment = segment
        self._replica = replica
        self._lost_shards = lost_shards
        self._full = False

    async def run(self, ready: asyncio.Event) -> None:
        """Publish until cancelled; show the segment once the replica is `ready`."""
        rounds = 0
        while True:
            if ready.is_set():
                self._publish(with_namespaces=rounds % NAMESPACES_ROUNDS == 0)
                if not self._segment.generation:
                    await self._show()
                rounds += 1
            await asyncio.sleep(PUBLISH_SECONDS)

    def _publish(self, *, with_namespaces: bool) -> None:
        self._replica.expire()
        self._replica.publish()
        if with_namespaces:
            self._replica.publish_namespaces()
        words = self._segment.words
        words[LOST_SHARDS] = bool(self._lost_shards())
        words[ALIVE_AT] = time.monotonic_ns()
        if words[BYTES_NEEDED] and not self._full:
            self._full = True
            log.warning(
                "the shared memory of the prefix index is full (index.memory_bytes_max): the other processes of "
                "this machine do not have all prefixes"
            )

    async def _show(self) -> None:
        order_stores()
        self._segment.words[GENERATION] = 1 + max(segment.generation for segment in self._segments)
        await asyncio.sleep(CLEARED_AFTER_SECONDS)
        for segment in self._segments:
            if segment is not self._segment:
                segment.clear()
