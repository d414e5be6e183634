"""Brings the index in line with what a worker's followers know that it holds: the difference, and nothing else.

    held, not in the tree      is told
    in the tree, not held      is cut, where the followers know all that is held; or held further away than that

Done by whoever begins to write: after a replay, when another gateway's lease has become its own, when Redis was
away. Nothing needs to be remembered of what was told by whom. It takes as long as it takes, in short turns, with
few calls under way at one time; meanwhile the followers stand still.
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
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.shared_index import SharedIndex
from radix_cache.shared.tree_store import NODES_PER_CALL_MAX
from radix_cache.tiers import Tier

CALLS_UNDER_WAY_MAX = 64


class IndexReconciler:
    """`valid`: may it still be told, and under this tenure? Asked at every pause."""

    def __init__(self, index: SharedIndex, worker: WorkerId, tenure: int, valid: Callable[[], bool]) -> None:
        self._index = index
        self._worker = worker
        self._tenure = tenure
        self._valid = valid
        self._calls: list[asyncio.Future[ScriptAnswer]] = []
        self._yielder = LoopYielder()
        self.calls = 0
        """How many it took."""

    async def tell(self, followers: Iterable[CacheFollower], *, whole: bool) -> bool:
        """True once the tree says what the followers say; False if it may not be told any more. Raises RedisDown.

        `whole`: the followers know all that the worker holds.
        """
        nearest: dict[int, int] = {}
        for follower in followers:
            for path in follower.paths():
                if path is not None:
                    if whole:
                        _note(nearest, path)
                    await self._hold(path.namespace, path.hashes, path.tier)
                if not await self._pause():
                    return False
        if whole and not await self._cut(nearest):
            return False
        await self._answered()
        return self._valid()

    async def _hold(self, namespace: Namespace, hashes: Hashes, tier: Tier) -> None:
        if self._index.replica.match(hashes).held_tiers(self._worker).within(tier) < len(hashes):
            await self._under_way(self._index.store.hold(namespace, hashes, self._tenure, tier))

    async def _cut(self, nearest: Mapping[int, int]) -> bool:
        """What the tenure has beyond what is held, tier by tier, the deepest first."""
        beyond: list[tuple[ReplicaNode, Tier, int]] = []
        for node in list(self._index.replica.holding.get(self._tenure, ())):
            beyond += ((node, tier, keep) for tier, keep in _beyond(node, self._tenure, nearest))
            if not await self._pause():
                return False
        cuts: dict[tuple[NamespaceId, Tier], list[tuple[ReplicaNode, int, int]]] = {}
        for node, tier, keep in sorted(beyond, key=lambda cut: -cut[0].depth):
            cuts.setdefault((node.namespace, tier), []).append((node, self._tenure, keep))
        for (namespace, tier), nodes in cuts.items():
            for at in range(0, len(nodes), NODES_PER_CALL_MAX):
                batch = nodes[at : at + NODES_PER_CALL_MAX]
                await self._under_way(self._index.store.cut(namespace, batch, tier))
                if not await self._pause():
                    return False
        return True

    async def _under_way(self, call: "asyncio.Future[ScriptAnswer]") -> None:
        self._calls.append(call)
        self.calls += 1
        if len(self._calls) >= CALLS_UNDER_WAY_MAX:
            await self._answered()

    async def _answered(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            await call

    async def _pause(self) -> bool:
        await self._yielder.yield_if_due()
        return self._valid()


def _note(nearest: dict[int, int], path: PathHeld) -> None:
    """How near each block of the path is held; where one is that near already, so are those before it."""
    for block in reversed(path.hashes):
        if nearest.get(block, _NOWHERE) <= path.tier:
            break
        nearest[block] = path.tier


def _beyond(node: ReplicaNode, tenure: int, nearest: Mapping[int, int]) -> Iterator[tuple[Tier, int]]:
    """Where the node says too much of the tenure, and how many of its blocks are right; the furthest tier first."""
    left = len(node.run)
    for tier in reversed(Tier):
        count = min(node.count(tenure, tier), left)
        left = bisect_right(node.run, int(tier), 0, count, key=lambda block: nearest.get(block, _NOWHERE))
        if left < count:
            yield tier, left


_NOWHERE = len(Tier)
