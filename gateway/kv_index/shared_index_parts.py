"""Puts the shared prefix index of one gateway process together."""

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
"""Memory of the process for each block and node; Redis needs less.

`make bench-index` measures 8.9 to 16 bytes for each block of a run, and 950 to 1,100 for each node.
"""

NODE_BLOCKS = NODE_BYTES // BLOCK_BYTES

FOLLOWERS_SHARE = 2
"""The pages of followed workers may take this fraction (one half) of the index's memory, in addition to it."""

OWN_SHARE = 4
"""What the replica does not show yet, and what is learnt while Redis is away, may take this fraction (one quarter)
each, in addition to it.
"""

LOAD_SECONDS_MAX = 1.0
"""How long a gateway that starts waits for the index: `make bench-index` loads five million blocks in 0.8 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedIndexParts:
    """The parts of the shared index; the gateway has to run `reader.follow` and `maintenance.run`."""

    index: SharedIndex
    reader: ReplicaReader
    maintenance: IndexMaintenance
    feed_leases: FeedLeaseStore
    page_budget: PageBudget
    scripts: ScriptCaller

    @classmethod
    def create(cls, redis_url: str, prefix: str, settings: IndexSettings) -> "SharedIndexParts":
        """Create the parts for the index in this Redis, without connecting yet."""
        blocks_max = max(1, settings.memory_bytes_max // BLOCK_BYTES)
        scripts, identity = ScriptCaller(redis_url), os.urandom(8)
        keys = Keys(prefix=prefix)
        store = TreeStore(scripts, keys)
        replica = TreeReplica(time.monotonic, settings.predicted_seconds)
        index = SharedIndex(
            store,
            replica,
            time.monotonic,
            blocks_max=max(1, blocks_max // OWN_SHARE),
            node_blocks=NODE_BLOCKS,
            predicted_seconds=settings.predicted_seconds,
            idle_seconds_max=settings.idle_seconds_max,
            identity=identity,
        )
        reader = ReplicaReader(
            scripts, keys, replica, changed=index.replica_changed, checked=index.replica_compared
        )
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
        feed_leases = FeedLeaseStore(scripts, keys, identity)
        page_budget = PageBudget(settings.memory_bytes_max // FOLLOWERS_SHARE // PAGE_BYTES)
        return cls(
            index=index,
            reader=reader,
            maintenance=maintenance,
            feed_leases=feed_leases,
            page_budget=page_budget,
            scripts=scripts,
        )

    @property
    def memory_bytes(self) -> int:
        """About how much memory the replica takes, in bytes."""
        return self.index.replica.blocks * BLOCK_BYTES + len(self.index.replica.nodes) * NODE_BYTES

    async def wait_until_loaded(self) -> None:
        """Wait, at most LOAD_SECONDS_MAX, until the replica shows the whole tree or Redis turns out to be away.

        A gateway whose index is larger serves before: it routes by load and by the shards that it has read.
        """
        try:
            await asyncio.wait_for(self.reader.ready.wait(), LOAD_SECONDS_MAX)
        except TimeoutError:
            log.info("the prefix index is still being read; until then requests are routed by load")

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self.scripts.close()
