"""The memory of the index per block, in Redis and in a process, for long runs of blocks and for short ones.

python -m tests.benchmarks.index.memory URL PREFIX        a fresh process that loads the tree and prints its growth
"""

import asyncio
import gc
import os
import sys
import time
from pathlib import Path

import orjson
import uvloop

from gateway.process.children import ChildFailed
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.replica_reader import ReplicaReader
from radix_cache.shared.tree_store import TreeStore
from tests.benchmarks.index import build, timing
from tests.benchmarks.index.corpus import Shape, corpus, holds


async def measure(url: str, keys: Keys, shape: Shape) -> dict[str, float]:
    """Fill Redis with the shape and let a process load it. Raises RedisDown and ChildFailed."""
    scripts = ScriptCaller(url)
    try:
        before = await used_bytes(scripts)
        began = time.perf_counter()
        calls = await build.in_redis(TreeStore(scripts, keys), holds(corpus(shape)))
        filled = time.perf_counter() - began
        used = await used_bytes(scripts) - before
        asked = [
            scripts.ask("MEMORY", "USAGE", keys.log(shard), "SAMPLES", 0) for shard in range(keys.shards)
        ]
        log = sum(size or 0 for size in await asyncio.gather(*asked))
    finally:
        await scripts.close()
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.index.memory", url, keys.prefix),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await child.communicate()
    if child.returncode:
        raise ChildFailed(f"memory: {' '.join(errors.decode(errors='replace').strip().splitlines()[-1:])}")
    told = orjson.loads(out)
    blocks = told["blocks"]
    return {
        "blocks": blocks,
        "nodes": told["nodes"],
        "run_blocks_mean": blocks / told["nodes"],
        "run_blocks_p50": told["run_p50"],
        "holders_per_node_mean": told["holders"] / told["nodes"],
        "redis_bytes_per_block": (used - log) / blocks,
        "redis_log_bytes": log,
        "process_bytes_per_block": told["rss"] / blocks,
        "process_run_bytes_per_block": told["runs"] / blocks,
        "process_node_bytes": (told["rss"] - told["runs"]) / told["nodes"],
        "fill_calls_per_second": calls / filled,
    }


async def used_bytes(scripts: ScriptCaller) -> int:
    """Return the bytes that Redis has allocated for data, without scripts."""
    lines = (await scripts.ask("INFO", "memory")).decode().splitlines()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(found["used_memory_dataset"]) + int(found["used_memory_overhead"]) - _clients(found)


def _clients(found: dict[str, str]) -> int:
    return int(found.get("mem_clients_normal", 0))


async def growth(url: str, prefix: str) -> dict[str, float]:
    """Return the growth of this process by a snapshot; Python's arrays of hashes count as runs."""
    keys = Keys(prefix=prefix)
    scripts = ScriptCaller(url)
    copy = TreeReplica(time.monotonic, build.PREDICTED_SECONDS)
    reader = ReplicaReader(scripts, keys, copy)
    await scripts.ping()
    gc.collect()
    before = _resident()
    for shard in range(keys.shards):
        await reader._snapshot(shard)
    gc.collect()
    after = _resident()
    await scripts.close()
    nodes = copy.nodes.values()
    return {
        "rss": after - before,
        "blocks": copy.blocks,
        "nodes": len(nodes),
        "runs": sum(sys.getsizeof(node.run) for node in nodes),
        "run_p50": timing.at([len(node.run) for node in nodes], 50),
        "holders": sum(len(chunk) for node in nodes for chunk in node.chunks),
    }


def _resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(uvloop.run(growth(*sys.argv[1:]))))
