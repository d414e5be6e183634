"""Records which positions a draft model has computed in its own KV.

The draft model has a KV store of its own, with the same block ids: one table serves both models, and a prefix hit
is a hit for both. But the draft model does not compute every position: not while no drafts are wanted, and not
blocks that another engine sent.

    block          7              3              9
    model      [ x x x x ]    [ x x x x ]    [ x x . . ]
    draft      [ x x x x ]    [ x x . . ]    [ . . . . ]        6 positions are computed; the rest is its lag

A record about a block is valid only until the block is allocated again, so it has the allocation's number.
"""

from workers.engine.kv.block_table import KVTable


class DraftKV:
    """Counts, for each block, how many of its positions, from the first, the draft model has computed."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        # The allocation and the count by block id, so at most as many entries as the pool has blocks.
        self._records: dict[int, tuple[int, int]] = {}

    def computed_positions(self, table: KVTable) -> int:
        """Return how many positions are computed without a gap, from the first."""
        total = 0
        for index in range(len(table.ids)):
            filled = self._filled(table, index)
            total += filled
            if filled < self._size:
                break
        return total

    def mark_computed(self, table: KVTable, start: int, end: int) -> None:
        """Record that positions `start` to `end` were computed; all before them are computed already."""
        for index in range(start // self._size, -(-end // self._size)):
            self._record(table, index, min(self._size, end - index * self._size))

    def truncate(self, table: KVTable, end: int) -> None:
        """Drop positions from `end` on, which were computed for rejected drafts."""
        for index in range(end // self._size, len(table.ids)):
            filled = max(0, end - index * self._size)
            self._record(table, index, min(filled, self._filled(table, index)))

    def _filled(self, table: KVTable, index: int) -> int:
        if not table.ids[index]:
            # The block is before the attention window and is not read any more.
            return self._size
        allocation, filled = self._records.get(table.ids[index], (0, 0))
        return filled if allocation == table.allocation_id(index) else 0

    def _record(self, table: KVTable, index: int, filled: int) -> None:
        if block := table.ids[index]:
            self._records[block] = table.allocation_id(index), filled
