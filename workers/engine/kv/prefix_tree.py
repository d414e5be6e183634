"""The prefix tree: one node per full KV block, so that equal prefixes are computed once.

    salt "acme" -- [a b c d] -- [e f g h] -- [i j k l]      a node = the tokens of one block, the block's id,
                         |                                   and the way down to it, which names the whole prefix
                         +---- [e f x y]                     (blocks of 4 tokens)
    salt "zeta" -- [a b c d]                                 another salt shares nothing, not even equal text,
                                                             and neither does another LoRA adapter

The tree holds one reference on each block that it owns, and every sequence that reads the block holds another. So:

    ref 1  idle: only the tree refers to the block, which may be evicted
    ref >1 in use: a sequence reads the block, and hence refers to its ancestors too

There is no path compression, so no node is ever split. There are no lock counts: a sequence refers to its whole
path, so an idle node has only idle descendants. A path is released deepest first, so the idle list is ordered by
last use, children before parents: its oldest entry is a leaf, and evicting it is the exact least-recently-used
rule, in O(1). (With a sliding window, below, a sequence refers to the end of its path only: an idle node may have
descendants in use, and the oldest entry need not be a leaf.)

When every layer of the model has a sliding window, the blocks that lie wholly before the window are not read again:

    [a b c d] -- [e f g h] -- [i j k l] -- ...    a window of 6: after l, the first block is not read any more
      no block     block 7      block 3           its node stays, to name the path, but may lose its block

A sequence then refers only to the end of its path, as far as the window reaches. A prefix matches when that end is
cached, whatever became of the blocks before. A node without a block gets one from the next sequence that computes
it.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from workers.engine.errors import BlockMisused
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.kv_events import (
    EVENTS_MAX,
    BlockRemoved,
    BlockStored,
    Cleared,
    KVEvent,
    block_hash,
    prefix_digest,
)

BlockTokens = tuple[int, ...]

EVICTED = 0
"""In place of a node's block number: the block was before the window, and was evicted."""


class PrefixNode:
    """A node of the prefix tree: one full block of one prefix.

    Attributes:
        parent: the node of the block before, None for the first block.
        salt: the cache salt of the prefix.
        lora: the LoRA adapter that computed it; empty: the model itself.
        tokens: the tokens of the block.
        block: the number of the KV block, or EVICTED.
        depth: blocks from the beginning of the prefix, this one included.
        digest: names the whole prefix, see `prefix_digest`.
        children: the nodes of the blocks that follow, by their tokens.
    """

    __slots__ = ("block", "children", "depth", "digest", "lora", "parent", "salt", "tokens")

    def __init__(
        self, *, parent: "PrefixNode | None", salt: str, lora: str, tokens: BlockTokens, block: int
    ) -> None:
        self.parent = parent
        self.salt = salt
        self.lora = lora
        self.tokens = tokens
        self.block = block
        self.depth: int = parent.depth + 1 if parent else 1
        self.digest: bytes = prefix_digest(parent.digest if parent else None, tokens, salt, lora)
        self.children: dict[BlockTokens, PrefixNode] = {}

    def path_to_root(self) -> Iterator["PrefixNode"]:
        """Yield this node and its ancestors, deepest first."""
        node: PrefixNode | None = self
        while node is not None:
            yield node
            node = node.parent


