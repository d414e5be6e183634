"""The part of an attention backend that every backend over a KVStore has in common."""

from collections.abc import Iterable, Sequence

from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.id_tensor import id_tensor
from workers.engine.kv.kv_store import KVStore


class StoreBackend:
    """The copies and moves of an AttentionBackend over a KVStore, and the slots of its tokens."""

    def __init__(self, store: KVStore) -> None:
        self._store = store

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks of all layers, (source, target), one after the other."""
        for source, target in copies:
            self._store.copy(source, target)

    def move_tokens(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Move the keys and values of one sequence's tokens in all layers, (source, target), all at once."""
        sources, targets = (self._slots_in(blocks, side) for side in zip(*moves, strict=True))
        self._store.move(id_tensor(sources, self._store.device), id_tensor(targets, self._store.device))

    def _slots(self, spans: Sequence[AttentionSpan]) -> list[int]:
        """Return the slot that each row's key and value are stored in."""
        return [slot for span in spans for slot in self._slots_in(span.blocks, range(span.start, span.end))]

    def _slots_in(self, blocks: Sequence[int], places: Iterable[int]) -> list[int]:
        """Return the slots of the tokens at `places` of a sequence."""
        size = self._store.block_size
        return [blocks[place // size] * size + place % size for place in places]
