"""A compressed radix tree over chained block hashes, which records the prefixes that each holder has.

The index that all gateways share is not this tree: it is in Redis (shared/lua/tree.lua), with a copy in each
gateway (shared/replica.py). This one is in the memory of one process, for local_index.py, the simulation and
benchmarks.

A node is a run of blocks within which no path branches. In this example two prompts have six blocks in common, then
three of their own each; worker W has both prompts, V only the first four blocks of the first one:

    insert A B C D E F G H I              insert A B C D E F X Y Z   (diverges at X: a split)

    [A B C D E F G H I]                   [A B C D E F] --+-- [G H I]
      W: 9, V: 4                            W: 6, V: 4    |     W: 3
                                                          +-- [X Y Z]
                                                                W: 3

Because hashes are chained, the hash of its first block identifies a node, and a walk needs no child table: the
query's block after a node's run is the key of the next node. For the same reason a run and a query agree on a block
only if they agree on all blocks before it, so the first difference is found by bisection.

A holder's share of a node is a count of leading blocks. A count suffices, because engines evict leaves first, so
that a holder always has the beginning of a path. For holders that do not have all their blocks on the GPU,
cumulative counts show how many are in which tier (tiers.py). `check` verifies the invariants:

    * a holder of a node holds its whole parent, in every tier in which it holds something of the node;
    * a node without children is as long as its largest count;
    * the blocks of all runs are the tree's size, and the counts of a holder are the holder's size.

Forgetting a holder takes one step: its tenure ends, matches skip it, and later calls remove its remains a few at a
time. Eviction removes the least recently used blocks first, leaves before inner nodes, the tail of a run before its
head.
"""

from array import array
from bisect import bisect_left
from collections import deque
from math import inf, nextafter
from typing import Generic

from radix_cache.blocks import Hashes
from radix_cache.tiers import Tier, TierBlocks
from radix_cache.tree_node import Holder, RadixNode, Tenure

SWEPT_PER_RECORD_MAX = 64


