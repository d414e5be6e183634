"""Building the measured structures from a corpus."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import Holders, NodeHead
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.tree_store import TreeStore
from radix_cache.tree import RadixTree
from tests.benchmarks.index.corpus import Session, holds

HOLDERS_MAX = 32
"""The holders of one chunk, as in lua/tree.lua."""

FIRST_TENURE = 1_700_000_000
UNDER_WAY_MAX = 256
PREDICTED_SECONDS = 600.0


def worker(number: int) -> WorkerId:
    return WorkerId(f"worker-{number}")


def space(number: int) -> Namespace:
    return Namespace(model=f"model-{number}", block_size=16)


def in_memory(sessions: list[Session]) -> RadixTree[int]:
    """Build a RadixTree, the index of one process without Redis."""
    tree: RadixTree[int] = RadixTree()
    for number, (session, hashes) in enumerate(holds(sessions)):
        tree.record(hashes, session.worker, number)
    return tree


def as_copy(tree: RadixTree[int], workers: int, spaces: int = 8) -> TreeReplica:
    """Build the replica of the same nodes as a snapshot would, but without Redis."""
    copy = TreeReplica(time.monotonic, PREDICTED_SECONDS)
    for number in range(workers):
        copy.enrol(worker(number), FIRST_TENURE + number, "")
    loading = copy.load(0, b"tip of 0", 1, {}, _nodes(tree), ())
    for _ in loading or ():
        pass
    return copy


def _nodes(tree: RadixTree[int]) -> Iterator[tuple[TreeId, NodeHead, Hashes, dict[int, Holders]]]:
    nowhere = TreeId(bytes(8))
    for key, node in tree._nodes.items():
        held = {FIRST_TENURE + tenure.holder: blocks for tenure, blocks in node.counts.items()}
        level = max(0, (max(len(held) - 1, 0) // HOLDERS_MAX).bit_length())
        chunks: dict[int, Holders] = {at: {} for at in range(1 << level)}
        for tenure, blocks in held.items():
            chunks[tenure % (1 << level)][tenure] = blocks
        above = node.parent.run[0] if node.parent is not None else 0
        run = node.run[:]
        head = NodeHead(
            key, 1, node.depth, len(run), len(node.children), 1, level, run[-1], 0, above, chunks.pop(0)
        )
        yield nowhere, head, run, chunks


async def in_redis(
    store: TreeStore, told: Iterable[tuple[Session, Hashes]], tenures: Sequence[int] | None = None
) -> int:
    """Write the corpus to Redis, many calls to a round trip; return the number of calls."""
    waiting: list[asyncio.Future[list[int] | int]] = []
    number = count()
    for session, hashes in told:
        tenure = tenures[session.worker] if tenures is not None else FIRST_TENURE + session.worker
        waiting.append(store.hold(space(session.space), hashes, tenure))
        next(number)
        if len(waiting) >= UNDER_WAY_MAX:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)
    return next(number)
