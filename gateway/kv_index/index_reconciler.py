"""Brings the index in line with the followers' record of a worker's blocks, by writing only the difference.

    held, not in the tree      is recorded
    in the tree, not held      is cut, if the followers' record is complete; so are tiers that are too fast

A gateway does this whenever it begins to write a worker's events: after a replay, after it has taken over a lease,
and after Redis was away. It does not depend on what was written before, or by which gateway. The work is done
in short steps with few calls in flight; meanwhile the followers do not change.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping

from radix_cache.blocks import Hashes
from radix_cache.follower import CacheFollower, PathHeld
from radix_cache.loop_yield import LoopYielder
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.redis.call import ScriptAnswer
from radix_cache.shared.keys import TreeId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.shared_index import SharedIndex
from radix_cache.shared.tree_store import NODES_PER_CALL_MAX
from radix_cache.tiers import Tier

CALLS_UNDER_WAY_MAX = 64


class IndexReconciler:
    """Reconciles the index with one worker, while `valid` returns that it may be written under this tenure."""

    def __init__(self, index: SharedIndex, worker: WorkerId, tenure: int, valid: Callable[[], bool]) -> None:
        self._index = index
        self._worker = worker
        self._tenure = tenure
        self._valid = valid
        self._calls_under_way: list[asyncio.Future[ScriptAnswer]] = []
        self._yielder = LoopYielder()
        self.calls_made = 0
        """The number of calls to Redis."""

    async def reconcile(self, followers: Iterable[CacheFollower], *, whole: bool) -> bool:
        """Reconcile; return True once the tree matches the followers, False if `valid` turned false before.

        With `whole` the followers' record is complete, so the rest is cut. Raises RedisDown.
        """
        nearest: dict[int, int] = {}
        for follower in followers:
            for path in follower.paths():
                if path is not None:
                    if whole:
                        _note_tiers(nearest, path)
                    await self._hold_missing(path.namespace, path.hashes, path.tier)
                if not await self._pause():
                    return False
        if whole and not await self._cut_excess(nearest):
            return False
        await self._wait_for_calls()
        return self._valid()

    async def _hold_missing(self, namespace: Namespace, hashes: Hashes, tier: Tier) -> None:
        if self._index.replica.match(hashes).held_tiers(self._worker).within(tier) < len(hashes):
            await self._send(self._index.store.hold(namespace, hashes, self._tenure, tier))

    async def _cut_excess(self, nearest: Mapping[int, int]) -> bool:
        """Cut the tenure's blocks in the tree that are not held, tier by tier, the deepest nodes first."""
        excess: list[tuple[ReplicaNode, Tier, int]] = []
        for node in list(self._index.replica.holding.get(self._tenure, ())):
            excess += ((node, tier, keep) for tier, keep in _excess(node, self._tenure, nearest))
            if not await self._pause():
                return False
        cuts: dict[tuple[TreeId, Tier], list[tuple[ReplicaNode, int, int]]] = {}
        for node, tier, keep in sorted(excess, key=lambda cut: -cut[0].depth):
            cuts.setdefault((node.tree, tier), []).append((node, self._tenure, keep))
        for (namespace, tier), nodes in cuts.items():
            for at in range(0, len(nodes), NODES_PER_CALL_MAX):
                batch = nodes[at : at + NODES_PER_CALL_MAX]
                await self._send(self._index.store.cut(namespace, batch, tier))
                if not await self._pause():
                    return False
        return True

    async def _send(self, call: "asyncio.Future[ScriptAnswer]") -> None:
        self._calls_under_way.append(call)
        self.calls_made += 1
        if len(self._calls_under_way) >= CALLS_UNDER_WAY_MAX:
            await self._wait_for_calls()

    async def _wait_for_calls(self) -> None:
        calls_made, self._calls_under_way = self._calls_under_way, []
        for call in calls_made:
            await call

    async def _pause(self) -> bool:
        await self._yielder.yield_if_due()
        return self._valid()


def _note_tiers(nearest: dict[int, int], path: PathHeld) -> None:
    """Record the path's tier for its blocks, from the last one up to a block with a tier as fast."""
    for block in reversed(path.hashes):
        if nearest.get(block, _NOWHERE) <= path.tier:
            break
        nearest[block] = path.tier


def _excess(node: ReplicaNode, tenure: int, nearest: Mapping[int, int]) -> Iterator[tuple[Tier, int]]:
    """Yield the tiers in which the tree has too many blocks of the node, slowest first, with the right numbers."""
    left = len(node.run)
    for tier in reversed(Tier):
        count = min(node.count(tenure, tier), left)
        left = bisect_right(node.run, int(tier), 0, count, key=lambda block: nearest.get(block, _NOWHERE))
        if left < count:
            yield tier, left


_NOWHERE = len(Tier)
