"""Keeps a MappedReplica up to date: reads the registry of workers from Redis, the rest from shared memory.

While the writer of the shared memory is dead, or does not follow Redis, all shards count as lost. Matches continue
on the last state, and this process keeps what it learns in its own memory, as it does while Redis is away.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence

from radix_cache.machine.mapped_replica import MappedReplica
from radix_cache.machine.segment import ALIVE_AT, LOST_SHARDS, IndexSegment
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import REGISTRY, Keys
from radix_cache.shared.replica_reader import CHECK_SECONDS, ReplicaReader

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
ALIVE_SECONDS = 3.0
"""A writer that has not published for this long counts as dead."""


class MappedReader:
    """Follows the segments of the machine; run `follow` until the process stops.

    Args:
        redis: The Redis server or cluster.
        keys: The names of the keys.
        replica: The replica to keep up to date.
        segments: All segments of the machine.
        changed: Called after changes.
        checked: Called with the shards that are lost, at every comparison and when they change.
        check_seconds: How often the registry is compared with Redis.
    """

    def __init__(
        self,
        redis: ScriptCaller,
        keys: Keys,
        replica: MappedReplica,
        segments: Sequence[IndexSegment],
        *,
        changed: Callable[[], None] = lambda: None,
        checked: Callable[[Collection[int]], None] = lambda lost_shards: None,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self.ready = asyncio.Event()
        self.snapshots = self.gaps = 0
        self._keys = keys
        self._replica = replica
        self._segments = segments
        self._changed = changed
        self._checked = checked
        self._all_shards = frozenset((REGISTRY, *range(keys.shards)))
        self._registry = ReplicaReader(
            redis,
            keys,
            replica,
            changed=changed,
            checked=lambda lost_shards: self._check(),
            check_seconds=check_seconds,
            shards=(REGISTRY,),
        )
        self._used: IndexSegment | None = None
        self._generation = 0
        self._writer_up = False
        self._warned = False
        """Whether it was logged that the writer is not up."""

    @property
    def lost_shards(self) -> Collection[int]:
        """The shards of which the replica may be outdated."""
        return frozenset() if self._writer_up and self._registry.up else self._all_shards

    @property
    def up(self) -> bool:
        """Whether the replica shows all shards as they are."""
        return not self.lost_shards

    async def follow(self) -> None:
        """Keep the replica up to date until cancelled."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._registry.follow())
            loops.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        """Use the newest segment, take over its progress, and check whether its writer is alive."""
        newest = max(self._segments, key=lambda segment: segment.generation)
        if newest.generation and newest.generation != self._generation:
            self._generation, self._used = newest.generation, newest
            self._replica.use(newest)
            log.info("the prefix index is matched in the memory that the processes of this machine share")
        was_up, self._writer_up = self._writer_up, self._is_writer_up()
        if self._replica.refresh(self._keys.shards):
            self._changed()
        if was_up != self._writer_up:
            self._replica.set_current(is_current=self._writer_up)
            if not self._writer_up:
                log.warning("the first process of this machine does not keep the prefix index up to date")
            elif self._warned:
                log.info("the first process of this machine keeps the prefix index up to date again")
            self._warned = not self._writer_up
            self._check()
        if self._used is not None and self._registry.ready.is_set():
            self.ready.set()

    def _is_writer_up(self) -> bool:
        used = self._used
        if used is None or used.words[LOST_SHARDS]:
            return False
        return time.monotonic_ns() - used.words[ALIVE_AT] < ALIVE_SECONDS * 1e9

    def _check(self) -> None:
        self._checked(self.lost_shards)
