"""The index in shared memory: the costs of a match, a change and a copy, beside those of a copy in each process.

python -m tests.benchmarks.index.machine [BLOCKS]

in the process     the replica of this process, which each process has where nothing is shared
shared memory      the same tree in a segment that another object has mapped; nodes that were matched
                   lately are kept decoded, as in a gateway, but fewer than the prompts have
not kept           the same, with every node decoded anew
socket             a process that does nothing else answers on a unix socket: what a served copy would cost at best
"""

import asyncio
import gc
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from radix_cache.blocks import Hashes
from radix_cache.machine.mapped_replica import MappedReplica
from radix_cache.machine.published_replica import PublishedReplica
from radix_cache.machine.segment import BYTES_USED, IndexSegment, create_segments
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from radix_cache.shared.log_records import LogEntry
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.shard_replica import ShardReplica
from radix_cache.shared.tree_store import TreeStore
from tests.benchmarks.index import build, timing
from tests.benchmarks.index.corpus import Session, Shape, corpus, holds, prompts
from tests.benchmarks.index.match import ask_copy
from tests.benchmarks.report import new_table, number
from tests.stage.valkey import ValkeyServer

WORKERS, ASKED = 1000, 16
PROMPT_BLOCKS, CALLS, ROUNDS = 256, 8000, 1
CHANGED = Shape(name="changed", blocks=30_000, workers=WORKERS, spaces=8)
LOG_ENTRIES = 1_000_000
TOGETHER = 32
SEGMENT_BYTES = 2 * 1024**3


def measure(blocks: int) -> dict[str, dict[str, float]]:
    """Return the figures of a match, by where the tree is."""
    shape = Shape(name="machine", blocks=blocks, workers=WORKERS, spaces=64)
    sessions = corpus(shape)
    tree = build.in_memory(sessions)
    copy = build.as_copy(tree, WORKERS)
    descriptors = create_segments(SEGMENT_BYTES)
    written = IndexSegment(descriptors[0], writable=True)
    published = PublishedReplica(time.monotonic, build.PREDICTED_SECONDS, written)
    for _ in published.load(0, b"tip of 0", 1, {}, build._nodes(tree), ()):
        pass
    mapped, forgetful = (_mapped(IndexSegment(descriptors[0])) for _ in range(2))
    asking = ask_copy(forgetful, ASKED)

    def anew(hashes: Hashes) -> None:
        forgetful.mapped_nodes.use(forgetful._segment)
        asking(hashes)

    gc.collect()
    with served(copy) as ask_served:
        subjects = {
            "in the process": ask_copy(copy, ASKED),
            "shared memory": ask_copy(mapped, ASKED),
            "not kept": anew,
            "socket": ask_served,
        }
        taken = timing.in_turn(subjects, prompts(sessions, PROMPT_BLOCKS, CALLS), ROUNDS)
    runs = {name: timing.figures("match", samples) for name, samples in taken.items()}
    runs["shared memory"] |= {"bytes": written.words[BYTES_USED] / published.blocks}
    for descriptor in descriptors:
        os.close(descriptor)
    return runs


def _mapped(segment: IndexSegment) -> MappedReplica:
    replica = MappedReplica(time.monotonic, build.PREDICTED_SECONDS)
    replica.use(segment)
    for worker in range(WORKERS):
        replica.enrol(build.worker(worker), build.FIRST_TENURE + worker, "")
    return replica


@contextmanager
def served(copy: TreeReplica) -> Iterator[Callable[[Hashes], None]]:
    """Answer matches of the copy in another process, and yield what asks it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    names = [build.worker(worker) for worker in range(ASKED)]
    child = os.fork()
    if not child:
        ours.close()
        while data := theirs.recv(1 << 16):
            tiers = copy.match(array("Q", data)).tiers
            theirs.send(b"".join(struct.pack("<III", *tiers(name)) for name in names))
        os._exit(0)
    theirs.close()

    def ask(hashes: Hashes) -> None:
        ours.send(hashes.tobytes())
        list(struct.iter_unpack("<III", ours.recv(1 << 16)))

    try:
        yield ask
    finally:
        ours.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def entries(url: str, sessions: list[Session]) -> list[tuple[int, LogEntry]]:
    """Write sessions to an empty Redis, and return the changes that this makes, in order, with their shards."""
    scripts, keys = ScriptCaller(url), Keys(prefix="machine")
    try:
        store = TreeStore(scripts, keys, log_entries=LOG_ENTRIES)
        await build.in_redis(store, holds(sessions))
        found = []
        for shard in range(keys.shards):
            log = await scripts.ask("XRANGE", keys.log(shard), "-", "+")
            found += [(shard, LogEntry.decode(entry)) for _, (_, entry) in log]
        return found
    finally:
        await scripts.close()


def apply_us(replica: TreeReplica, changes: list[tuple[int, LogEntry]], together: int) -> float:
    """Return how long the replica takes for a change, on average, in microseconds; so many arrive together."""
    for shard in {shard for shard, _ in changes}:
        replica.shards[shard] = ShardReplica(shard, loaded=True)
    gc.collect()
    began = time.perf_counter()
    for at, (shard, entry) in enumerate(changes):
        replica.apply(shard, entry)
        if at % together == 0 and isinstance(replica, PublishedReplica):
            replica.publish()
    return 1e6 * (time.perf_counter() - began) / len(changes)


def changes_us() -> dict[str, float]:
    """Return how long a change takes, in microseconds, where the replica is published and where it is not."""
    with tempfile.TemporaryDirectory(prefix="radixgate-bench-", ignore_cleanup_errors=True) as directory:
        server = ValkeyServer(Path(directory))
        server.start()
        try:
            changes = asyncio.run(entries(server.url, corpus(CHANGED)))
        finally:
            server.kill()
    found: dict[str, list[float]] = {}
    for _ in range(3):
        plain = TreeReplica(time.monotonic, build.PREDICTED_SECONDS)
        found.setdefault("in the process", []).append(apply_us(plain, changes, 1))
        for together in (1, TOGETHER):
            descriptors = create_segments(SEGMENT_BYTES)
            segment = IndexSegment(descriptors[0], writable=True)
            published = PublishedReplica(time.monotonic, build.PREDICTED_SECONDS, segment)
            taken = apply_us(published, changes, together)
            found.setdefault(f"published, {together} together", []).append(taken)
            for descriptor in descriptors:
                os.close(descriptor)
    return {name: min(figures) for name, figures in found.items()}


def main(blocks: int) -> None:
    matches, changes = measure(blocks), changes_us()
    table = new_table(
        f"A match: {blocks:,} blocks", ("where the tree is",), ("p50 µs", "p99 µs", "B a block")
    )
    for name, figures in matches.items():
        times = (number(figures[f"match_us_{percent}"], 1) for percent in ("p50", "p99"))
        table.add_row(name, *times, number(figures.get("bytes"), 1))
    console = Console()
    console.print(table)
    table = new_table("A change", ("replica",), ("µs",))
    for name, taken in changes.items():
        table.add_row(name, number(taken, 1))
    console.print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
