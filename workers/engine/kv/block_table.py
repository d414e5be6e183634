"""The block table: the KV blocks of one sequence, in order of position.

ids     [ 0 | 7 | 3 | 9 | 4 ]      slot(position) = ids[position // size] * size + position % size
          |   |-path-|-own--|
          |                        path: in the prefix tree, may be read by other sequences
          |                        own: this sequence's, until a full block of it is committed
          before the sliding window: released, not read any more

A fork also shares the block that is not full yet, and the sequence that writes into it first gets a copy:

    leader  [ 7 | 3 | 9 ]    9 half full       leader  [ 7 | 3 | 9 ]
    fork    [ 7 | 3 | 9 ]    --- writes --->   fork    [ 7 | 3 | 5 ]   copy (9, 5) before the step
"""

import sys
from collections.abc import Sequence
from typing import Protocol

from workers.engine.kv.prefix_tree import BlockTokens, PrefixNode, PrefixTree

NextBlock = tuple[str, str, PrefixNode | None, BlockTokens]
"""The name of a block that a sequence will fill: its salt and LoRA adapter, the node before it, its tokens."""
BlockCopy = tuple[int, int]
"""A block copy: (source, target)."""


class KVTable(Protocol):
    """The interface that the scheduler needs to the blocks of one sequence, whatever their layout."""

    ids: list[int]
    """The block numbers by position; 0 for a block before the sliding window."""

    @property
    def computed(self) -> int:
        """The number of tokens with keys and values in the blocks."""
        ...

    @property
    def shared_tokens(self) -> int:
        """The number of tokens in blocks that stay in the prefix tree when this table is closed."""
        ...

    @property
    def tokens_max(self) -> int:
        """The most tokens that the table can ever hold."""
        ...

    @property
    def recomputes_everything(self) -> bool:
        """Whether every step computes all tokens again, whatever the token budget."""
        ...

    def fits(self, num_tokens: int, reserved_blocks: int) -> bool:
        """Return whether `num_tokens` tokens fit beside `reserved_blocks` that other sequences will need."""
        ...

    def missing(self, num_tokens: int) -> int:
        """Return the blocks still to be allocated before `num_tokens` tokens can be written."""
        ...

    def grow(self, num_tokens: int) -> list[BlockCopy]:
        """Allocate the missing blocks, and return the copies to be made before anything is written.

        The caller has made sure that enough blocks are available.
        """
        ...

    def commit(self, tokens: Sequence[int], num_computed: int) -> None:
        """Record that the first `num_computed` of `tokens` are computed."""
        ...

    def shrink(self, num_tokens: int) -> None:
        """Release the blocks that `num_tokens` tokens do not need: those of rejected drafts."""
        ...

    def allocation_id(self, index: int) -> int:
        """Return the allocation number of the block at `index`; see BlockPool.allocation_id."""
        ...

    def next_block(self, tokens: Sequence[int]) -> NextBlock | None:
        """Return the name of the next block that other sequences could share; equal for equal prefixes."""
        ...

    def close(self) -> None:
        """Release every block."""
        ...


