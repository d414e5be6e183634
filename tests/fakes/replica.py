"""A replica of the shared index as a gateway has it, with ways to wait until changes have arrived."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from radix_cache.machine.published_replica import PublishedReplica
from radix_cache.machine.segment import IndexSegment
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.index_maintenance import IndexMaintenance
from radix_cache.shared.keys import Keys
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.replica_reader import ReplicaReader
from radix_cache.shared.shared_index import SharedIndex
from radix_cache.shared.tree_store import LIBRARY, TreeStore

CROWDED = LIBRARY.replace("HOPS_MAX = 32, 10, 512, 4096", "HOPS_MAX = 2, 10, 3, 4096")
"""Chunks of two holders, runs of three blocks: so that few paths make many of both."""

assert CROWDED != LIBRARY


@dataclass
class Replica:
    """A replica and what keeps it up to date."""

    index: SharedIndex
    reader: ReplicaReader
    maintenance: IndexMaintenance
    scripts: ScriptCaller
    reading: "asyncio.Task[None]"

    async def caught_up(self) -> None:
        """Wait until all changes have arrived, the tree in Redis is tidied, and the replica shows the result."""
        await self.arrived()
        self.maintenance._rounds = 0
        await self.maintenance.run_round()
        await self.arrived()

    async def arrived(self) -> None:
        """Wait until all changes made so far are in Redis and the replica shows them."""
        keys = self.index.store.keys
        for _ in range(2):  # Answers may lead to further calls.
            await self.scripts.ping()
            while self.scripts.busy:
                await asyncio.sleep(0.001)
        for number in range(keys.shards):
            for _ in range(2000):
                tip = await self.scripts.ask("HGET", keys.meta(number), "tip") or bytes(8)
                shard = self.index.replica.shards.get(number)
                if shard is not None and shard.loaded and shard.tip == tip:
                    break
                await asyncio.sleep(0.002)
            else:
                raise AssertionError(f"shard {number} does not catch up")
        self.index.replica_changed()

    async def close(self) -> None:
        """Stop reading, and close the connections."""
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)
        await self.scripts.close()


async def replica(
    url: str,
    keys: Keys,
    clock: Callable[[], float],
    *,
    check_seconds: float = 0.2,
    node_blocks: int = 0,
    library: str = LIBRARY,
    segment: IndexSegment | None = None,
    **bounds: Any,
) -> Replica:
    """Open a replica and wait until it knows the whole tree; it is published in `segment`."""
    scripts = ScriptCaller(url)
    store = TreeStore(scripts, keys, library=library)
    seconds = bounds["predicted_seconds"]
    copy = TreeReplica(clock, seconds) if segment is None else PublishedReplica(clock, seconds, segment)
    index = SharedIndex(store, copy, clock, node_blocks=node_blocks, **bounds)
    reader = ReplicaReader(
        scripts,
        keys,
        copy,
        changed=index.replica_changed,
        checked=index.replica_compared,
        clock=clock,
        check_seconds=check_seconds,
    )
    maintenance = IndexMaintenance(
        scripts,
        store,
        copy,
        blocks_max=bounds["blocks_max"],
        node_blocks=node_blocks,
        idle_seconds_max=bounds["idle_seconds_max"],
        lost_shards=lambda: reader.lost_shards,
        identity=index.sent_predictions.prefix,
    )
    reading = asyncio.create_task(reader.follow())
    await asyncio.wait_for(reader.ready.wait(), 60)
    return Replica(index, reader, maintenance, scripts, reading)
