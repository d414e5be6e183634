"""The cost of a change: time in Valkey (INFO commandstats), beside an empty script, and time until the reply.

A third of the calls is made one at a time, like those of a quiet gateway: the server wakes up for each and finds
its caches cold. The others are made 32 to a round trip, like those of a busy gateway.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from radix_cache.blocks import Hashes
from radix_cache.redis.call import Script
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys, tree_id
from radix_cache.shared.log_records import LogEntry
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.replica_reader import ReplicaReader
from radix_cache.shared.shard_replica import ShardReplica
from radix_cache.shared.tree_store import TreeStore
from radix_cache.tiers import Tier
from tests.benchmarks.index import build, timing
from tests.benchmarks.index.corpus import SEED, Session, drawn, holds

BLOCKS, SHARED = 256, 192
BATCH = 32
TURN, EXTENSION_BLOCKS = 8, 4
PREDICTED_MS = 600_000
ENTRIES = 3000
"""Fewer entries than the log of a shard keeps."""

Call = Callable[[], Awaitable[Any]]


class _Gateway:
    """What a gateway knows when it makes a call: its replica, as of the last `catch_up`."""

    def __init__(self, scripts: ScriptCaller, store: TreeStore, workers: int) -> None:
        self._copy = TreeReplica(time.monotonic, build.PREDICTED_SECONDS)
        self._reader = ReplicaReader(scripts, store.keys, self._copy)
        self._workers = workers

    async def catch_up(self) -> None:
        await self._reader._compare(at_once=True)
        for number in range(self._workers):
            self._copy.enrol(build.worker(number), build.FIRST_TENURE + number, "")

    def since(self, hashes: Hashes, worker: int) -> int:
        """Return where the walk of a record may begin."""
        found = self._copy.match(hashes).walk_start(build.worker(worker), len(hashes), Tier.GPU, 0)
        return found or 0

    def place(self, hashes: Hashes, worker: int) -> tuple[int, int]:
        """Return where the new part of a prediction begins: the key of the node above, and the depth."""
        match = self._copy.match(hashes)
        return match.last_node(match.held(build.worker(worker)))

    def depth(self, hashes: Hashes, block: int) -> int:
        """Return the depth of the node that has this block."""
        node = self._copy.node_at(hashes, block)
        return node.depth if node is not None else 0


async def measure(
    scripts: ScriptCaller, store: TreeStore, sessions: list[Session], calls: int
) -> dict[str, float]:
    """Return the figures of each call, on a full tree, by a gateway that knows the tree. Raises RedisDown."""
    chance = Random(SEED + 1)  # another seed than the corpus
    chosen = chance.sample([s for s in sessions if len(s.hashes) > SHARED], calls)
    gateway = _Gateway(scripts, store, 1 + max(session.worker for session in sessions))
    await gateway.catch_up()
    at = range(len(chosen))
    spaces = [build.space(session.space) for session in chosen]
    tenures = [build.FIRST_TENURE + session.worker for session in chosen]
    workers = [session.worker for session in chosen]
    names = [chance.randbytes(16) for _ in chosen]
    turns = [session.hashes + drawn(chance, TURN) for session in chosen]
    paths = [session.hashes[:SHARED] + drawn(chance, BLOCKS - SHARED) for session in chosen]

    def each(make: Callable[[int], Awaitable[Any]]) -> Sequence[Call]:
        return [lambda number=number: make(number) for number in at]  # type: ignore[misc]

    def predict(n: int, hashes: Hashes) -> Awaitable[Any]:
        above, depth = places[n]
        return store.predict(
            spaces[n], hashes[depth:], tenures[n], names[n], PREDICTED_MS, above=above, depth=depth
        )

    figures: dict[str, float] = {}
    empty = Script.from_text("#!lua\nreturn 1")
    figures |= await _case(scripts, "empty", each(lambda n: scripts.call(empty, ["{a}"], [])))
    # A prompt that continues a session by a few blocks: the most frequent kind.
    places = [gateway.place(turns[n], workers[n]) for n in at]
    figures |= await _case(scripts, "predict_turn", each(lambda n: predict(n, turns[n])))
    since = [gateway.since(turns[n], workers[n]) for n in at]
    figures |= await _case(
        scripts,
        "record_turn",
        each(lambda n: store.hold(spaces[n], turns[n], tenures[n], walk_start=since[n])),
    )
    await gateway.catch_up()
    # A prompt that branches off in the middle of a known one.
    places = [gateway.place(paths[n], workers[n]) for n in at]
    figures |= await _case(scripts, "predict", each(lambda n: predict(n, paths[n])))
    figures |= await _case(
        scripts, "withdraw", each(lambda n: store.withdraw(_shard(store, spaces[n]), [names[n]]))
    )
    since = [gateway.since(paths[n], workers[n]) for n in at]
    figures |= await _case(
        scripts,
        "record_new",
        each(lambda n: store.hold(spaces[n], paths[n], tenures[n], walk_start=since[n])),
    )
    figures |= await _case(
        scripts, "record_again", each(lambda n: store.hold(spaces[n], paths[n], tenures[n]))
    )
    figures |= await _case(
        scripts, "record_another_worker", each(lambda n: store.hold(spaces[n], paths[n], tenures[n] + 1000))
    )
    await gateway.catch_up()
    since = [gateway.depth(paths[n], SHARED) for n in at]
    figures |= await _case(
        scripts,
        "shorten",
        each(lambda n: store.shorten(spaces[n], paths[n], tenures[n] + 1000, SHARED, walk_start=since[n])),
    )
    longer = [path + drawn(chance, EXTENSION_BLOCKS) for path in paths]
    since = [gateway.since(longer[n], workers[n]) for n in at]
    return figures | await _case(
        scripts,
        "extension",
        each(lambda n: store.hold(spaces[n], longer[n], tenures[n], walk_start=since[n])),
    )


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


async def applying(url: str, sessions: list[Session]) -> dict[str, float]:
    """Return the microseconds that an entry of the log takes in a replica, decoding included."""
    scripts, keys = ScriptCaller(url), Keys(prefix="applying", shards=1)
    told = list(holds(sessions[: ENTRIES // 5]))
    await build.in_redis(TreeStore(scripts, keys), told)
    found = await scripts.ask("XRANGE", keys.log(0), "-", "+")
    await scripts.close()
    copy, samples = TreeReplica(time.monotonic, build.PREDICTED_SECONDS), []
    copy.shards[0] = ShardReplica(0, loaded=True)
    for _, (_, data) in found:
        began = time.perf_counter()
        copy.apply(0, LogEntry.decode(data))
        samples.append((time.perf_counter() - began) * 1e6)
    return timing.figures("apply_entry", samples) | {"apply_entry_us_mean": sum(samples) / len(samples)}


def _shard(store: TreeStore, space: Any) -> int:
    return store.keys.shard(tree_id(space))


async def _server_us(scripts: ScriptCaller) -> float:
    """Return the microseconds of each FCALL or EVALSHA since the last reset, with the commands within it."""
    lines = (await scripts.ask("INFO", "commandstats")).decode().splitlines()
    told = next(line for line in lines if line.startswith(("cmdstat_fcall:", "cmdstat_evalsha:")))
    return float(dict(part.split("=") for part in told.partition(":")[2].split(","))["usec_per_call"])
