"""A node of the replica, and the match of a query with a path of such nodes."""

from collections.abc import Iterator, Sequence
from heapq import nlargest
from itertools import islice

from radix_cache.blocks import Hashes
from radix_cache.in_flight_tree import SharedPart
from radix_cache.match import WorkerId
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import Holders
from radix_cache.tiers import MASK, Tier, TierBlocks, all_on_gpu, unpack_tiers


class ReplicaNode:
    """A run of blocks, as in lua/tree.lua. `chunks` has its holders, by tenure modulo the number of chunks."""

    __slots__ = (
        "above",
        "children",
        "chunks",
        "depth",
        "key",
        "mask",
        "next",
        "parent",
        "run",
        "sequence",
        "tree",
        "used",
    )

    def __init__(self, key: int, tree: TreeId, run: Hashes) -> None:
        self.key = key
        self.tree = tree
        self.run = run
        self.sequence = self.depth = self.used = self.next = self.above = self.mask = 0
        self.chunks: list[Holders] = [{}]
        self.parent: ReplicaNode | None = None
        self.children: set[ReplicaNode] | None = None

    @property
    def end(self) -> int:
        """The number of blocks up to the end of the run, counted from the beginning of the path."""
        return self.depth + len(self.run)

    def count(self, tenure: int, tier: Tier = Tier.DISK) -> int:
        """Return how many leading blocks of the run the tenure holds in this tier or a faster one."""
        value = self.chunks[tenure & self.mask].get(tenure, 0)
        return value if value <= MASK else unpack_tiers(value).within(tier)

    def holders(self) -> Iterator[tuple[int, TierBlocks]]:
        """Yield every tenure that holds blocks of the run, with its leading blocks."""
        for chunk in self.chunks:
            for tenure, value in chunk.items():
                yield tenure, unpack_tiers(value)


class PathMatch:
    """A PrefixMatch that computes the counts of a worker on demand, so that 1,000 workers cost no more than one.

    It reads the replica, and is valid until the next await.
    """

    __slots__ = ("_tenures", "_workers", "path", "pending", "shared", "version")

    def __init__(
        self,
        path: list[tuple[ReplicaNode, int]],
        pending: dict[WorkerId, int],
        tenures: dict[WorkerId, int],
        workers: dict[int, WorkerId],
        version: int,
        shared: Sequence[SharedPart] = (),
    ) -> None:
        self.path = path
        """The nodes of the path, each with the number of its blocks that are in the query."""
        self.pending = pending
        """Leading blocks that requests under way bring to each worker, or use there."""
        self.shared = shared
        """The parts of the query that requests under way share, and how many requests have each part."""
        self._tenures = tenures
        self._workers = workers
        self.version = version
        """The version of the replica that was matched; see TreeReplica.version."""

    @property
    def confirmed(self) -> dict[WorkerId, int]:
        """Leading blocks that each worker is known to hold."""
        if not self.path:
            return {}
        return {worker: held for worker in self._tenures if (held := self.held(worker))}

    def held(self, worker: WorkerId) -> int:
        """Return the leading blocks that the worker is known to hold."""
        tenure = self._tenures.get(worker)
        held = 0
        if tenure is not None:
            for node, common in self.path:
                count = node.chunks[tenure & node.mask].get(tenure, 0) & MASK
                if count < common:
                    return held + count
                held += common
        return held

    def blocks(self, worker: WorkerId) -> int:
        """Return the leading blocks that the worker holds or is about to hold."""
        if not self.pending:
            return self.held(worker)
        return max(self.held(worker), self.pending.get(worker, 0))

    def tiers(self, worker: WorkerId) -> TierBlocks:
        """Return the leading blocks that the worker holds or is about to hold, by tier."""
        held = self.held_tiers(worker)
        if not self.pending:
            return held
        return held.at_least(Tier.GPU, self.pending.get(worker, 0))

    def holders(self, count_max: int) -> list[WorkerId]:
        """Return workers with the longest parts of the path, the longest first; looks at few nodes and holders."""
        found = dict.fromkeys(islice(self.pending, count_max))
        confirmed_max = len(found) + count_max
        for node, _ in reversed(self.path):
            for chunk in node.chunks:
                for tenure in chunk:
                    worker = self._workers.get(tenure)
                    if worker is not None:
                        found[worker] = None
                        if len(found) >= confirmed_max:
                            return nlargest(count_max, found, key=self.blocks)
        return nlargest(count_max, found, key=self.blocks)

    def holder_count(self, blocks: int) -> int:
        """Return about how many workers hold or are about to hold this many leading blocks.

        Holders of a part of the last node's run count too.
        """
        confirmed = at = 0
        for node, common in self.path:
            at += common
            if blocks <= at:
                confirmed = sum(map(len, node.chunks))
                break
        return max(confirmed, sum(depth >= blocks for depth in self.pending.values()))

    def is_held(self, blocks: int) -> bool:
        """Return whether a worker is known to hold this many leading blocks."""
        at = 0
        for node, common in self.path:
            if blocks <= at + common:
                return any(value & MASK >= blocks - at for chunk in node.chunks for value in chunk.values())
            at += common
        return False

    def held_tiers(self, worker: WorkerId) -> TierBlocks:
        """Return the leading blocks that the worker is known to hold, by tier."""
        tenure = self._tenures.get(worker)
        held = 0
        if tenure is not None:
            for node, common in self.path:
                count = node.chunks[tenure & node.mask].get(tenure, 0)
                if count > MASK:
                    return self._held_by_tier(tenure)
                if count < common:
                    held += count
                    break
                held += common
        return all_on_gpu(held)

    def _held_by_tier(self, tenure: int) -> TierBlocks:
        gpu = host = depth = 0
        for node, common in self.path:
            here = unpack_tiers(node.chunks[tenure & node.mask].get(tenure, 0))
            # A tier counts here only if it covers everything before this node.
            host += min(here.host, common) if host == depth else 0
            gpu += min(here.gpu, common) if gpu == depth else 0
            depth += min(here.all, common)
            if here.all < common:
                break
        return TierBlocks(gpu, host, depth)

    def walk_start(self, worker: WorkerId, blocks: int, tier: Tier, used_since: int) -> int | None:
        """Return the depth at which a walk must begin to record the worker as a holder of `blocks` blocks.

        That is the depth of the last node of which the worker holds something in that tier, or 0 if there is none.
        None means that the walk is unnecessary: the worker is known to hold all these blocks, and used them after
        `used_since` (server seconds).
        """
        tenure = self._tenures.get(worker)
        if tenure is None:
            return 0
        begin = reached = 0
        for node, common in self.path:
            count = node.chunks[tenure & node.mask].get(tenure, 0)
            if count > MASK:
                count = unpack_tiers(count).within(tier)
            if count:
                begin = node.depth
            if count < common or node.used < used_since:
                return begin
            reached += common
        return None if reached == blocks else begin

    def last_node(self, blocks: int) -> tuple[int, int]:
        """Return the key of the node with the last of `blocks` leading blocks, and `blocks`; (0, 0) if none has."""
        at = 0
        for node, common in self.path:
            at += common
            if blocks <= at:
                return (node.key, blocks) if blocks else (0, 0)
        return 0, 0
