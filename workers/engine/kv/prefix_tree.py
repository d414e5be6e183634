"""The prefix tree: one node per full KV block, so that equal beginnings are computed once.

    salt "acme" -- [a b c d] -- [e f g h] -- [i j k l]      a node = the tokens of one block, the block's id,
                         |                                   and the way down to it, which names the whole prefix
                         +---- [e f x y]                     (blocks of 4 tokens)
    salt "zeta" -- [a b c d]                                 another salt shares nothing, not even equal text

The tree holds one reference on each block that it owns, and every sequence that reads the block holds another. So:

    ref 1  idle: only the tree has it; may be evicted
    ref >1 in use: somebody reads it, hence somebody holds its ancestors too

No path compression, so nothing is ever split. No lock counts: a sequence holds its whole path, so an idle node has
only idle descendants. A path is released deepest first, so the idle list is ordered by last use, children before
parents: its oldest entry is a leaf, and evicting it is the exact least-recently-used rule, in O(1).

When every layer of the model looks back over a sliding window only, what stands behind it is read by nobody:

    [a b c d] -- [e f g h] -- [i j k l] -- ...    a window of 6: after l, the first block is not read any more
      hollow       block 7      block 3           its node stays, to name the path, but may lose its block

A sequence then holds the end of its path, as far as the window reaches. A prefix is found when that end is there,
whatever became of the blocks before. A hollow node gets a block again from the next one who computes it.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from workers.engine.errors import BlockMisused
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.events import (
    EVENTS_MAX,
    BlockRemoved,
    BlockStored,
    Cleared,
    KVEvent,
    block_hash,
    prefix_digest,
)

BlockTokens = tuple[int, ...]

HOLLOW = 0
"""In place of a block: it was behind the window, and evicted."""


class PrefixNode:
    """One full block of one prefix. `depth` counts blocks from the beginning, this one included."""

    __slots__ = ("block", "children", "depth", "digest", "parent", "salt", "tokens")

    def __init__(self, *, parent: "PrefixNode | None", salt: str, tokens: BlockTokens, block: int) -> None:
        self.parent = parent
        self.salt = salt
        self.tokens = tokens
        self.block = block
        self.depth: int = parent.depth + 1 if parent else 1
        self.digest: bytes = prefix_digest(parent.digest if parent else None, tokens, salt)
        self.children: dict[BlockTokens, PrefixNode] = {}

    def path_to_root(self) -> Iterator["PrefixNode"]:
        """This node and its ancestors, deepest first."""
        node: PrefixNode | None = self
        while node is not None:
            yield node
            node = node.parent


class PrefixTree:
    """Full blocks by salt and tokens, over the pool that counts them."""

    def __init__(self, pool: BlockPool, *, window: int | None = None) -> None:
        """`window`: how many tokens the model looks back, its own included, in the layer that looks farthest."""
        self.pool = pool
        self.window = window
        self._roots: dict[str, dict[BlockTokens, PrefixNode]] = {}
        self._idle: OrderedDict[PrefixNode, None] = OrderedDict()
        self._size = 0
        self._events: deque[KVEvent] = deque(maxlen=EVENTS_MAX)

    @property
    def cached_blocks(self) -> int:
        """Blocks that the tree owns, idle or in use."""
        return self._size

    @property
    def available_blocks(self) -> int:
        """Blocks that `take` can hand out: the free ones and the idle ones."""
        return self.pool.free_blocks + len(self._idle)

    def match_depth(self, tokens: Sequence[int], salt: str) -> int:
        """How many blocks `match` would find; changes nothing."""
        node = self._deepest(tokens, salt)
        return node.depth if node else 0

    def match(self, tokens: Sequence[int], salt: str) -> PrefixNode | None:
        """The deepest node of the longest cached prefix, its path now held by the caller, as far as it is read.

        At most (len - 1) // block_size blocks: at least one token is always left to compute, because logits come
        from computing and not from the cache.
        """
        deepest = self._deepest(tokens, salt)
        for node in self.readable_path(deepest):
            self._hold(node)
        return deepest

    def readable_path(self, node: PrefixNode | None) -> list[PrefixNode]:
        """What whoever goes on from `node` reads, deepest first: all of its path, or the window's part."""
        if node is None:
            return []
        return list(islice(node.path_to_root(), node.depth - self.first_readable_block(node.depth)))

    def first_readable_block(self, depth: int) -> int:
        """How many blocks at the beginning of a path of `depth` are not read by the token that follows it.

        The last one always counts as read: it is what holds the path in the tree.
        """
        if self.window is None or not depth:
            return 0
        size = self.pool.block_size
        return min(max(0, depth * size - self.window + 1) // size, depth - 1)

    def insert(self, parent: PrefixNode | None, salt: str, tokens: BlockTokens, block: int) -> PrefixNode:
        """Put `block`, which the caller holds and has filled, under `parent`, which the caller holds too.

        When the same block was cached meanwhile, the caller's own is released and the cached one held instead: it
        has the same content, so the caller reads on from the returned node's block.
        """
        siblings = self._children(parent, salt)
        node = siblings.get(tokens)
        if node is not None and node.block != HOLLOW:
            if node.block == block:
                raise BlockMisused(f"block {block} is in the tree already")
            self._hold(node)
            self.pool.release(block)
            return node
        if node is None:
            node = siblings[tokens] = PrefixNode(parent=parent, salt=salt, tokens=tokens, block=block)
        node.block = block
        self._size += 1
        self.pool.retain(block)
        above = block_hash(parent.digest) if parent else None
        self._events.append(BlockStored(block_hash(node.digest), above, tokens, salt))
        return node

    def take_events(self) -> list[KVEvent]:
        """What has changed since this was last asked."""
        events = list(self._events)
        self._events.clear()
        return events

    def release(self, nodes: Iterable[PrefixNode]) -> None:
        """Give back nodes of one path, which come deepest first; what nobody else reads becomes idle."""
        for node in nodes:
            self.pool.release(node.block)
            if self.pool.references(node.block) == 1:
                self._idle[node] = None

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, evicting the least recently used idle ones where the free ones do not reach."""
        if count > self.available_blocks:
            raise BlockMisused(f"{count} blocks were asked for, {self.available_blocks} are available")
        while self.pool.free_blocks < count:
            self._evict()
        return self.pool.allocate(count)

    def clear(self) -> bool:
        """Forget everything; refused (False) while a sequence reads any of it."""
        if len(self._idle) != self._size:
            return False
        while self._idle:
            self._evict()
        self._events.clear()
        self._events.append(Cleared())
        return True

    def nodes(self) -> Iterator[PrefixNode]:
        """Every node, parents before children."""
        stack = [node for root in self._roots.values() for node in root.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Raise BlockMisused unless tree, idle list and pool agree."""
        hollow = [node for node in self.nodes() if node.block == HOLLOW]
        if hollow and (self.window is None or not all(node.children for node in hollow)):
            raise BlockMisused("a node lost its block while others stand behind it, or was kept for nothing")
        nodes = [node for node in self.nodes() if node.block != HOLLOW]
        if len({node.block for node in nodes}) != len(nodes) or len(nodes) != self._size:
            raise BlockMisused("a block stands twice in the tree, or the tree's size is wrong")
        if {node for node in nodes if self.pool.references(node.block) == 1} != set(self._idle):
            raise BlockMisused("the idle list is not exactly the blocks that only the tree holds")
        if not all(self._roots.values()):
            raise BlockMisused("a salt without blocks was kept")
        self.pool.check()

    def _deepest(self, tokens: Sequence[int], salt: str) -> PrefixNode | None:
        size = self.pool.block_size
        deepest: PrefixNode | None = None
        children = self._roots.get(salt, {})
        unbroken = 0
        for end in range(size, len(tokens), size):
            node = children.get(tuple(tokens[end - size : end]))
            if node is None:
                break
            unbroken = unbroken + 1 if node.block != HOLLOW else 0
            if unbroken >= node.depth - self.first_readable_block(node.depth):
                deepest = node
            children = node.children
        return deepest

    def _children(self, parent: PrefixNode | None, salt: str) -> dict[BlockTokens, PrefixNode]:
        return parent.children if parent else self._roots.setdefault(salt, {})

    def _hold(self, node: PrefixNode) -> None:
        self.pool.retain(node.block)
        self._idle.pop(node, None)

    def _evict(self) -> None:
        node, _ = self._idle.popitem(last=False)
        self.pool.release(node.block)
        node.block = HOLLOW
        self._size -= 1
        self._events.append(BlockRemoved(block_hash(node.digest)))
        self._prune(node)

    def _prune(self, node: PrefixNode | None) -> None:
        """Take away a hollow node that leads nowhere, and those above it that only led here."""
        while node is not None and node.block == HOLLOW and not node.children:
            siblings = self._children(node.parent, node.salt)
            del siblings[node.tokens]
            # Salts come from clients: an empty root that stayed would be memory that anyone can make us keep.
            if node.parent is None and not siblings:
                del self._roots[node.salt]
            node = node.parent
