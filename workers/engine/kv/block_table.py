"""The blocks of one sequence, in order of position.

ids     [ 0 | 7 | 3 | 9 | 4 ]      slot(position) = ids[position // size] * size + position % size
          |   |-path-|-own--|
          |                        path: in the prefix tree, may be read by others
          |                        own: this sequence's, until a full block of it is committed
          behind a sliding window: given back, read by nobody

A fork shares the block that is not full yet as well, and whoever writes into it first gets a copy:

    leader  [ 7 | 3 | 9 ]    9 half full       leader  [ 7 | 3 | 9 ]
    fork    [ 7 | 3 | 9 ]    --- writes --->   fork    [ 7 | 3 | 5 ]   copy (9, 5) before the step
"""

from collections.abc import Sequence
from typing import Protocol

from workers.engine.kv.prefix_tree import BlockTokens, PrefixNode, PrefixTree

NextBlock = tuple[str, PrefixNode | None, BlockTokens]
BlockCopy = tuple[int, int]
"""A block whose content goes into another one: (from, to)."""


class KVTable(Protocol):
    """What the scheduler wants of the blocks of one sequence, however they are laid out."""

    ids: list[int]

    @property
    def computed(self) -> int:
        """Tokens whose keys and values stand in the blocks already."""
        ...

    @property
    def shared_tokens(self) -> int:
        """Tokens in blocks that stay findable when this table is closed."""
        ...

    @property
    def recomputes_everything(self) -> bool:
        """Must all tokens be computed in one step, whatever the budget?"""
        ...

    def fits(self, num_tokens: int, promised: int) -> bool:
        """Is there room for `num_tokens` tokens, and for `promised` blocks that others will need?"""
        ...

    def missing(self, num_tokens: int) -> int:
        """Blocks still to be taken before `num_tokens` tokens have a place that can be written."""
        ...

    def grow(self, num_tokens: int) -> list[BlockCopy]:
        """Take those blocks, which the caller made sure of; what has to be copied before anything is written."""
        ...

    def commit(self, tokens: Sequence[int], num_computed: int) -> None:
        """The first `num_computed` of `tokens` are computed."""
        ...

    def shrink(self, num_tokens: int) -> None:
        """Give back what `num_tokens` tokens do not need: room for drafts that failed."""
        ...

    def allocation_id(self, index: int) -> int:
        """Which life of its block stands at `index`; see BlockPool."""
        ...

    def next_block(self, tokens: Sequence[int]) -> NextBlock | None:
        """Names the next block that others could share; equal for equal prefixes."""
        ...

    def close(self) -> None:
        """Give every block back."""
        ...


class BlockTable:
    """Blocks held by one running sequence; opened once, closed once."""

    recomputes_everything = False

    __slots__ = ("_path", "_released", "_salt", "_shares", "_size", "_tree", "computed", "ids")

    def __init__(self, tree: PrefixTree, tokens: Sequence[int], salt: str, *, shares: bool = True) -> None:
        """Hold the longest cached prefix of `tokens`; a table that does not share has all blocks to itself."""
        self._tree = tree
        self._salt = salt
        self._shares = shares
        self._size = tree.pool.block_size
        node = tree.match(tokens, salt) if shares else None
        self._path = [*node.path_to_root()][::-1] if node else []
        self._released = tree.first_readable_block(len(self._path))
        """Leading blocks that are behind the window."""
        self.ids = [0] * self._released + [node.block for node in self._path[self._released :]]
        self.computed = self.shared_tokens

    @property
    def shared_blocks(self) -> int:
        """Leading blocks that are, or were, in the prefix tree."""
        return len(self._path)

    @property
    def shared_tokens(self) -> int:
        """Tokens in the shared blocks."""
        return self.shared_blocks * self._size

    def share_tail(self, leader: "BlockTable", num_tokens: int) -> None:
        """Fork: go on where `leader` has computed the same `num_tokens` tokens, in the block that is not full too.

        Does nothing when the full blocks before are not the same, or that block is in the prefix tree already.
        """
        index = num_tokens // self._size
        if self.computed >= num_tokens or leader.computed < num_tokens:
            return
        if self.shared_blocks == index == len(self.ids) and leader.shared_blocks <= index:
            self._tree.pool.retain(leader.ids[index])
            self.ids.append(leader.ids[index])
            self.computed = num_tokens

    def fits(self, num_tokens: int, promised: int) -> bool:
        """As promised by Table."""
        return self.missing(num_tokens) + promised <= self._tree.available_blocks

    def missing(self, num_tokens: int) -> int:
        """As promised by Table."""
        return max(0, -(-num_tokens // self._size) - len(self.ids)) + self._tail_is_shared

    def grow(self, num_tokens: int) -> list[BlockCopy]:
        """As promised by Table."""
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
        """Give back the own blocks behind those that `num_tokens` tokens need: room for drafts that failed."""
        needed = max(self.shared_blocks, -(-num_tokens // self._size))
        while len(self.ids) > needed:
            self._tree.pool.release(self.ids.pop())

    def commit(self, tokens: Sequence[int], num_computed: int) -> None:
        """Share every block that is now full of computed tokens; give back what no token to come will read."""
        self.computed = num_computed
        while self._shares and (len(self._path) + 1) * self._size <= num_computed:
            index = len(self._path)
            filled = tuple(tokens[index * self._size : (index + 1) * self._size])
            parent = self._path[-1] if self._path else None
            self._path.append(self._tree.insert(parent, self._salt, filled, self.ids[index]))
            self.ids[index] = self._path[-1].block
        if self._tree.window is None:
            return
        behind = self._tree.first_readable_block(self.shared_blocks)
        if behind > self._released:
            self._tree.release(self._path[self._released : behind][::-1])
            self.ids[self._released : behind] = [0] * (behind - self._released)
            self._released = behind

    def allocation_id(self, index: int) -> int:
        """As promised by Table."""
        return self._tree.pool.allocation_id(self.ids[index])

    def next_block(self, tokens: Sequence[int]) -> NextBlock | None:
        """Names the first full block of `tokens` after the shared ones; equal for equal prefixes.

        None when the tokens known so far do not fill that block, and for a table that does not share.
        """
        begin = self.shared_tokens
        if not self._shares or begin + self._size > len(tokens):
            return None
        return self._salt, self._path[-1] if self._path else None, tuple(tokens[begin : begin + self._size])

    def close(self) -> None:
        """Give every block back, tail first, so that heads outlive tails."""
        for block in reversed(self.ids[self.shared_blocks :]):
            self._tree.pool.release(block)
        self._tree.release(self._path[self._released :][::-1])
        self._path, self.ids, self._released = [], [], 0

    @property
    def _tail_is_shared(self) -> bool:
        """Would the next token be written into a block that a fork reads?"""
        index = self.computed // self._size
        own = len(self._path) <= index < len(self.ids)
        return own and self._tree.pool.references(self.ids[index]) > 1
