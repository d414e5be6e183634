"""The nodes of the replica with their holders and parents, and counts over them; it does no I/O.

replica.py decides when a change becomes visible.
"""

from array import array

from radix_cache.blocks import Hashes
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import Holders, NodeChanged, NodeHead
from radix_cache.shared.node import ReplicaNode
from radix_cache.tiers import MASK

HOPS_MAX = 4096


class NodeMismatch(Exception):
    """A change does not fit its node, because an earlier change was missed."""


class NodeTable:
    """The nodes of the replica. Its first three dictionaries are never replaced, so that callers may keep them."""

    def __init__(self) -> None:
        self.nodes: dict[int, ReplicaNode] = {}
        """All nodes by key."""
        self.held: dict[int, int] = {}
        """The number of blocks that each tenure holds, in any tier."""
        self.holding: dict[int, set[ReplicaNode]] = {}
        """The nodes of which each tenure holds something."""
        self.blocks = 0
        """The number of blocks of all runs."""
        self.blocks_of: dict[TreeId, int] = {}
        """The number of blocks of each namespace."""

    def resolve(self, key: int, depth: int) -> ReplicaNode | None:
        """Return the node with the block at this depth, following splits from node `key`; None if it is gone."""
        node = self.nodes.get(key)
        for _ in range(HOPS_MAX):
            if node is None or depth < node.depth:
                return None
            if depth < node.end:
                return node
            node = self.nodes.get(node.next)
        return None

    def path_to(self, key: int, depth: int) -> Hashes | None:
        """Return the first `depth` blocks of the path through the node `key`; None if any of them is missing."""
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

    def add(self, tree: TreeId, head: NodeHead, run: Hashes) -> ReplicaNode:
        """Add a node that is not linked to its parent yet."""
        node = self.nodes[head.key] = ReplicaNode(head.key, tree, run)
        self._grow(tree, len(run))
        self.set_head(node, head)
        return node

    def change(self, node: ReplicaNode, record: NodeChanged) -> bool:
        """Change a node and return whether its run has become shorter. Raises NodeMismatch."""
        run = record.run(node.run)
        if run is None:
            raise NodeMismatch
        more = len(run) - len(node.run)
        self._grow(node.tree, more)
        node.run = run
        self.set_head(node, record.head)
        return more < 0

    def set_head(self, node: ReplicaNode, head: NodeHead) -> None:
        """Replace a node's head, and the number of its holder chunks with it."""
        node.sequence, node.depth, node.used = head.sequence, head.depth, head.used
        node.next, node.above = head.next, head.above
        if len(node.chunks) != 1 << head.level:
            for chunk in range(len(node.chunks)):
                self.set_holders(node, chunk, {})
            node.chunks = [{} for _ in range(1 << head.level)]
            node.mask = (1 << head.level) - 1
        self.set_holders(node, 0, head.holders)

    def set_holders(self, node: ReplicaNode, chunk: int, holders: Holders) -> None:
        """Replace a chunk of a node's holders."""
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
        """Remove a node."""
        for chunk in range(len(node.chunks)):
            self.set_holders(node, chunk, {})
        if node.parent is not None and node.parent.children is not None:
            node.parent.children.discard(node)
        self.nodes.pop(node.key, None)
        self._grow(node.tree, -len(node.run))

    def _grow(self, tree: TreeId, blocks: int) -> None:
        self.blocks += blocks
        count = self.blocks_of.get(tree, 0) + blocks
        if count:
            self.blocks_of[tree] = count
        else:
            self.blocks_of.pop(tree, None)

    def link(self, node: ReplicaNode) -> None:
        """Link a node to its parent."""
        if node.depth:
            parent = self.resolve(node.above, node.depth - 1)
            node.parent = parent
            if parent is not None:
                if parent.children is None:
                    parent.children = set()
                parent.children.add(node)

    def relink_children(self, node: ReplicaNode) -> None:
        """After a split, link the children of the upper half to the lower half."""
        for child in list(node.children or ()):
            if child.depth != node.end and node.children is not None:
                node.children.discard(child)
                self.link(child)

    def replace_nodes(
        self,
        before: set[ReplicaNode],
        gone: list[int],
        lost: dict[int, int],
        blocks: dict[TreeId, int],
        other: "NodeTable",
    ) -> None:
        """Replace some nodes by those of another table, in few bulk operations.

        Args:
            before: The nodes to replace.
            gone: The keys of the nodes in `before` that the other table does not have.
            lost: By tenure: how many blocks of the nodes in `before` it held.
            blocks: By namespace: how many blocks the nodes in `before` have.
            other: The table with the new nodes.
        """
        for namespace, count in blocks.items():
            self._grow(namespace, -count)
        for namespace, count in other.blocks_of.items():
            self._grow(namespace, count)
        for key in gone:
            self.nodes.pop(key, None)
        self.nodes.update(other.nodes)
        held, holding = self.held, self.holding
        for tenure, count in lost.items():
            held[tenure] -= count
            holding[tenure] = holding[tenure] - before
            if not holding[tenure]:
                del held[tenure], holding[tenure]
        for tenure, nodes in other.holding.items():
            held[tenure] = held.get(tenure, 0) + other.held[tenure]
            holding[tenure] = holding[tenure] | nodes if tenure in holding else nodes
