"""Millions of blocks of a thousand workers: written to Redis, loaded by a starting gateway, one worker forgotten.

python -m tests.benchmarks.index.scale [BLOCKS]             alone, on a Valkey of its own; BLOCKS: five million
python -m tests.benchmarks.index.scale URL PREFIX SHAPE     the process that loads the tree

Fifty million blocks take about 2 GB of memory, and a minute to write.
"""

import asyncio
import gc
import os
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.process.children import ChildFailed
from gateway.settings.stores import IndexSettings
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from radix_cache.shared.tree_store import TreeStore
from tests.benchmarks.index import build, timing
from tests.benchmarks.index.corpus import Shape, corpus, holds, prompts
from tests.benchmarks.index.match import ask_copy
from tests.benchmarks.index.memory import used_bytes
from tests.benchmarks.report import new_table, number
from tests.stage.processes import resident_bytes
from tests.stage.valkey import ValkeyServer

SCALE = Shape(name="scale", blocks=5_000_000, workers=1000, spaces=64)
QUICK = Shape(name="scale", blocks=250_000, workers=1000, spaces=64)
BLOCKS, CALLS, ROUNDS = 256, 500, 4
SECONDS_MAX = 600.0
LOOK_SECONDS = 0.001

ROWS = {
    "blocks": ("blocks", 0),
    "workers": ("workers", 0),
    "nodes": ("nodes", 0),
    "told_per_second": ("paths told to Redis in a second", 0),
    "redis_bytes_per_block": ("Redis, bytes a block, logs of changes included", 1),
    "process_bytes_per_block": ("the process, bytes a block", 1),
    "load_seconds": ("a gateway that starts knows everything after, s", 2),
    "match_us_p50": ("a match of 256 blocks, 16 workers asked, µs", 1),
    "forget_ms": ("a worker is forgotten, and has begun anew, after, ms", 2),
    "sweep_seconds": ("what it has left is gone after, s", 2),
}


async def measure(url: str, shape: Shape) -> dict[str, float]:
    """Fill an empty Redis and load it. Raises RedisDown and ChildFailed."""
    keys = Keys(prefix=shape.name)
    scripts = ScriptCaller(url)
    store = TreeStore(scripts, keys)
    try:
        before = await used_bytes(scripts)
        tenures = [await store.tenure(build.worker(worker), str(worker)) for worker in range(shape.workers)]
        began = time.perf_counter()
        calls = await build.in_redis(store, holds(corpus(shape)), tenures)
        filled = time.perf_counter() - began
        used = await used_bytes(scripts) - before
    finally:
        await scripts.close()
    child = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.benchmarks.index.scale",
            url,
            keys.prefix,
            orjson.dumps(asdict(shape)),
        ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await child.communicate()
    if child.returncode:
        raise ChildFailed(f"scale: {' '.join(errors.decode(errors='replace').strip().splitlines()[-1:])}")
    told: dict[str, float] = orjson.loads(out)
    return {
        **told,
        "told_per_second": calls / filled,
        "redis_bytes_per_block": used / told["blocks"],
    }


async def loaded(url: str, prefix: str, shape: Shape) -> dict[str, float]:
    """Load the index like a gateway that starts; then forget one of the workers."""
    gc.collect()
    before = resident_bytes(os.getpid())
    began = time.perf_counter()
    parts = SharedIndexParts.create(url, prefix, IndexSettings())
    loops = [asyncio.create_task(parts.reader.follow())]
    index, copy = parts.index, parts.index.replica
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await parts.reader.ready.wait()
            load_seconds = time.perf_counter() - began
            gc.collect()
            grown = resident_bytes(os.getpid()) - before
            taken = timing.in_turn(
                {"match": ask_copy(copy, 16)}, prompts(corpus(shape), BLOCKS, CALLS), ROUNDS
            )
            figures = {
                "blocks": copy.blocks,
                "workers": sum(1 for tenure in copy.tenures.values() if copy.held.get(tenure)),
                "nodes": len(copy.nodes),
                "load_seconds": load_seconds,
                "process_bytes_per_block": grown / copy.blocks,
                **timing.figures("match", taken["match"]),
            }
            worker = max(copy.tenures, key=lambda each: copy.held.get(copy.tenures[each], 0))
            tenure, began = copy.tenures[worker], time.perf_counter()
            index.forget(worker)
            while copy.tenures.get(worker, tenure) == tenure:
                await asyncio.sleep(LOOK_SECONDS)
            figures["forget_ms"] = 1000 * (time.perf_counter() - began)
            loops.append(asyncio.create_task(parts.maintenance.run()))
            while copy.holding.get(tenure):
                await asyncio.sleep(LOOK_SECONDS)
            return {**figures, "sweep_seconds": time.perf_counter() - began}
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await parts.close()


def table(figures: dict[str, float]) -> Table:
    """Return a table of the figures of `measure`."""
    drawn = new_table("As large as it may get", ("what",), ("figure",))
    for name, (shown, digits) in ROWS.items():
        drawn.add_row(shown, number(figures.get(name), digits))
    return drawn


def main(shape: Shape) -> None:
    with tempfile.TemporaryDirectory(prefix="radixgate-bench-", ignore_cleanup_errors=True) as directory:
        server = ValkeyServer(Path(directory))
        server.start()
        try:
            Console().print(table(uvloop.run(measure(server.url, shape))))
        finally:
            server.kill()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        to, named, of = sys.argv[1:]
        sys.stdout.buffer.write(orjson.dumps(uvloop.run(loaded(to, named, Shape(**orjson.loads(of))))))
    else:
        main(replace(SCALE, blocks=int(sys.argv[1])) if len(sys.argv) > 1 else SCALE)
