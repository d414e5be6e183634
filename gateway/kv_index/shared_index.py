"""The parts of the shared prefix index, put together for one gateway process."""

import asyncio
import logging
import os
import time
from dataclasses import dataclass

from gateway.settings.stores import IndexSettings
from radix_cache.follower import PAGE_BYTES, PageBudget
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.feed_leases import FeedLeaseStore
from radix_cache.shared.index_maintenance import IndexMaintenance
from radix_cache.shared.keys import Keys
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.replica_reader import ReplicaReader
from radix_cache.shared.shared_index import SharedIndex
from radix_cache.shared.tree_store import TreeStore

log = logging.getLogger(__name__)

BLOCK_BYTES, NODE_BYTES = 16, 1152
"""Of the process; Redis needs less. `make bench-index`: 8.9 to 16 bytes a block of a run, 950 to 1,100 a node."""

FOLLOWERS_SHARE = 2
"""What this process keeps of the caches whose events it follows may take half of that, beside the index itself."""

WHOLE_SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedIndexParts:
    """`index` answers and is told; `reader.follow` and `maintenance.run` are its loops."""

    index: SharedIndex
    reader: ReplicaReader
    maintenance: IndexMaintenance
    feed_leases: FeedLeaseStore
    room: PageBudget
    scripts: ScriptCaller

    @classmethod
    def at(cls, redis_url: str, prefix: str, settings: IndexSettings) -> "SharedIndexParts":
        """The index in this Redis. Nothing is connected yet."""
        blocks_max = max(1, settings.memory_bytes_max // BLOCK_BYTES)
        scripts = ScriptCaller(redis_url)
        keys = Keys(prefix=prefix)
        store = TreeStore(scripts, keys)
        replica = TreeReplica(time.monotonic, settings.predicted_seconds)
        index = SharedIndex(
            store,
            replica,
            time.monotonic,
            blocks_max=blocks_max,
            predicted_seconds=settings.predicted_seconds,
            idle_seconds_max=settings.idle_seconds_max,
        )
        reader = ReplicaReader(scripts, keys, replica, changed=index.replica_changed, checked=index.replica_compared)
        maintenance = IndexMaintenance(
            scripts,
            store,
            replica,
            blocks_max=blocks_max,
            node_blocks=NODE_BYTES // BLOCK_BYTES,
            idle_seconds_max=settings.idle_seconds_max,
            lost_shards=lambda: reader.lost_shards,
        )
        feed_leases = FeedLeaseStore(scripts, keys, os.urandom(8))
        room = PageBudget(settings.memory_bytes_max // FOLLOWERS_SHARE // PAGE_BYTES)
        return cls(
            index=index, reader=reader, maintenance=maintenance, feed_leases=feed_leases, room=room, scripts=scripts
        )

    @property
    def memory_bytes(self) -> int:
        """Of the copy, about."""
        return self.index.replica.blocks * BLOCK_BYTES + len(self.index.replica.nodes) * NODE_BYTES

    async def whole(self) -> None:
        """Waits until the copy shows the whole tree, or Redis turns out to be away; for a bounded time."""
        try:
            await asyncio.wait_for(self.reader.ready.wait(), WHOLE_SECONDS_MAX)
        except TimeoutError:
            log.warning("the prefix index is not loaded after %g s; serving without", WHOLE_SECONDS_MAX)

    async def close(self) -> None:
        await self.scripts.close()
