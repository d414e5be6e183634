"""The promise of an attention backend.

runner:   step = backend.begin(spans)              once per step: indices and masks are made here
decoder:  step.attend(layer, query, key, value)    once per layer: writes the new keys and values, then attends
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpan:
    """`count` consecutive tokens of one sequence, from position `start`; `blocks` covers them and all before.

    Leading blocks that are behind the window of every layer may be 0.
    """

    start: int
    count: int
    blocks: Sequence[int]

    @property
    def end(self) -> int:
        """The position after the last token: how many keys that token sees."""
        return self.start + self.count


class AttentionStep(Protocol):
    """Attention of one step, over all of its layers."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store key and value [tokens, kv_heads, head_dim]; return the mix for query [tokens, heads, head_dim].

        Rows stand in the order of the spans. Each token sees its own sequence's positions up to and including its
        own, as far back as the layer's window. The result is shaped as the query. Keys arrive with their positions
        turned in already.
        """
        ...


class AttentionBackend(Protocol):
    """Makes the steps; owns the KV store that they read and write."""

    def begin(self, spans: Sequence[AttentionSpan]) -> AttentionStep:
        """Prepare one step. Spans of equal length that go on from others are the cheaper for standing together."""
        ...

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks of all layers, (from, to), one after the other."""
        ...