class RadixTree(Generic[Holder]):
    """The prefixes that each holder has. `now` is from any clock that never runs backwards; it orders eviction."""

    def __init__(self) -> None:
        self.blocks = 0
        self._nodes: dict[int, RadixNode[Holder]] = {}
        self._tenures: dict[Holder, Tenure[Holder]] = {}
        self._ended: deque[Tenure[Holder]] = deque()
        self._clock = -inf
        self._tiered = False

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def match(self, hashes: Hashes) -> dict[Holder, int]:
        """Return how many leading blocks of the query each holder has; a holder that has none is absent."""
        found: dict[Tenure[Holder], int] = {}
        nodes, at, blocks = self._nodes, 0, len(hashes)
        while at < blocks and (node := nodes.get(hashes[at])) is not None:
            run = node.run
            end = at + len(run)
            # Mostly the query has the whole run: then there is nothing to search for.
            whole = end <= blocks and run[-1] == hashes[end - 1]
            if not whole:
                end = at + common_blocks(run, hashes, at)
            for tenure, count in node.counts.items():
                if tenure.alive and found.get(tenure, 0) == at:
                    found[tenure] = at + count if at + count < end else end
            at = end
            if not whole:
                break
        depths: dict[Holder, int] = {}
        for tenure, depth in found.items():
            depths[tenure.holder] = depth
        return depths

    def slower(self, hashes: Hashes) -> dict[Holder, TierBlocks]:
        """Return the leading blocks of the query by tier, for holders that have some of them outside the GPU."""
        if not self._tiered:
            return {}
        found: dict[Tenure[Holder], TierBlocks] = {}
        at, blocks = 0, len(hashes)
        while at < blocks and (node := self._nodes.get(hashes[at])) is not None:
            common = common_blocks(node.run, hashes, at)
            slower = set(node.slower or ()) | found.keys()
            for tenure in slower:
                before = found.get(tenure, TierBlocks(at, at, at))
                here = node.held(tenure).at_most(Tier.DISK, common)
                found[tenure] = TierBlocks(
                    *(held + more if held == at else held for held, more in zip(before, here, strict=True))
                )
            at += common
            if common < len(node.run):
                break
        return {tenure.holder: held for tenure, held in found.items() if tenure.alive}

    def record(self, hashes: Hashes, holder: Holder, now: float, tier: Tier = Tier.GPU) -> None:
        """Record that `holder` has all of `hashes` in this tier or a faster one, and used them at `now`."""
        if self._ended:
            self.sweep(SWEPT_PER_RECORD_MAX)
        if not hashes:
            return
        self._tiered = self._tiered or tier is not Tier.GPU
        tenure = self._tenures.get(holder)
        if tenure is None:
            tenure = self._tenures[holder] = Tenure(holder)
        self._clock = use = now if now > self._clock else nextafter(self._clock, inf)
        at, blocks = 0, len(hashes)
        parent: RadixNode[Holder] | None = None
        while at < blocks:
            node = self._nodes.get(hashes[at])
            if node is None:
                node = self._grow(parent, hashes, at)
                common = node.end - at
                self._credit(node, tenure, len(node.run), use, tier)
            else:
                common = common_blocks(node.run, hashes, at)
                if common < len(node.run) and at + common < blocks:
                    node = self._split(node, common)
                self._credit(node, tenure, common, use, tier)
            at += common
            parent = node

    def shorten(self, hashes: Hashes, holder: Holder, blocks: int, tier: Tier = Tier.DISK) -> None:
        """Record that `holder` has at most the first `blocks` of `hashes`, in this tier and faster ones.

        It then has nothing that continues beyond them either.
        """
        tenure = self._tenures.get(holder)
        if tenure is None or blocks >= len(hashes):
            return
        self._tiered = self._tiered or tier is not Tier.DISK
        at = 0
        while (node := self._nodes.get(hashes[at])) is not None:
            common = common_blocks(node.run, hashes, at)
            if blocks < at + common:
                self._cut(node, tenure, max(blocks - at, 0), tier)
                return
            at += common
            if common < len(node.run) or at == len(hashes):
                return

    def forget(self, holder: Holder) -> None:
        """Record that `holder` has nothing any more, in one step however many blocks it had."""
        tenure = self._tenures.pop(holder, None)
        if tenure is not None:
            tenure.alive = False
            self._ended.append(tenure)

    def held(self, holder: Holder) -> int:
        """Return the number of blocks that `holder` has."""
        tenure = self._tenures.get(holder)
        return tenure.blocks if tenure is not None else 0

    def holders(self) -> list[Holder]:
        """Return all current holders."""
        return list(self._tenures)

    def evict(self, holder: Holder, blocks_max: int) -> None:
        """Remove the least recently used blocks of `holder` until it has `blocks_max` or fewer."""
        tenure = self._tenures.get(holder)
        while tenure is not None and tenure.blocks > blocks_max:
            self._evict_oldest(tenure, tenure.blocks - blocks_max)

    def evict_idle(self, before: float) -> None:
        """Remove from every holder the nodes that it last used before this moment."""
        for tenure in self._tenures.values():
            while (oldest := tenure.oldest_use()) is not None and oldest < before:
                self._evict_oldest(tenure, tenure.blocks)

    def shrink(self, blocks_max: int, node_blocks: int = 0) -> None:
        """Shrink the tree to `blocks_max` blocks; every node counts as `node_blocks` additional blocks.

        Remains of forgotten holders go first, then the least recently used blocks.
        """
        nodes = self._nodes
        while self.blocks + node_blocks * len(nodes) > blocks_max and self._ended:
            self.sweep(SWEPT_PER_RECORD_MAX)
        while (over := self.blocks + node_blocks * len(nodes) - blocks_max) > 0:
            tenures = [tenure for tenure in self._tenures.values() if tenure.blocks]
            if not tenures:
                return
            self._evict_oldest(min(tenures, key=lambda tenure: tenure.oldest_use() or 0.0), over)

    def sweep(self, nodes_max: int) -> None:
        """Remove remains of forgotten holders from at most `nodes_max` nodes."""
        while nodes_max > 0 and self._ended:
            tenure = self._ended[0]
            if not tenure.used:
                self._ended.popleft()
                continue
            node, _ = tenure.used.popitem()
            tenure.blocks -= node.counts[tenure]
            node.hold(tenure, TierBlocks())
            self._tidy(node)
            nodes_max -= 1

    def check(self) -> None:
        """Check all invariants of the whole tree, for tests. Raises AssertionError."""
        sizes: dict[Tenure[Holder], int] = {}
        for first, node in self._nodes.items():
            assert node.run[0] == first
            assert node.counts or node.children, "an unheld leaf"
            if not node.children:
                assert len(node.run) == max(node.counts.values())
            if node.parent is None:
                assert node.depth == 0
            else:
                assert node.depth == node.parent.end
                assert node in node.parent.children
            for tenure, count in node.counts.items():
                assert 1 <= count <= len(node.run)
                assert node in tenure.used
                assert not tenure.alive or self._tenures[tenure.holder] is tenure
                held = node.held(tenure)
                assert 0 <= held.gpu <= held.host <= held.all == count
                if node.parent is not None and tenure.alive:
                    for above, here in zip(node.parent.held(tenure), held, strict=True):
                        assert not here or above == len(node.parent.run), "held below a gap"
                sizes[tenure] = sizes.get(tenure, 0) + count
            assert all(node.held(tenure).gpu < node.counts[tenure] for tenure in node.slower or ())
        for tenure in (*self._tenures.values(), *self._ended):
            assert sizes.get(tenure, 0) == tenure.blocks
            assert all(tenure in node.counts for node in tenure.used)
        assert self.blocks == sum(len(node.run) for node in self._nodes.values())

    # Changes to single nodes. Each keeps all invariants, except the one that its name mentions.

    def _grow(self, parent: RadixNode[Holder] | None, hashes: Hashes, at: int) -> RadixNode[Holder]:
        """Add hashes[at:] below `parent` and return the node: a leaf's run grows, another node gets a child."""
        rest = hashes[at:]
        self.blocks += len(rest)
        if parent is not None and not parent.children:
            parent.run.extend(rest)
            return parent
        node = self._nodes[rest[0]] = RadixNode(rest, at, parent)
        if parent is not None:
            parent.children.add(node)
        return node

    def _split(self, node: RadixNode[Holder], at: int) -> RadixNode[Holder]:
        """Split a run in two and return the new upper half.

        The old object becomes the lower half, so that its children and its entries in the tenures' queues stay
        valid.
        """
        upper: RadixNode[Holder] = RadixNode(node.run[:at], node.depth, node.parent)
        if upper.parent is not None:
            upper.parent.children.remove(node)
            upper.parent.children.add(upper)
        upper.children.add(node)
        node.parent, node.depth, node.run = upper, node.depth + at, node.run[at:]
        self._nodes[upper.run[0]] = upper
        self._nodes[node.run[0]] = node
        for tenure, count in list(node.counts.items()):
            held = node.held(tenure)
            upper.hold(tenure, held.at_most(Tier.DISK, at))
            node.hold(tenure, held.without_first(at))
            tenure.used[upper] = tenure.used[node]
            tenure.enqueue(upper)
            if count > at:
                # The run may have grown since its entry was made; the lower half must reach the top first.
                tenure.enqueue(node)
            else:
                del tenure.used[node]
        return upper

    def _credit(
        self, node: RadixNode[Holder], tenure: Tenure[Holder], count: int, use: float, tier: Tier
    ) -> None:
        """Record that `tenure` has at least `count` leading blocks of the node in that tier, used at `use`."""
        before = node.counts.get(tenure, 0)
        if tier is Tier.GPU and node.slower is None:
            if count > before:
                node.counts[tenure] = count
                tenure.blocks += count - before
        elif count > before or node.slower is not None:
            node.hold(tenure, node.held(tenure).at_least(tier, count))
            tenure.blocks += max(count - before, 0)
        tenure.used[node] = use
        if not before:
            tenure.enqueue(node)

    def _cut(
        self, node: RadixNode[Holder], tenure: Tenure[Holder], keep: int, tier: Tier = Tier.DISK
    ) -> None:
        """Leave `tenure` at most `keep` leading blocks of the node and nothing below it, in that tier or faster."""
        below = [node]
        while below:
            held = below.pop()
            before = held.held(tenure)
            after = before.at_most(tier, keep if held is node else 0)
            if after == before:
                continue
            below.extend(child for child in held.children if tenure in child.counts)
            held.hold(tenure, after)
            tenure.blocks -= before.all - after.all
            if not after.all:
                del tenure.used[held]
            self._tidy(held)

    def _tidy(self, node: RadixNode[Holder]) -> None:
        """Drop the tail of a leaf that no tenure holds; remove an empty leaf, and then perhaps its parent."""
        at: RadixNode[Holder] | None = node
        while at is not None and not at.children:
            longest = max(at.counts.values(), default=0)
            self.blocks -= len(at.run) - longest
            if longest:
                del at.run[longest:]
                return
            del self._nodes[at.run[0]]
            at.run = array("Q")
            parent = at.parent
            if parent is not None:
                parent.children.discard(at)
            at = parent

    def _evict_oldest(self, tenure: Tenure[Holder], blocks: int) -> None:
        """Remove up to `blocks` from the end of the least recently used node, which is a leaf of this tenure."""
        tenure.oldest_use()
        node = tenure.queue[0][3]
        self._cut(node, tenure, max(node.counts[tenure] - blocks, 0))


def common_blocks(run: Hashes, hashes: Hashes, at: int) -> int:
    """Return how many leading blocks of `run` the query has from `at` on; the first block must agree."""
    limit = min(len(run), len(hashes) - at)
    if run[limit - 1] == hashes[at + limit - 1]:
        return limit
    return bisect_left(range(limit), True, key=lambda i: run[i] != hashes[at + i])
