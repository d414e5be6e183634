"""What a change costs: time in Valkey (INFO commandstats), and until the answer is here.

A third of the calls is made one at a time, as a quiet gateway makes them: the server is woken for each, and finds
its caches cold. The others come 32 to a round trip, as a busy one makes them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from radix_cache.blocks import Hashes
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.copy import Shard, TreeCopy
from radix_cache.shared.keys import Keys, namespace_id
from radix_cache.shared.records import Entry
from radix_cache.shared.store import TreeStore
from tests.benchmarks.index import build, timing
from tests.benchmarks.index.corpus import SEED, Session, drawn, holds

BLOCKS, SHARED = 256, 192
BATCH = 32
EXTENSION_BLOCKS = 4
PREDICTED_MS = 600_000
ENTRIES = 3000
"""Fewer than a shard's log keeps."""

Call = Callable[[], Awaitable[Any]]


async def measure(
    scripts: ScriptCaller, store: TreeStore, sessions: list[Session], calls: int
) -> dict[str, float]:
    """Figures of each script, on a tree that is full already. Raises RedisDown."""
    chance = Random(SEED + 1)  # Not the corpus itself once more.
    chosen = chance.sample([s for s in sessions if len(s.hashes) > SHARED], calls)
    paths = [session.hashes[:SHARED] + drawn(chance, BLOCKS - SHARED) for session in chosen]
    names = [chance.randbytes(16) for _ in chosen]
    tenures = [build.FIRST_TENURE + session.worker for session in chosen]
    spaces = [build.space(session.space) for session in chosen]
    at = range(len(chosen))

    def each(make: Callable[[int], Awaitable[Any]]) -> Sequence[Call]:
        return [lambda number=number: make(number) for number in at]  # type: ignore[misc]

    cases: dict[str, Sequence[Call]] = {
        "record_new": each(lambda n: store.hold(spaces[n], paths[n], tenures[n])),
        "record_again": each(lambda n: store.hold(spaces[n], paths[n], tenures[n])),
        "record_another_worker": each(lambda n: store.hold(spaces[n], paths[n], tenures[n] + 1000)),
        "predict": each(lambda n: store.predict(spaces[n], paths[n], tenures[n], names[n], PREDICTED_MS)),
        "withdraw": each(lambda n: store.withdraw(_shard(store, spaces[n]), [names[n]])),
        "shorten": each(lambda n: store.shorten(spaces[n], paths[n], tenures[n] + 1000, SHARED)),
    }
    figures: dict[str, float] = {}
    for name, made in cases.items():
        figures |= await _case(scripts, name, made)
    return figures | await _extensions(scripts, store, paths, tenures, spaces, chance)


async def _case(scripts: ScriptCaller, name: str, calls: Sequence[Call]) -> dict[str, float]:
    walls, third = [], len(calls) // 3
    await scripts.ask("CONFIG", "RESETSTAT")
    for call in calls[:third]:
        began = time.perf_counter()
        await call()
        walls.append((time.perf_counter() - began) * 1e6)
    alone = await _server_us(scripts)
    await scripts.ask("CONFIG", "RESETSTAT")
    for first in range(third, len(calls), BATCH):
        await asyncio.gather(*(call() for call in calls[first : first + BATCH]))
    figures = {f"{name}_server_us": await _server_us(scripts), f"{name}_alone_server_us": alone}
    return figures | timing.figures(f"{name}_wall", walls)


async def _extensions(
    scripts: ScriptCaller,
    store: TreeStore,
    paths: list[Hashes],
    tenures: list[int],
    spaces: list[Any],
    chance: Random,
) -> dict[str, float]:
    """As engines' events say it: a few blocks more, below a block that is known, many to one round trip."""
    walls = []
    await scripts.ask("CONFIG", "RESETSTAT")
    for first in range(0, len(paths) - BATCH + 1, BATCH):
        batch = [
            (spaces[n], drawn(chance, EXTENSION_BLOCKS), tenures[n], paths[n][SHARED])
            for n in range(first, first + BATCH)
        ]
        began = time.perf_counter()
        told = [
            store.hold(space, more, tenure, above=above, depth=BLOCKS) for space, more, tenure, above in batch
        ]
        held = [(await one)[1] for one in told]  # type: ignore[index]
        walls.append((time.perf_counter() - began) * 1e6 / BATCH)
        assert all(held), "a place was not found"
    return {"extension_server_us": await _server_us(scripts)} | timing.figures("extension_wall", walls)


async def applying(url: str, sessions: list[Session]) -> dict[str, float]:
    """Microseconds an entry takes in a copy, decoding included: every turn of some sessions, from the log."""
    scripts, keys = ScriptCaller(url), Keys(prefix="applying", shards=1)
    told = list(holds(sessions[: ENTRIES // 5]))
    await build.in_redis(TreeStore(scripts, keys), told)
    found = await scripts.ask("XRANGE", keys.log(0), "-", "+")
    await scripts.close()
    copy, samples = TreeCopy(time.monotonic, build.PREDICTED_SECONDS), []
    copy.shards[0] = Shard(0, loaded=True)
    for _, (_, data) in found:
        began = time.perf_counter()
        copy.apply(0, Entry.decode(data))
        samples.append((time.perf_counter() - began) * 1e6)
    return timing.figures("apply_entry", samples) | {"apply_entry_us_mean": sum(samples) / len(samples)}


def _shard(store: TreeStore, space: Any) -> int:
    return store.keys.shard(namespace_id(space))


async def _server_us(scripts: ScriptCaller) -> float:
    """Of each EVALSHA since the last reset, the commands within it included."""
    lines = (await scripts.ask("INFO", "commandstats")).decode().splitlines()
    told = next(line for line in lines if line.startswith("cmdstat_evalsha:"))
    return float(dict(part.split("=") for part in told.partition(":")[2].split(","))["usec_per_call"])
