"""Keeps the tree in Redis within its bounds. One gateway at a time does it, by a lease; any can.

What goes: predictions whose writer has died, remains of tenures that are over, leaves that nobody has used for too
long, and, where the tree is larger than its bound, the least recently used leaves. The copy says what; the scripts
check that nothing has changed in between.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator

from radix_cache.redis.call import RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import REGISTRY, NamespaceId
from radix_cache.shared.layouts import drop_older_layouts
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.tree_store import (NODES_PER_CALL_MAX, TreeStore)

log = logging.getLogger(__name__)

KEEP = Script.from_file("radix_cache.shared", "keep")

LEASE_MS = 5000
ROUND_SECONDS = 1.0
SWEPT_PER_ROUND_MAX = 4096
EVICTED_PER_ROUND_MAX = 16384
SLICE_NODES = 2000
AGE_ROUNDS = 30
"""Ages are looked at in every so-manieth round: it means looking at every leaf."""


class IndexMaintenance:
    """`blocks_max`: of the whole tree, where every node weighs `node_blocks` more.

    `idle_seconds_max`: a leaf that was not used for longer goes.
    """

    def __init__(
        self,
        redis: ScriptCaller,
        store: TreeStore,
        replica: TreeReplica,
        *,
        blocks_max: int,
        node_blocks: int = 0,
        idle_seconds_max: float,
        lost: Callable[[], Collection[int]],
        identity: bytes | None = None,
    ) -> None:
        """`lost`: shards that the copy does not show as they are. There it tidies nothing."""
        self.is_leader = False
        self._redis = redis
        self._store = store
        self._replica = replica
        self._blocks_max = blocks_max
        self._node_blocks = node_blocks
        self._idle_seconds_max = idle_seconds_max
        self._lost = lost
        self._identity = identity or os.urandom(8)
        self._rounds = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            try:
                # Without the registry it is not known whose remains are whose.
                self.is_leader = REGISTRY not in self._lost() and await self._leased()
                if self.is_leader:
                    await self.run_round()
            except RedisDown as err:
                self.is_leader = False
                log.debug("the keeper waits for Redis: %s", err)

    async def run_round(self) -> None:
        """One round. Raises RedisDown."""
        self._rounds += 1
        await self._withdraw_lapsed()
        await self._sweep()
        over = self._replica.blocks + self._node_blocks * len(self._replica.nodes) - self._blocks_max
        if over > 0 or self._rounds % AGE_ROUNDS == 1:
            await self._evict(over)
        if self._rounds % AGE_ROUNDS == 1:
            await drop_older_layouts(self._redis, self._store.keys)

    async def _leased(self) -> bool:
        """Ours, or ours from now on, or somebody else's."""
        return await self._redis.call(KEEP, [self._store.keys.keeper], [self._identity, LEASE_MS]) == 1

    async def _withdraw_lapsed(self) -> None:
        self._replica.expire()
        by_shard: dict[int, list[bytes]] = {}
        for identity, shard in self._replica.lapsed.items():
            if shard not in self._lost():
                by_shard.setdefault(shard, []).append(identity)
        for shard, identities in by_shard.items():
            for at in range(0, len(identities), NODES_PER_CALL_MAX):
                await self._store.withdraw(shard, identities[at : at + NODES_PER_CALL_MAX])

    async def _sweep(self) -> None:
        left = SWEPT_PER_ROUND_MAX
        for tenure in self._replica.ended_tenures():
            remains = filter(self._is_there, self._replica.holding.get(tenure, ()))
            going = sorted(remains, key=lambda node: -node.depth)[:left]
            left -= len(going)
            for namespace, nodes in _batches(going):
                await self._store.cut(namespace, [(node, tenure, 0) for node in nodes])

    async def _evict(self, over: int) -> None:
        """The oldest leaves: all that are idle, and as many as make the tree fit."""
        idle_before = self._replica.server_seconds() - self._idle_seconds_max
        leaves: list[ReplicaNode] = []
        for at, node in enumerate(list(self._replica.nodes.values())):
            if not node.children and (over > 0 or node.used < idle_before) and self._is_there(node):
                leaves.append(node)
            if at % SLICE_NODES == SLICE_NODES - 1:
                await asyncio.sleep(0)
        leaves.sort(key=lambda node: (node.used, node.sequence))
        going: list[ReplicaNode] = []
        for node in leaves[:EVICTED_PER_ROUND_MAX]:
            if over <= 0 and node.used >= idle_before:
                break
            going.append(node)
            over -= len(node.run) + self._node_blocks
        for namespace, nodes in _batches(going):
            await self._store.evict(namespace, nodes)

    def _is_there(self, node: ReplicaNode) -> bool:
        lost = self._lost()
        return not lost or self._store.keys.shard(node.namespace) not in lost


def _batches(nodes: Iterable[ReplicaNode]) -> Iterator[tuple[NamespaceId, list[ReplicaNode]]]:
    """By namespace, as many as one call takes, each in its order."""
    spaces: dict[NamespaceId, list[ReplicaNode]] = {}
    for node in nodes:
        spaces.setdefault(node.namespace, []).append(node)
    for namespace, members in spaces.items():
        for at in range(0, len(members), NODES_PER_CALL_MAX):
            yield namespace, members[at : at + NODES_PER_CALL_MAX]
