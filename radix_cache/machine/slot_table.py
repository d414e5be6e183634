"""Slot tables in a segment: hash tables with open addressing, from 8-byte keys to words, each with one writer.

    slot    key | word        key 0: never used, a search ends here        word 0: the key has been removed

The word of a record is its tag * 2^40 + its offset. The tag changes with every record, so that an equal word means
an equal record. A table that is two thirds full is copied to a larger one, a few slots with each change; one word
in the head shows the new table when it is complete.

A search begins at the key modulo the number of slots, which is odd and drawn at random. Block hashes can be forged,
but without knowing the table's size they cannot be made to collide at one slot.
"""

import secrets

from radix_cache.machine.heap import SegmentHeap
from radix_cache.machine.segment import WORD, IndexSegment, order_stores

OFFSET_BITS = 40
OFFSET_MASK = (1 << OFFSET_BITS) - 1
TAG_MASK = (1 << 24) - 1
SIZE_BITS = 28
SIZE_MASK = (1 << SIZE_BITS) - 1
"""A table is shown as the offset of its slots * 2^28 + their number."""
SLOTS_MIN = 1024
COPIED_PER_CHANGE = 64


class SlotTableReader:
    """Reads a slot table; `root` is the word of the head that shows where the table is."""

    def __init__(self, segment: IndexSegment, root: int) -> None:
        self._words = segment.words
        self._root = root

    def get(self, key: int) -> int:
        """Return the word of a key; 0 if it has none."""
        words = self._words
        place = words[self._root]
        if not place:
            return 0
        base, size = place >> SIZE_BITS, place & SIZE_MASK
        begin = key % size
        for step in range(begin, begin + size):
            at = base + 2 * (step % size)
            found = words[at]
            if found == key:
                return words[at + 1]
            if not found:
                return 0
        return 0


class SlotTable:
    """Writes a slot table."""

    def __init__(self, segment: IndexSegment, heap: SegmentHeap, root: int) -> None:
        self.count = 0
        """The number of keys that have a word."""
        self._words, self._heap, self._root = segment.words, heap, root
        slots = _Slots.create(self._words, heap, SLOTS_MIN)
        assert slots is not None, "a segment has room for its tables"
        self._slots = slots
        self._show()
        self._next: _Slots | None = None
        self._copied = 0

    def get(self, key: int) -> int:
        """Return the word of a key; 0 if it has none."""
        at = self._slots.find(key)
        return self._words[at + 1] if self._words[at] else 0

    def put(self, key: int, word: int) -> int:
        """Set the word of a key (0 removes it); return the former word, or `word` itself if there is no room."""
        before = self._slots.put(key, word)
        if before == word:
            return before
        self.count += bool(word) - bool(before)
        if self._next is not None:
            self._next.put(key, word)
            self._copy_some(self._next)
        elif self._slots.taken * 3 > self._slots.size * 2:
            self._next = _Slots.create(self._words, self._heap, self.count * 4)
            self._copied = 0
        return before

    def _copy_some(self, to: "_Slots") -> None:
        """Copy some slots to the next array, and switch to that array once it has all slots."""
        words, base = self._words, self._slots.base
        end = min(self._copied + COPIED_PER_CHANGE, self._slots.size)
        for at in range(base + 2 * self._copied, base + 2 * end, 2):
            if words[at + 1]:
                to.put(words[at], words[at + 1])
        self._copied = end
        if end == self._slots.size:
            before, self._slots, self._next = self._slots, to, None
            self._show()
            self._heap.free(before.base, 2 * before.size)

    def _show(self) -> None:
        order_stores()
        self._words[self._root] = self._slots.base << SIZE_BITS | self._slots.size


class _Slots:
    """One array of slots."""

    __slots__ = ("_words", "base", "size", "taken")

    def __init__(self, words: memoryview, base: int, size: int) -> None:
        self.base, self.size = base, size
        self.taken = 0
        """The number of slots with a key, including removed keys."""
        self._words = words

    @classmethod
    def create(cls, words: memoryview, heap: SegmentHeap, size: int) -> "_Slots | None":
        """Allocate an empty array of about so many slots; None if there is no room."""
        size = max(size, SLOTS_MIN)
        size = size + secrets.randbelow(size // 4) | 1
        base = heap.allocate(2 * size) if size <= SIZE_MASK else 0
        if not base:
            return None
        words[base : base + 2 * size] = memoryview(bytes(2 * WORD * size)).cast("Q")
        return cls(words, base, size)

    def find(self, key: int) -> int:
        """Return the offset of the key's slot, or of the free slot where it belongs."""
        words, base, size = self._words, self.base, self.size
        at = key % size
        while (found := words[base + 2 * at]) and found != key:
            at = (at + 1) % size
        return base + 2 * at

    def put(self, key: int, word: int) -> int:
        """Set the word of a key, and return the former word, or `word` itself if there is no room."""
        words, at = self._words, self.find(key)
        if words[at]:
            before = words[at + 1]
            words[at + 1] = word
            return before
        if not word or self.taken * 16 >= self.size * 15:
            return word
        self.taken += 1
        words[at + 1] = word
        order_stores()
        words[at] = key
        return 0