class PrefixTree:
    """The cached full blocks of a BlockPool, found by cache salt, LoRA adapter and tokens."""

    def __init__(self, pool: BlockPool, *, window: int | None = None) -> None:
        """Create an empty tree over `pool`.

        Args:
            pool: counts the references of the blocks.
            window: the tokens that the layer with the widest sliding window reads, the newest one included; None
                when some layer reads all of them.
        """
        self.pool = pool
        self.window = window
        self._roots: dict[tuple[str, str], dict[BlockTokens, PrefixNode]] = {}
        self._idle: OrderedDict[PrefixNode, None] = OrderedDict()
        self._size = 0
        self._events: deque[KVEvent] = deque(maxlen=EVENTS_MAX)

    @property
    def cached_blocks(self) -> int:
        """The number of blocks that the tree owns, idle or in use."""
        return self._size

    @property
    def available_blocks(self) -> int:
        """The number of blocks that `allocate` can return: the free ones and the idle ones."""
        return self.pool.free_blocks + len(self._idle)

    def match_depth(self, tokens: Sequence[int], salt: str, lora: str = "") -> int:
        """Return how many blocks `match` would find, without changing anything."""
        node = self._deepest(tokens, salt, lora)
        return node.depth if node else 0

    def match(self, tokens: Sequence[int], salt: str, lora: str = "") -> PrefixNode | None:
        """Return the deepest node of the longest cached prefix, and retain the blocks of its path that are read.

        At most (len - 1) // block_size blocks match: at least one token is always left to compute, because logits
        come from computing and not from the cache.
        """
        deepest = self._deepest(tokens, salt, lora)
        for node in self.readable_path(deepest):
            self._retain(node)
        return deepest

    def readable_path(self, node: PrefixNode | None) -> list[PrefixNode]:
        """Return the nodes that a sequence continuing after `node` reads, deepest first.

        These are the whole path, or its end as far as the window reaches.
        """
        if node is None:
            return []
        return list(islice(node.path_to_root(), node.depth - self.first_readable_block(node.depth)))

    def first_readable_block(self, depth: int) -> int:
        """Return the index of the first block of a path of `depth` blocks that the next token reads.

        The last block always counts as read: its reference keeps the path in the tree.
        """
        if self.window is None or not depth:
            return 0
        size = self.pool.block_size
        return min(max(0, depth * size - self.window + 1) // size, depth - 1)

    def insert(
        self, parent: PrefixNode | None, salt: str, tokens: BlockTokens, block: int, lora: str = ""
    ) -> PrefixNode:
        """Insert a computed block below `parent`; the caller holds a reference on both.

        When a block with the same tokens was cached meanwhile, the caller's own is released and the cached one
        retained instead: its content is the same, so the caller continues with the returned node's block.

        Raises:
            BlockMisused: the same block is in the tree already.
        """
        siblings = self._children(parent, salt, lora)
        node = siblings.get(tokens)
        if node is not None and node.block != EVICTED:
            if node.block == block:
                raise BlockMisused(f"block {block} is in the tree already")
            self._retain(node)
            self.pool.release(block)
            return node
        if node is None:
            node = PrefixNode(parent=parent, salt=salt, lora=lora, tokens=tokens, block=block)
            siblings[tokens] = node
        node.block = block
        self._size += 1
        self.pool.retain(block)
        above = block_hash(parent.digest) if parent else None
        self._events.append(BlockStored(block_hash(node.digest), above, tokens, salt, lora))
        return node

    def take_events(self) -> list[KVEvent]:
        """Return the events since the last call, and drop them."""
        events = list(self._events)
        self._events.clear()
        return events

    def release(self, nodes: Iterable[PrefixNode]) -> None:
        """Release nodes of one path, given deepest first; a block that only the tree refers to becomes idle."""
        for node in nodes:
            self.pool.release(node.block)
            if self.pool.references(node.block) == 1:
                self._idle[node] = None

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, evicting the least recently used idle ones where too few are free.

        Raises:
            BlockMisused: fewer than `count` blocks are free or idle.
        """
        if count > self.available_blocks:
            raise BlockMisused(f"{count} blocks were asked for, {self.available_blocks} are available")
        while self.pool.free_blocks < count:
            self._evict()
        return self.pool.allocate(count)

    def clear(self) -> bool:
        """Remove every block and return True, or return False while a sequence reads any of them."""
        if len(self._idle) != self._size:
            return False
        while self._idle:
            self._evict()
        self._events.clear()
        self._events.append(Cleared())
        return True

    def nodes(self) -> Iterator[PrefixNode]:
        """Yield every node, parents before children."""
        stack = [node for root in self._roots.values() for node in root.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Raise BlockMisused unless the tree, the idle list and the pool agree."""
        evicted = [node for node in self.nodes() if node.block == EVICTED]
        if evicted and (self.window is None or not all(node.children for node in evicted)):
            raise BlockMisused("a node without a block has no descendant, or the model has no sliding window")
        nodes = [node for node in self.nodes() if node.block != EVICTED]
        if len({node.block for node in nodes}) != len(nodes) or len(nodes) != self._size:
            raise BlockMisused("a block is twice in the tree, or the tree's size is wrong")
        if {node for node in nodes if self.pool.references(node.block) == 1} != set(self._idle):
            raise BlockMisused("the idle list is not exactly the blocks that only the tree refers to")
        if not all(self._roots.values()):
            raise BlockMisused("a salt without blocks was kept")
        self.pool.check()

    def _deepest(self, tokens: Sequence[int], salt: str, lora: str) -> PrefixNode | None:
        """Return the deepest cached node of a prompt that a sequence can continue; None if nothing is cached."""
        size = self.pool.block_size
        deepest: PrefixNode | None = None
        children = self._roots.get((salt, lora), {})
        unbroken = 0
        for end in range(size, len(tokens), size):
            node = children.get(tuple(tokens[end - size : end]))
            if node is None:
                break
            # The cached blocks without a gap down to this node: all those that are read have to be among them.
            unbroken = unbroken + 1 if node.block != EVICTED else 0
            if unbroken >= node.depth - self.first_readable_block(node.depth):
                deepest = node
            children = node.children
        return deepest

    def _children(self, parent: PrefixNode | None, salt: str, lora: str) -> dict[BlockTokens, PrefixNode]:
        return parent.children if parent else self._roots.setdefault((salt, lora), {})

    def _retain(self, node: PrefixNode) -> None:
        self.pool.retain(node.block)
        self._idle.pop(node, None)

    def _evict(self) -> None:
        node, _ = self._idle.popitem(last=False)
        self.pool.release(node.block)
        node.block = EVICTED
        self._size -= 1
        self._events.append(BlockRemoved(block_hash(node.digest)))
        self._prune(node)

    def _prune(self, node: PrefixNode | None) -> None:
        """Remove a node without a block and without children, and its ancestors that thereby become so."""
        while node is not None and node.block == EVICTED and not node.children:
            siblings = self._children(node.parent, node.salt, node.lora)
            del siblings[node.tokens]
            # Salts come from clients: an empty root that stayed would be memory that any client can make us keep.
            if node.parent is None and not siblings:
                del self._roots[node.salt, node.lora]
            node = node.parent
