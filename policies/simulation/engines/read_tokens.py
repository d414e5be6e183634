"""The prompt tokens that the running streams of one engine read; a block that several of them read counts once.

The blocks are counted by runs of them (radix_cache/in_flight_tree.py), so a stream costs the same however long its
prompt is.
"""

from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from radix_cache.in_flight_tree import InFlightNode, InFlightTree

ENGINE = 0
"""The only holder of the tree."""


class ReadTokens:
    """Counts the prompt tokens of the streams of one engine; streams are known by the number of their request."""

    __slots__ = ("_last_nodes", "_tree")

    def __init__(self) -> None:
        self._tree: InFlightTree[int] = InFlightTree()
        self._last_nodes: dict[int, InFlightNode[int] | None] = {}

    def begin(self, number: int, request: TraceRequest) -> int:
        """Count a stream that begins, and return how many more prompt tokens the streams read."""
        before = self._tree.blocks
        self._last_nodes[number] = self._tree.add(request.blocks, ENGINE)
        return _tokens(request, self._tree.blocks - before)

    def end(self, number: int, request: TraceRequest) -> int:
        """Leave out a stream that ends, and return how many fewer prompt tokens the streams read."""
        before = self._tree.blocks
        self._tree.remove(self._last_nodes.pop(number), ENGINE)
        return _tokens(request, before - self._tree.blocks)


def _tokens(request: TraceRequest, blocks: int) -> int:
    """Return the tokens of the last `blocks` blocks of a prompt, of which the very last may be not full."""
    if not blocks:
        return 0
    return BLOCK_TOKENS * blocks - -request.prompt_tokens % BLOCK_TOKENS
