"""A flood of prefixes that never come again: the index stays within its bound, here and in Redis.

    python -m tests.benchmarks.index.distinct [--prefixes 10000000] [--memory 67108864]

Every prefix goes the way of a request: recorded when it is placed, held when it is answered, withdrawn when it has
ended. The bound may be exceeded by what arrives in one round of index maintenance, which runs every second.
Prefixes are drawn one after the other, so they need no memory of their own.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import redis
import uvloop

from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.settings.stores import IndexSettings
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from tests.benchmarks.index.corpus import SEED, drawn
from tests.stage.processes import resident_bytes
from tests.stage.valkey import ValkeyServer

BLOCKS = 2
AT_ONCE = 500
"""Prefixes that are sent before their answers are waited for."""

WORKER = WorkerId("worker-0")
SPACE = Namespace(model="m", block_size=16)
SAMPLES = 20


@dataclass(slots=True)
class Flood:
    """Memory in bytes during a flood, at equal distances."""

    index: list[int] = field(default_factory=list)
    """As the index estimates its own."""
    process: list[int] = field(default_factory=list)
    """Anonymous memory of this process."""
    valkey: list[int] = field(default_factory=list)
    index_max: int = 0
    refused: int = 0
    """Changes that Redis did not take."""


@asynccontextmanager
async def opened(url: str, prefix: str, memory_bytes_max: int) -> AsyncIterator[SharedIndexParts]:
    """Open an index with this bound, as a gateway does, with one worker."""
    parts = SharedIndexParts.create(url, prefix, IndexSettings(memory_bytes_max=memory_bytes_max))
    tasks = [asyncio.create_task(parts.reader.follow()), asyncio.create_task(parts.maintenance.run())]
    try:
        await parts.wait_until_loaded()
        parts.index.enrol(WORKER, "one")
        while WORKER not in parts.index.replica.tenures:
            await asyncio.sleep(0.01)
        yield parts
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await parts.close()


async def flood(parts: SharedIndexParts, url: str, prefixes: int, pid: int, *, seed: int = SEED) -> Flood:
    """Let so many different prefixes pass through the index, and return the memory on the way."""
    chance, seen, index = Random(seed), Flood(), parts.index
    client = redis.Redis.from_url(url)
    every = max(AT_ONCE, prefixes // SAMPLES)
    for number in range(prefixes):
        hashes, writer = drawn(chance, BLOCKS), str(number)
        index.record(SPACE, hashes, WORKER, writer)
        index.hold(SPACE, hashes, WORKER)
        index.withdraw(WORKER, writer)
        if number % AT_ONCE == AT_ONCE - 1:
            while parts.scripts.busy:
                await asyncio.sleep(0.001)
            seen.index_max = max(seen.index_max, parts.memory_bytes)
        if number % every == every - 1:
            seen.index.append(parts.memory_bytes)
            seen.process.append(resident_bytes(pid))
            seen.valkey.append(int(client.info("memory")["used_memory"]))
            print(
                f"{number + 1:,} prefixes: index {_mib(seen.index[-1])}, process {_mib(seen.process[-1])}, Valkey "
                f"{_mib(seen.valkey[-1])}",
                file=sys.stderr,
                flush=True,
            )
    client.close()
    seen.refused = index.refused
    return seen


async def main(prefixes: int, memory_bytes_max: int) -> None:
    """Run a flood on a private Valkey, and print what it took."""
    with tempfile.TemporaryDirectory() as directory:
        valkey = ValkeyServer(Path(directory))
        await asyncio.to_thread(valkey.start)
        started = time.monotonic()
        try:
            async with opened(valkey.url, "rg", memory_bytes_max) as parts:
                seen = await flood(parts, valkey.url, prefixes, os.getpid())
        finally:
            valkey.kill()
    seconds = time.monotonic() - started
    half = len(seen.process) // 2
    print(
        f"{prefixes:,} prefixes of {BLOCKS} blocks in {seconds:,.0f} s, bound {_mib(memory_bytes_max)}: index "
        f"{_mib(seen.index_max)} at most; process {_mib(seen.process[half])} half way, {_mib(seen.process[-1])} at "
        f"the end; Valkey {_mib(seen.valkey[half])} and {_mib(seen.valkey[-1])}; refused {seen.refused:,}"
    )


def _mib(number: int) -> str:
    return f"{number / 1024**2:,.1f} MiB"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prefixes", type=int, default=10_000_000)
    parser.add_argument("--memory", type=int, default=64 * 1024**2)
    options = parser.parse_args()
    uvloop.run(main(options.prefixes, options.memory))
