"""Which positions a draft model's own KV holds.

The draft model has a KV store of its own, with the same block ids: one table serves both, and a prefix hit is a hit
for both. But it does not compute every position: not while nobody wanted guesses, and not what came from elsewhere.

    block          7              3              9
    model      [ x x x x ]    [ x x x x ]    [ x x . . ]
    draft      [ x x x x ]    [ x x . . ]    [ . . . . ]        6 positions are held; the rest is its lag

A note on a block is worth something only while the block is in the same hands: so it names the block's life.
"""

from workers.engine.kv.block_table import KVTable


class DraftKV:
    """Counts, for each block, how many of its positions the draft has computed, from the first."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        # By block id, so it has at most as many entries as the pool has blocks.
        self._notes: dict[int, tuple[int, int]] = {}

    def held(self, table: KVTable) -> int:
        """Positions held without a gap, from the first."""
        total = 0
        for index in range(len(table.ids)):
            filled = self._filled(table, index)
            total += filled
            if filled < self._size:
                break
        return total

    def fill(self, table: KVTable, start: int, end: int) -> None:
        """Positions `start` to `end` were computed; all before them are held."""
        for index in range(start // self._size, -(-end // self._size)):
            self._note(table, index, min(self._size, end - index * self._size))

    def cut(self, table: KVTable, end: int) -> None:
        """What is held from position `end` on was computed for drafts that do not stand."""
        for index in range(end // self._size, len(table.ids)):
            filled = max(0, end - index * self._size)
            self._note(table, index, min(filled, self._filled(table, index)))

    def _filled(self, table: KVTable, index: int) -> int:
        if not table.ids[index]:
            # Behind the window: nobody reads it any more.
            return self._size
        life, filled = self._notes.get(table.ids[index], (0, 0))
        return filled if life == table.allocation_id(index) else 0

    def _note(self, table: KVTable, index: int, filled: int) -> None:
        if block := table.ids[index]:
            self._notes[block] = table.allocation_id(index), filled
