"""Assembles the shared prefix index of one gateway process, with as many blocks as its memory may hold."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial

from gateway.settings.stores import IndexSettings
from radix_cache.follower import PAGE_BYTES, PageBudget
from radix_cache.machine.corrections import CorrectionReader, CorrectionWriter
from radix_cache.machine.mapped_reader import MappedReader
from radix_cache.machine.mapped_replica import MappedReplica
from radix_cache.machine.published_replica import PublishedReplica
from radix_cache.machine.publisher import Publisher, free_segment
from radix_cache.machine.segment import IndexMemory, IndexSegment
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.feed_lease_store import FeedLeaseStore
from radix_cache.shared.index_maintenance import IndexMaintenance
from radix_cache.shared.keys import Keys
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.replica_reader import ReplicaReader
from radix_cache.shared.shared_index import SharedIndex
from radix_cache.shared.tree_store import TreeStore

log = logging.getLogger(__name__)

BLOCK_BYTES, NODE_BYTES = 16, 1152
"""The memory that the process needs for each block and node; Redis needs less.

`make bench-index` measures 8.9 to 16 bytes for each block of a run, and 950 to 1,100 for each node.
"""

NODE_BLOCKS = NODE_BYTES // BLOCK_BYTES

FOLLOWERS_SHARE = 2
"""The divisor of the index's memory that gives the memory for pages of followed workers, in addition to it."""

OWN_SHARE = 4
"""The divisor of the index's blocks that bounds the changes which the replica does not show yet, and likewise the
paths learnt while Redis is away.
"""

