"""Keeps the tree in Redis within its bounds. One gateway at a time does this, chosen by a lease in Redis.

It withdraws predictions that have lapsed or are of gateways that died, and removes remains of ended tenures and
leaves that were not used for too long. While the tree exceeds its bound, it also removes the least recently used
leaves of isolation groups above their fair share. The bound is the setting index.memory_bytes_max; a Redis that
reaches its own `maxmemory` before it takes only what makes room (FREEING of tree_store.py). The replica shows what
to remove; the scripts check that nothing has changed in between.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from radix_cache.redis.call import RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.fair_shares import FairShares
from radix_cache.shared.index_counts import namespaces_of
from radix_cache.shared.keys import REGISTRY, TreeId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.older_layouts import drop_older_layouts
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.tree_store import NODES_PER_CALL_MAX, TreeStore

log = logging.getLogger(__name__)

ACQUIRE_LEASE = Script.from_file("radix_cache.shared", "maintenance_lease")

LEASE_MS = 5000
ROUND_SECONDS = 1.0
LOST_ROUNDS = 8
"""A gateway that cannot follow some shard requests the lease only once in so many rounds, so that a gateway that
follows all shards gets it first.
"""

SWEPT_PER_ROUND_MAX = 4096
EVICTED_PER_ROUND_MAX = 16384
EVICTIONS_AT_ONCE_MAX = 16
"""The most eviction calls in flight. With one call, a flood of new prefixes would outpace eviction, since each call
waits behind the calls of the flood; more calls would delay the calls of requests.
"""

SLICE_NODES = 2000
LIVE_ROUNDS = 5
"""Predictions of dead gateways are searched for once in so many rounds, because that reads every prediction."""

AGE_ROUNDS = 30
"""Idle leaves are searched for once in so many rounds, because that reads every leaf."""


class IndexMaintenance:
    """Removes what the tree in Redis no longer needs; run `run` until the gateway stops.

    Args:
        redis: The Redis server or cluster.
        store: Changes the tree.
        replica: Shows the tree.
        blocks_max: The bound of the whole tree in blocks.
        node_blocks: The memory of a node itself, in blocks.
        idle_seconds_max: Leaves that were not used for longer than this are removed.
        lost_shards: Returns the shards of which the replica may be outdated; they are left alone.
        identity: The id of the gateway in its leases, which is also the prefix of its prediction ids.
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
        lost_shards: Callable[[], Collection[int]],
        identity: bytes | None = None,
    ) -> None:
        self.is_leader = False
        """Whether this gateway has the lease."""
        self._redis = redis
        self._store = store
        self._replica = replica
        self._blocks_max = blocks_max
        self._node_blocks = node_blocks
        self._idle_seconds_max = idle_seconds_max
        self._lost_shards = lost_shards
        self._identity = identity or os.urandom(8)
        self._gone: set[bytes] = set()
        """The gateways with predictions that were not live at the last check."""
        self._rounds = 0
        self._lost_rounds = 0

    async def run(self) -> None:
        """Run a round every ROUND_SECONDS while this gateway has the lease, until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            try:
                self.is_leader = self._is_candidate() and await self._acquire_lease()
                if self.is_leader:
                    await self.run_round()
            except RedisDown as err:
                self.is_leader = False
                log.debug("maintenance of the prefix index waits for Redis: %s", err)

    async def run_round(self) -> None:
        """Run one round. Raises RedisDown."""
        self._rounds += 1
        await self._withdraw_lapsed()
        if self._rounds % LIVE_ROUNDS == 0:
            await self._withdraw_of_gone_gateways()
        await self._sweep()
        over = self._replica.blocks + self._node_blocks * len(self._replica.nodes) - self._blocks_max
        if over > 0 or self._rounds % AGE_ROUNDS == 1:
            await self._evict_idle_and_excess(over)
        if self._rounds % AGE_ROUNDS == 1:
            await drop_older_layouts(self._redis, self._store.keys)

    def _is_candidate(self) -> bool:
        """Return whether this gateway may have the lease in this round."""
        lost_shards = self._lost_shards()
        self._lost_rounds = self._lost_rounds + 1 if lost_shards else 0
        # Without the registry this gateway lacks the list of tenures that have ended.
        return REGISTRY not in lost_shards and self._lost_rounds % LOST_ROUNDS == 0

    async def _acquire_lease(self) -> bool:
        """Acquire or renew the lease, and return whether this gateway has it."""
        return (
            await self._redis.call(
                ACQUIRE_LEASE, [self._store.keys.maintenance_lease], [self._identity, LEASE_MS]
            )
            == 1
        )

    async def _withdraw_lapsed(self) -> None:
        """Remove predictions from Redis that are past their deadline; PredictionTable.expire decided so."""
        self._replica.expire()
        by_shard: dict[int, list[bytes]] = {}
        for identity, shard in self._replica.lapsed.items():
            if shard not in self._lost_shards():
                by_shard.setdefault(shard, []).append(identity)
        await self._withdraw(by_shard)

    async def _withdraw_of_gone_gateways(self) -> None:
        """Withdraw predictions of gateways that were live neither at this check nor at the last one."""
        members = await self._redis.ask("ZRANGE", self._store.keys.feed_leases[0], 0, -1)
        live = {member[: len(self._identity)] for member in members}
        if self._identity not in live:
            return  # Redis has lost the leases, or has none.
        gone = set[bytes]()
        by_shard: dict[int, list[bytes]] = {}
        for at, (shard, identity, _) in enumerate(list(self._replica.predictions_under_way())):
            gateway = identity[: len(self._identity)]
            if gateway not in live:
                gone.add(gateway)
                if gateway in self._gone and shard not in self._lost_shards():
                    by_shard.setdefault(shard, []).append(identity)
            if at % SLICE_NODES == SLICE_NODES - 1:
                await asyncio.sleep(0)
        self._gone = gone
        await self._withdraw(by_shard)

    async def _withdraw(self, by_shard: Mapping[int, list[bytes]]) -> None:
        for shard, identities in by_shard.items():
            for at in range(0, len(identities), NODES_PER_CALL_MAX):
                await self._store.withdraw(shard, identities[at : at + NODES_PER_CALL_MAX])

    async def _sweep(self) -> None:
        left = SWEPT_PER_ROUND_MAX
        for tenure in self._replica.ended_tenures():
            remains = filter(self._is_current, self._replica.holding.get(tenure, ()))
            leaving = sorted(remains, key=lambda node: -node.depth)[:left]
            left -= len(leaving)
            for tree, nodes in _batches(leaving):
                await self._store.cut(tree, [(node, tenure, 0) for node in nodes])

    async def _evict_idle_and_excess(self, over: int) -> None:
        """Remove idle leaves, and then least recently used leaves until the tree fits.

        The latter are leaves of groups above their fair share.

        Args:
            over: Blocks by which the tree exceeds its bound.
        """
        idle_before = self._replica.server_seconds() - self._idle_seconds_max
        groups = self._groups()
        leaves, sizes = await self._leaves_and_sizes(groups, None if over > 0 else idle_before)
        shares = FairShares(sizes, self._blocks_max)
        leaving: list[ReplicaNode] = []
        for at, node in enumerate(leaves):
            if len(leaving) == EVICTED_PER_ROUND_MAX or (over <= 0 and node.used >= idle_before):
                break
            size = len(node.run) + self._node_blocks
            if shares.take(groups.get(node.tree, ""), size) or node.used < idle_before:
                leaving.append(node)
                over -= size
            if at % SLICE_NODES == SLICE_NODES - 1:
                await asyncio.sleep(0)
        batches = list(_batches(leaving))
        for at in range(0, len(batches), EVICTIONS_AT_ONCE_MAX):
            several = batches[at : at + EVICTIONS_AT_ONCE_MAX]
            await asyncio.gather(*(self._store.evict(tree, nodes) for tree, nodes in several))

    async def _leaves_and_sizes(
        self, groups: Mapping[TreeId, str], used_before: float | None
    ) -> tuple[list[ReplicaNode], Counter[str]]:
        """Return the leaves, the least recently used first, and the size of each group in blocks.

        Args:
            groups: The isolation group of each tree.
            used_before: Return only leaves that were not used since then, in server seconds; None for all leaves.
        """
        leaves: list[ReplicaNode] = []
        sizes = Counter[str]()
        for at, node in enumerate(list(self._replica.nodes.values())):
            sizes[groups.get(node.tree, "")] += len(node.run) + self._node_blocks
            wanted = not node.children and (used_before is None or node.used < used_before)
            if wanted and self._is_current(node):
                leaves.append(node)
            if at % SLICE_NODES == SLICE_NODES - 1:
                await asyncio.sleep(0)
        leaves.sort(key=lambda node: (node.used, node.sequence))
        return leaves, sizes

    def _groups(self) -> dict[TreeId, str]:
        """Return the isolation group of each tree."""
        names = namespaces_of(self._replica)
        return {tree: namespace.group for tree, namespace in names.items()}

    def _is_current(self, node: ReplicaNode) -> bool:
        lost_shards = self._lost_shards()
        return not lost_shards or self._store.keys.shard(node.tree) not in lost_shards


def _batches(nodes: Iterable[ReplicaNode]) -> Iterator[tuple[TreeId, list[ReplicaNode]]]:
    """Yield the nodes by tree, in their order, in batches that fit one call."""
    by_tree: dict[TreeId, list[ReplicaNode]] = {}
    for node in nodes:
        by_tree.setdefault(node.tree, []).append(node)
    for tree, members in by_tree.items():
        for at in range(0, len(members), NODES_PER_CALL_MAX):
            yield tree, members[at : at + NODES_PER_CALL_MAX]
