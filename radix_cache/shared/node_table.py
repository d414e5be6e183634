"""The nodes of a read copy, who holds them, and who hangs below whom: changed node by node, counted as they change.

No I/O, and no promise of its own: copy.py says what may be seen when.
"""

from array import array

from radix_cache.blocks import Hashes
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.node import ReplicaNode
from radix_cache.shared.log_records import (NodeHead, Holders, NodeChanged)
from radix_cache.tiers import MASK

HOPS_MAX = 4096


class NodeMismatch(Exception):
    """A change of a node that is not as it was before the change: something was missed."""


class NodeTable:
    """`nodes` by key. `blocks`: of all runs; `blocks_of`: by namespace. `held`: blocks by tenure, in any tier.
    `holding`: the nodes of each tenure.

    The three dicts are never replaced: others may keep them.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, ReplicaNode] = {}
        self.held: dict[int, int] = {}
        self.holding: dict[int, set[ReplicaNode]] = {}
        self.blocks = 0
        self.blocks_of: dict[NamespaceId, int] = {}

    def resolve(self, key: int, depth: int) -> ReplicaNode | None:
        """The node that has the block of this depth, on the way from `key` along splits."""
        node = self.nodes.get(key)
        for _ in range(HOPS_MAX):
            if node is None or depth < node.depth:
                return None
            if depth < node.end:
                return node
            node = self.nodes.get(node.next)
        return None

    def path_to(self, key: int, depth: int) -> Hashes | None:
        """The first `depth` blocks of the path through `key`; None if they are not all there."""
        node = self.resolve(key, depth - 1)
        if node is None:
            return None
        runs = [node.run[: depth - node.depth]]
        while node.depth:
            node = node.parent
            if node is None or node.end != depth - sum(map(len, runs)):
                return None
            runs.append(node.run)
        path: Hashes = array("Q")
        for run in reversed(runs):
            path.extend(run)
        return path

    def add(self, namespace: NamespaceId, head: NodeHead, run: Hashes) -> ReplicaNode:
        """A new one, without a place below another."""
        node = self.nodes[head.key] = ReplicaNode(head.key, namespace, run)
        self._grow(namespace, len(run))
        self.set_head(node, head)
        return node

    def change(self, node: ReplicaNode, record: NodeChanged) -> bool:
        """Says whether the run has become shorter. Raises Unknown."""
        run = record.run(node.run)
        if run is None:
            raise NodeMismatch
        more = len(run) - len(node.run)
        self._grow(node.namespace, more)
        node.run = run
        self.set_head(node, record.head)
        return more < 0

    def set_head(self, node: ReplicaNode, head: NodeHead) -> None:
        node.sequence, node.depth, node.used = head.sequence, head.depth, head.used
        node.next, node.above = head.next, head.above
        if len(node.chunks) != 1 << head.level:
            for chunk in range(len(node.chunks)):
                self.set_holders(node, chunk, {})
            node.chunks = [{} for _ in range(1 << head.level)]
            node.mask = (1 << head.level) - 1
        self.set_holders(node, 0, head.holders)

    def set_holders(self, node: ReplicaNode, chunk: int, holders: Holders) -> None:
        before = node.chunks[chunk]
        if before == holders:
            return
        held, holding = self.held, self.holding
        for tenure, value in before.items():
            held[tenure] -= value & MASK
            if tenure not in holders:
                nodes = holding[tenure]
                nodes.discard(node)
                if not nodes:
                    del holding[tenure], held[tenure]
        for tenure, value in holders.items():
            if tenure not in before:
                holding.setdefault(tenure, set()).add(node)
            held[tenure] = held.get(tenure, 0) + (value & MASK)
        node.chunks[chunk] = holders

    def remove(self, node: ReplicaNode) -> None:
        for chunk in range(len(node.chunks)):
            self.set_holders(node, chunk, {})
        if node.parent is not None and node.parent.children is not None:
            node.parent.children.discard(node)
        self.nodes.pop(node.key, None)
        self._grow(node.namespace, -len(node.run))

    def _grow(self, namespace: NamespaceId, blocks: int) -> None:
        self.blocks += blocks
        count = self.blocks_of.get(namespace, 0) + blocks
        if count:
            self.blocks_of[namespace] = count
        else:
            self.blocks_of.pop(namespace, None)

    def link(self, node: ReplicaNode) -> None:
        """It finds its parent."""
        if node.depth:
            parent = self.resolve(node.above, node.depth - 1)
            node.parent = parent
            if parent is not None:
                if parent.children is None:
                    parent.children = set()
                parent.children.add(node)

    def relink_children(self, node: ReplicaNode) -> None:
        """After a split the children stand below the lower half."""
        for child in list(node.children or ()):
            if child.depth != node.end and node.children is not None:
                node.children.discard(child)
                self.link(child)

    def replace(
        self,
        before: set[ReplicaNode],
        gone: list[int],
        lost: dict[int, int],
        blocks: dict[NamespaceId, int],
        by: "NodeTable",
    ) -> None:
        """The nodes of another table in place of some: few operations, each on many.

        `gone`: keys that are there no more; `lost`: blocks that each tenure held of the nodes before; `blocks`: of
        their runs, by namespace.
        """
        for namespace, count in blocks.items():
            self._grow(namespace, -count)
        for namespace, count in by.blocks_of.items():
            self._grow(namespace, count)
        for key in gone:
            self.nodes.pop(key, None)
        self.nodes.update(by.nodes)
        held, holding = self.held, self.holding
        for tenure, count in lost.items():
            held[tenure] -= count
            holding[tenure] = holding[tenure] - before
            if not holding[tenure]:
                del held[tenure], holding[tenure]
        for tenure, nodes in by.holding.items():
            held[tenure] = held.get(tenure, 0) + by.held[tenure]
            holding[tenure] = holding[tenure] | nodes if tenure in holding else nodes