LOAD_SECONDS_MAX = 1.0
"""How long a starting gateway waits for the index; `make bench-index` loads five million blocks in 0.8 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedIndexParts:
    """The parts of the shared index; the gateway has to run `reader.follow` and the loops of `loops`."""

    index: SharedIndex
    reader: ReplicaReader | MappedReader
    maintenance: IndexMaintenance
    feed_leases: FeedLeaseStore
    page_budget: PageBudget
    scripts: ScriptCaller
    publisher: Publisher | None = None
    """Publishes the index to the other processes of the machine; None in those, and where there are none."""
    corrections: CorrectionReader | CorrectionWriter | None = None

    @classmethod
    def create(
        cls,
        redis_url: str,
        prefix: str,
        settings: IndexSettings,
        memory: IndexMemory | None = None,
        is_alone: Callable[[], bool] = lambda: False,
    ) -> "SharedIndexParts":
        """Create the parts for the index in this Redis, without connecting yet.

        `memory` is the memory that this process shares with others of its machine; None: it has its own copy.
        `is_alone`: see SharedIndex.
        """
        blocks_max = max(1, settings.memory_bytes_max // BLOCK_BYTES)
        scripts, identity = ScriptCaller(redis_url), os.urandom(8)
        keys = Keys.of_redis(redis_url, prefix)
        store = TreeStore(scripts, keys)
        segments = _segments(memory)
        segment = free_segment(segments) if memory is not None and memory.writes else None
        replica = _replica(settings, memory, segment)
        index = SharedIndex(
            store,
            replica,
            time.monotonic,
            blocks_max=max(1, blocks_max // OWN_SHARE),
            node_blocks=NODE_BLOCKS,
            predicted_seconds=settings.predicted_seconds,
            idle_seconds_max=settings.idle_seconds_max,
            identity=identity,
            is_alone=is_alone,
        )
        reader = _reader(index, replica, scripts, keys, segments)
        maintenance = IndexMaintenance(
            scripts,
            store,
            replica,
            blocks_max=blocks_max,
            node_blocks=NODE_BLOCKS,
            idle_seconds_max=settings.idle_seconds_max,
            lost_shards=lambda: reader.lost_shards,
            identity=identity,
        )
        publisher = (
            Publisher(segments, segment, replica, lambda: reader.lost_shards)
            if segment is not None and isinstance(replica, PublishedReplica)
            else None
        )
        return cls(
            index=index,
            reader=reader,
            maintenance=maintenance,
            feed_leases=FeedLeaseStore(
                scripts, keys, identity, follows=not isinstance(replica, MappedReplica)
            ),
            page_budget=PageBudget(settings.memory_bytes_max // FOLLOWERS_SHARE // PAGE_BYTES),
            scripts=scripts,
            publisher=publisher,
            corrections=_corrections(index, memory),
        )

    @property
    def keeps_copy(self) -> bool:
        """Whether this process has its own copy of the index; if so, it also maintains it and follows workers."""
        return not isinstance(self.reader, MappedReader)

    def loops(self) -> Iterator[tuple[str, Callable[[], Coroutine[None, None, None]]]]:
        """Yield the loops that have to run beside `reader.follow`, by name."""
        if self.keeps_copy:
            yield "index keeper", self.maintenance.run
        if self.publisher is not None:
            yield "index of the machine", partial(self.publisher.run, self.reader.ready)

    @property
    def memory_bytes(self) -> int:
        """About how much memory the replica takes, in bytes; 0 where it is that of another process."""
        if not self.keeps_copy:
            return 0
        return self.index.replica.blocks * BLOCK_BYTES + len(self.index.replica.nodes) * NODE_BYTES

    async def wait_until_loaded(self) -> None:
        """Wait up to LOAD_SECONDS_MAX until the replica shows the whole tree or Redis turns out to be away.

        With a larger index the gateway starts to serve earlier, and routes by load and by the shards read so far.
        """
        try:
            async with asyncio.timeout(LOAD_SECONDS_MAX):
                await self.reader.ready.wait()
        except TimeoutError:
            log.info("the prefix index is still being read; until then requests are routed by load")

    async def close(self) -> None:
        """Close the connections to Redis and to other processes."""
        if self.corrections is not None:
            self.corrections.close()
        await self.scripts.close()


def _reader(
    index: SharedIndex,
    replica: TreeReplica,
    scripts: ScriptCaller,
    keys: Keys,
    segments: list[IndexSegment],
) -> ReplicaReader | MappedReader:
    """Return what keeps the replica up to date: from Redis, or from the memory that another process writes."""
    if isinstance(replica, MappedReplica):
        return MappedReader(
            scripts, keys, replica, segments, changed=index.replica_changed, checked=index.replica_compared
        )
    changed: Callable[[], None] = index.replica_changed
    if isinstance(replica, PublishedReplica):
        changed = partial(_publish, replica, index)
    return ReplicaReader(scripts, keys, replica, changed=changed, checked=index.replica_compared)


def _publish(replica: PublishedReplica, index: SharedIndex) -> None:
    """Show a change of the replica to the other processes of the machine, and to the index here."""
    replica.publish()
    index.replica_changed()


def _segments(memory: IndexMemory | None) -> list[IndexSegment]:
    if memory is None:
        return []
    return [IndexSegment(descriptor, writable=memory.writes) for descriptor in memory.descriptors]


def _replica(
    settings: IndexSettings, memory: IndexMemory | None, segment: IndexSegment | None
) -> TreeReplica:
    """Return the kind of replica that fits the memory shared with other processes; `segment` is one to write."""
    if segment is not None:
        return PublishedReplica(time.monotonic, settings.predicted_seconds, segment)
    replica = TreeReplica if memory is None else MappedReplica
    return replica(time.monotonic, settings.predicted_seconds)


def _corrections(
    index: SharedIndex, memory: IndexMemory | None
) -> CorrectionReader | CorrectionWriter | None:
    """Return the sender of corrections to the process that keeps the copy, or in that process their receiver."""
    if memory is None:
        return None
    if not memory.writes:
        sender = CorrectionWriter(memory.corrections)
        index.correct = sender.send
        return sender
    index.cuts_all = True
    receiver = CorrectionReader(memory.corrections, index.shorten_and_hold)
    receiver.start()
    return receiver
