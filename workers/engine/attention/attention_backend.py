"""The interface of an attention backend.

runner:   step = backend.begin(spans)              once per step: indices and masks are made here
decoder:  step.attend(layer, query, key, value)    once per layer: stores the new keys and values, then attends

A token has a place and a position, which differ only for drafts in a tree. Its place is its number among the KV
slots of its sequence; its position in the text gives its rotation and the keys inside its window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from workers.engine.draft_tree import DraftTree

Window = int | None
"""The positions that a token attends to, its own included; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpan:
    """Consecutive tokens of one sequence that a step computes."""

    start: int
    """The position of the first token."""
    count: int
    """The number of tokens."""
    blocks: Sequence[int]
    """The blocks of the sequence up to the last token. Those before the window of every layer may be 0."""
    tree: DraftTree | None = None
    """The tree of the tokens after the first one, which are drafts; None: each follows the one before it."""

    @property
    def end(self) -> int:
        """The position after the last token, which is the number of keys that the last token attends to."""
        return self.start + self.count


class AttentionStep(Protocol):
    """The attention of one step, for all layers."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store the keys and values of one layer, and return the attention output.

        Rows are in the order of the spans. Each token attends to its own sequence's positions up to and including
        its own, as far back as the layer's window. A draft in a tree attends to the drafts on the way to it alone.

        Args:
            layer: the number of the layer.
            query: [tokens, heads, head_dim], with the rotary embedding applied.
            key: [tokens, kv_heads, head_dim], with the rotary embedding applied.
            value: [tokens, kv_heads, head_dim].

        Returns:
            The output, shaped as `query`.
        """
        ...


class AttentionBackend(Protocol):
    """A backend that prepares the attention of each step, over the KV store that it owns."""

    def begin(self, spans: Sequence[AttentionSpan]) -> AttentionStep:
        """Prepare one step.

        Adjacent spans of one length, with tokens before them, are computed in batches; those with about equally
        many tokens before them should be adjacent.
        """
        ...

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks of all layers, (source, target), one after the other."""
        ...

    def move_tokens(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Move the keys and values of one sequence's tokens in all layers, (source, target), all at once.

        A place in the sequence's `blocks` is the number of a token, from the first one on.
        """
        ...
