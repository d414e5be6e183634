"""Checks the invariants of a tree in Redis on a dump of it, without I/O.

a node's head          fits its run: length, first and last block
children               are as many as in the head; each begins where its parent ends, found by `above` and `next`
holders                hold 1 to all blocks of the run, are in their chunk, hold the whole parent in the same tiers
a leaf                 is as long as the largest count of its holders
tenures                were once assigned to a worker
the tree               has a namespace's name and one of its ids; its paths belong to it by their first block
"""

from collections.abc import Iterator
from dataclasses import dataclass

from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys
from radix_cache.shared.log_records import NodeHead
from radix_cache.shared.node_table import HOPS_MAX
from radix_cache.shared.tree_dump import DumpedNode, DumpedTree, TenureNumbers
from radix_cache.tiers import TierBlocks, unpack_tiers

NOTHING = TierBlocks()


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One violated invariant, and what a repair has to remove.

    If `tenure`, `trim` and `whole` are not set, a repair removes the node and everything below it.
    """

    node: int | None
    """The key of the node; None for the namespace itself."""
    text: str
    tenure: int | None = None
    """Remove what this tenure holds of the node and below."""
    trim: bool = False
    """Remove the end of the node that no tenure holds."""
    whole: bool = False
    """Remove the whole namespace, since no script can repair the node."""


class NodeFamily:
    """The parents and children of a tree's nodes; nodes without a readable head are left out."""

    def __init__(self, tree: DumpedTree) -> None:
        self.heads: dict[int, NodeHead] = {
            key: node.head for key, node in tree.nodes.items() if node.head is not None
        }
        self.parents: dict[int, int] = {}
        self.children: dict[int, list[int]] = {}
        for key, head in self.heads.items():
            parent = self._resolve(head.above, head.depth - 1) if head.depth else None
            if parent is not None:
                self.parents[key] = parent
                self.children.setdefault(parent, []).append(key)

    def below(self, key: int) -> list[int]:
        """Return the node and all nodes below it, the deepest first; cycles are followed once."""
        found, waiting = {key}, [key]
        while waiting:
            for child in self.children.get(waiting.pop(), ()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return sorted(found, key=lambda each: -self.heads[each].depth if each in self.heads else 0)

    def _resolve(self, key: int, depth: int) -> int | None:
        """Return the key of the node with the block at this depth; see NodeTable.resolve."""
        for _ in range(HOPS_MAX):
            head = self.heads.get(key)
            if head is None or depth < head.depth:
                return None
            if depth < head.depth + head.length:
                return key
            key = head.next
        return None


def find_violations(tree: DumpedTree, tenures: TenureNumbers, keys: Keys) -> Iterator[Violation]:
    """Yield all violations of a tree, those of the namespace itself first."""
    yield from _of_the_name(tree, keys)
    for name, why in tree.unreadable.items():
        yield Violation(node=None, text=f"field {name!r} is unreadable: {why}", whole=True)
    family = NodeFamily(tree)
    for key, node in tree.nodes.items():
        if node.head is None:
            if not any(name[1:9] == key.to_bytes(8, "little") for name in tree.unreadable):
                yield Violation(node=key, text="a run or holders without a head", whole=True)
            continue
        yield from _of_the_run(node.head, node)
        yield from _of_the_place(node.head, family)
        yield from _of_the_holders(node.head, node, tree, family, tenures)


def holders_of(node: DumpedNode) -> dict[int, TierBlocks]:
    """Return the leading blocks of a node that each tenure holds."""
    found = dict(node.head.holders) if node.head is not None else {}
    for chunk in node.chunks.values():
        found.update(chunk)
    return {tenure: unpack_tiers(value) for tenure, value in found.items()}


def _of_the_name(tree: DumpedTree, keys: Keys) -> Iterator[Violation]:
    if not tree.nodes:
        return
    if tree.name is None:
        yield Violation(node=None, text="the namespace has no name, so that no gateway reads it", whole=True)
        return
    try:
        namespace = Namespace.unpack(tree.name)
    except ValueError:
        namespace = None
    if namespace is None or tree.id not in keys.trees_of(namespace):
        yield Violation(node=None, text="the name is not a namespace, or that of another one", whole=True)
        return
    roots = [key for key, node in tree.nodes.items() if node.head is not None and not node.head.depth]
    if any(keys.tree_of(namespace, root) != tree.id for root in roots):
        yield Violation(node=None, text="a path belongs to another part of the namespace", whole=True)


def _of_the_run(head: NodeHead, node: DumpedNode) -> Iterator[Violation]:
    run = node.run
    if run is None:
        yield Violation(node=head.key, text="it has no run")
    elif len(run) != head.length or not run:
        yield Violation(node=head.key, text=f"its run has {len(run)} blocks, its head has {head.length}")
    elif run[0] != head.key:
        yield Violation(node=head.key, text="its run does not begin with its key")
    elif run[-1] != head.last:
        yield Violation(node=head.key, text="its run does not end with the last block of its head")


def _of_the_place(head: NodeHead, family: NodeFamily) -> Iterator[Violation]:
    end = head.depth + head.length
    children = len(family.children.get(head.key, ()))
    if children != head.children:
        text = f"it has {children} children, its head has {head.children}"
        yield Violation(node=head.key, text=text, whole=True)
    if head.next:
        lower = family.heads.get(head.next)
        if lower is None or lower.depth != end:
            yield Violation(
                node=head.key, text="`next` leads to no node that begins where it ends", whole=True
            )
    if not head.depth:
        if head.above:
            yield Violation(node=head.key, text="a root with a node above it")
        return
    parent = family.parents.get(head.key)
    if parent is None:
        yield Violation(node=head.key, text=f"`above` leads to no node with block {head.depth - 1}")
    elif family.heads[parent].depth + family.heads[parent].length != head.depth:
        yield Violation(node=head.key, text="it hangs in the middle of its parent")


def _of_the_holders(
    head: NodeHead, node: DumpedNode, tree: DumpedTree, family: NodeFamily, tenures: TenureNumbers
) -> Iterator[Violation]:
    held = holders_of(node)
    parent = family.parents.get(head.key)
    above = holders_of(tree.nodes[parent]) if parent is not None else {}
    for tenure, tiers in held.items():
        count = tiers.all
        if not 0 < tenure <= tenures.last:
            yield Violation(node=head.key, tenure=tenure, text=f"tenure {tenure} was never given")
        if not 0 < count <= head.length:
            text = f"tenure {tenure} holds {count} of {head.length} blocks"
            yield Violation(node=head.key, tenure=tenure, text=text)
        if not 0 <= tiers.gpu <= tiers.host <= tiers.all:
            text = f"tenure {tenure} holds more on the GPU or in host memory than in all"
            yield Violation(node=head.key, tenure=tenure, text=text)
        if parent is None:
            continue
        whole = family.heads[parent].length
        if any(here and up != whole for up, here in zip(above.get(tenure, NOTHING), tiers, strict=True)):
            text = f"tenure {tenure} holds it and not the whole node above"
            yield Violation(node=head.key, tenure=tenure, text=text)
    chunks = {0: head.holders, **node.chunks}
    for chunk, members in chunks.items():
        if chunk >= 1 << head.level or any(tenure % (1 << head.level) != chunk for tenure in members):
            text = f"chunk {chunk} of {1 << head.level} has holders that belong elsewhere"
            yield Violation(node=head.key, text=text, whole=True)
    longest = max((tiers.all for tiers in held.values()), default=0)
    if not family.children.get(head.key) and longest < head.length:
        text = f"a leaf of {head.length} blocks of which {longest} are held"
        yield Violation(node=head.key, text=text, trim=True)