class BlockTable:
    """The paged block table of one running sequence; opened once, closed once."""

    tokens_max = sys.maxsize
    recomputes_everything = False

    __slots__ = ("_lora", "_path", "_released", "_salt", "_shares", "_size", "_tree", "computed", "ids")

    def __init__(
        self, tree: PrefixTree, tokens: Sequence[int], salt: str, lora: str = "", *, shares: bool = True
    ) -> None:
        """Retain the longest cached prefix of `tokens`; with `shares` False every block is the sequence's own."""
        self._tree = tree
        self._salt = salt
        self._lora = lora
        self._shares = shares
        self._size = tree.pool.block_size
        node = tree.match(tokens, salt, lora) if shares else None
        self._path = [*node.path_to_root()][::-1] if node else []
        self._released = tree.first_readable_block(len(self._path))
        """Leading blocks that are before the sliding window, and were released."""
        self.ids = [0] * self._released + [node.block for node in self._path[self._released :]]
        self.computed = self.shared_tokens

    @property
    def shared_blocks(self) -> int:
        """The number of leading blocks that are, or were, in the prefix tree."""
        return len(self._path)

    @property
    def shared_tokens(self) -> int:
        """The number of tokens in the shared blocks."""
        return self.shared_blocks * self._size

    def share_tail(self, leader: "BlockTable", num_tokens: int) -> None:
        """Fork from `leader`, which has computed the same `num_tokens` tokens: share its last, partly filled block.

        Nothing happens when the full blocks before it are not the same, or it is in the prefix tree already.
        """
        index = num_tokens // self._size
        if self.computed >= num_tokens or leader.computed < num_tokens:
            return
        if self.shared_blocks == index == len(self.ids) and leader.shared_blocks <= index:
            self._tree.pool.retain(leader.ids[index])
            self.ids.append(leader.ids[index])
            self.computed = num_tokens

    def fits(self, num_tokens: int, reserved_blocks: int) -> bool:
        """Return whether `num_tokens` tokens fit beside `reserved_blocks` that other sequences will need."""
        return self.missing(num_tokens) + reserved_blocks <= self._tree.available_blocks

    def missing(self, num_tokens: int) -> int:
        """Return the blocks still to be allocated, one for the copy of a shared last block among them."""
        return max(0, -(-num_tokens // self._size) - len(self.ids)) + self._tail_is_shared

    def grow(self, num_tokens: int) -> list[BlockCopy]:
        """Allocate the missing blocks; a last block that a fork reads is replaced by an own copy."""
        copies = []
        if self._tail_is_shared:
            index = self.computed // self._size
            shared, (own,) = self.ids[index], self._tree.allocate(1)
            self._tree.pool.release(shared)
            self.ids[index] = own
            copies.append((shared, own))
        self.ids += self._tree.allocate(self.missing(num_tokens))
        return copies

    def shrink(self, num_tokens: int) -> None:
        """Release the own blocks after those that `num_tokens` tokens need: those of rejected drafts."""
        needed = max(self.shared_blocks, -(-num_tokens // self._size))
        while len(self.ids) > needed:
            self._tree.pool.release(self.ids.pop())

    def commit(self, tokens: Sequence[int], num_computed: int) -> None:
        """Insert every block that is now full into the prefix tree; release those before the sliding window."""
        self.computed = num_computed
        while self._shares and (len(self._path) + 1) * self._size <= num_computed:
            index = len(self._path)
            filled = tuple(tokens[index * self._size : (index + 1) * self._size])
            parent = self._path[-1] if self._path else None
            self._path.append(self._tree.insert(parent, self._salt, filled, self.ids[index], self._lora))
            self.ids[index] = self._path[-1].block
        if self._tree.window is None:
            return
        behind = self._tree.first_readable_block(self.shared_blocks)
        if behind > self._released:
            self._tree.release(self._path[self._released : behind][::-1])
            self.ids[self._released : behind] = [0] * (behind - self._released)
            self._released = behind

    def allocation_id(self, index: int) -> int:
        """Return the allocation number of the block at `index`."""
        return self._tree.pool.allocation_id(self.ids[index])

    def next_block(self, tokens: Sequence[int]) -> NextBlock | None:
        """Return the name of the first full block of `tokens` after the shared ones; equal for equal prefixes.

        None when the tokens known so far do not fill that block, and for a table that shares no blocks.
        """
        begin = self.shared_tokens
        if not self._shares or begin + self._size > len(tokens):
            return None
        last = self._path[-1] if self._path else None
        return self._salt, self._lora, last, tuple(tokens[begin : begin + self._size])

    def close(self) -> None:
        """Release every block, the last one first, so that the beginning of a prefix is evicted last."""
        for block in reversed(self.ids[self.shared_blocks :]):
            self._tree.pool.release(block)
        self._tree.release(self._path[self._released :][::-1])
        self._path, self.ids, self._released = [], [], 0

    @property
    def _tail_is_shared(self) -> bool:
        """Whether the next token would be written into a block that a fork reads."""
        index = self.computed // self._size
        own = len(self._path) <= index < len(self.ids)
        return own and self._tree.pool.references(self.ids[index]) > 1
