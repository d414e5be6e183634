"""A replica that loads a full tree: how long the load takes, and how long the event loop stands still meanwhile."""

import asyncio
import gc
import time

from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.replica_reader import ReplicaReader
from tests.benchmarks.index.build import PREDICTED_SECONDS


async def measure(url: str, keys: Keys) -> dict[str, float]:
    """Load all shards, then all once more in place of the first: after a gap both trees exist for a while."""
    scripts = ScriptCaller(url)
    copy = TreeReplica(time.monotonic, PREDICTED_SECONDS)
    reader = ReplicaReader(scripts, keys, copy)
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # like gateway/runtime/server.py
    try:
        figures = {}
        for name in ("load", "reload"):
            stopped: list[float] = []
            watch = asyncio.create_task(_watch(stopped))
            await asyncio.sleep(0)
            began = time.perf_counter()
            for shard in range(keys.shards):
                await reader._snapshot(shard)
            seconds = time.perf_counter() - began
            await asyncio.sleep(0)
            watch.cancel()
            figures |= {
                f"{name}_seconds": seconds,
                f"{name}_blocks_per_second": copy.blocks / seconds,
                f"{name}_stopped_ms_max": 1000 * max(stopped),
            }
        return {**figures, "loaded_blocks": float(copy.blocks)}
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
        await scripts.close()


async def _watch(stopped: list[float]) -> None:
    """Collect the seconds between the turns of this task, which asks for every turn."""
    last = time.perf_counter()
    while True:
        await asyncio.sleep(0)
        now = time.perf_counter()
        stopped.append(now - last)
        last = now
