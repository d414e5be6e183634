"""The heap of a segment: allocates and frees memory for its writer.

Sizes are rounded up to size classes an eighth apart, so that freed memory fits other records. Freed memory is
reused in the order in which it was freed, so that a record stays readable for a while after it was replaced.
"""

from collections import deque

from radix_cache.machine.segment import BYTES_USED, HEAP, WORD, IndexSegment

SMALL_WORDS = 32
"""Sizes up to this one are rounded up to multiples of four words."""


class SegmentHeap:
    """The heap of a cleared segment; only the segment's single writer uses it."""

    def __init__(self, segment: IndexSegment) -> None:
        self._words = segment.words
        self._at = HEAP
        self._end = len(segment.words)
        self._free: dict[int, deque[int]] = {}
        self._used = HEAP

    def allocate(self, words: int) -> int:
        """Allocate so many words and return their offset; 0 if there is no room."""
        size = rounded(words)
        free = self._free.get(size)
        if free:
            at = free.popleft()
        elif self._at + size <= self._end:
            at, self._at = self._at, self._at + size
        else:
            return 0
        self._used += size
        self._words[BYTES_USED] = self._used * WORD
        return at

    def free(self, at: int, words: int) -> None:
        """Free the so many words at this offset."""
        size = rounded(words)
        self._free.setdefault(size, deque()).append(at)
        self._used -= size
        self._words[BYTES_USED] = self._used * WORD


def rounded(words: int) -> int:
    """Return the size class for so many words."""
    if words <= SMALL_WORDS:
        return (words + 3) & ~3
    step = 1 << (words.bit_length() - 4)
    return (words + step - 1) // step * step
