"""The blocks of one sequence, in order of position.

ids     [ 7 | 3 | 9 | 4 ]          slot(position) = ids[position // size] * size + position % size
        |-shared-|-own--|
node ---------^                     the path down to `node` is in the prefix tree and may be read by others;
                                    the rest is this sequence's own until a full block of it is committed
"""

from collections.abc import Sequence

from workers.engine.kv.prefix import BlockTokens, PrefixNode, PrefixTree

NextBlock = tuple[str, PrefixNode | None, BlockTokens]


class BlockTable:
    """Blocks held by one running sequence; opened once, closed once."""

    __slots__ = ("_node", "_salt", "_size", "_tree", "ids")

    def __init__(self, tree: PrefixTree, tokens: Sequence[int], salt: str) -> None:
        """Hold the longest cached prefix of `tokens`."""
        self._tree = tree
        self._salt = salt
        self._size = tree.pool.block_size
        self._node = tree.match(tokens, salt)
        self.ids = [node.block for node in self._node.upwards()][::-1] if self._node else []

    @property
    def shared_blocks(self) -> int:
        """Leading blocks that are in the prefix tree."""
        return self._node.depth if self._node else 0

    @property
    def shared_tokens(self) -> int:
        """Tokens in the shared blocks."""
        return self.shared_blocks * self._size

    def missing(self, num_tokens: int) -> int:
        """Blocks still to be taken before `num_tokens` tokens have a place."""
        return max(0, -(-num_tokens // self._size) - len(self.ids))

    def grow(self, num_tokens: int) -> None:
        """Take blocks until `num_tokens` tokens have a place; the caller made sure that they are available."""
        self.ids += self._tree.take(self.missing(num_tokens))

    def commit(self, tokens: Sequence[int], num_computed: int) -> None:
        """Share every block that is now full of computed tokens."""
        while (self.shared_blocks + 1) * self._size <= num_computed:
            index = self.shared_blocks
            filled = tuple(tokens[index * self._size : (index + 1) * self._size])
            self._node = self._tree.extend(self._node, self._salt, filled, self.ids[index])
            self.ids[index] = self._node.block

    def next_block(self, tokens: Sequence[int]) -> NextBlock | None:
        """Names the first full block of `tokens` after the shared ones; equal for equal prefixes.

        None when the tokens known so far do not fill that block.
        """
        begin = self.shared_tokens
        if begin + self._size > len(tokens):
            return None
        return self._salt, self._node, tuple(tokens[begin : begin + self._size])

    def close(self) -> None:
        """Give every block back, tail first, so that heads outlive tails."""
        for block in reversed(self.ids[self.shared_blocks :]):
            self._tree.pool.release(block)
        self._tree.release(self._node)
        self._node, self.ids = None, []
