"""A segment of shared memory: the words of its head, and where its parts are.

    head            the words below
    sequences       for each shard the number of the last change that was published
    announcements   a ring of what the predictions tell of the loads of workers
    heap            slot tables and records

A segment is an anonymous file in memory, which the supervising process makes and its children inherit. So it has
no name, is bounded in bytes, and is gone with the last process that has it, however that ends. There are two of
them: a first process that starts anew fills the one that is not in use, while the others go on reading the old one.
"""

import logging
import mmap
import os
import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from radix_cache.shared.keys import Keys

log = logging.getLogger(__name__)

WORD = 8
"""Bytes of a word; offsets in a segment are in words."""

GENERATION = 1
"""0: not complete; otherwise the number of this content, the larger the newer."""
ALIVE_AT = 2
"""When the writer was alive last, in nanoseconds of the machine's monotonic clock."""
NODE_TABLE = 3
"""Here and in the two words below: where a slot table is; see slot_table.py."""
IN_FLIGHT_TABLE = 4
REPEATED_TABLE = 5
NAMESPACES = 6
"""The record with the namespaces and their blocks."""
ANNOUNCED = 7
"""How many announcements have been written."""
BLOCKS = 8
NODES = 9
PREDICTIONS = 10
CHANGES = 11
"""How many changes were published."""
LOST_SHARDS = 12
"""Whether the writer cannot follow all shards."""
BYTES_USED = 13
BYTES_NEEDED = 14
"""Bytes of what was not published because the segment is full."""

SEQUENCES = 16
RING = 512
"""Where the announcements begin."""
ANNOUNCEMENT_WORDS = 6
ANNOUNCEMENTS = 8192
HEAP = RING + ANNOUNCEMENTS * ANNOUNCEMENT_WORDS

SEGMENTS = 2
BYTES_MIN = 4 * 1024**2

assert SEQUENCES + Keys().shards <= RING


_LOCK = threading.Lock()
_STORES_IN_ORDER = platform.machine() in ("x86_64", "AMD64", "i686")


def order_stores() -> None:
    """Let other processes see the stores and loads before this call before those that follow it.

    These processors do that by themselves; others do it when a lock is taken and released.
    """
    if not _STORES_IN_ORDER:
        with _LOCK:
            pass
        with _LOCK:
            pass


class IndexSegment:
    """A segment as this process sees it: `words` is the whole of it in words, `data` in bytes."""

    def __init__(self, descriptor: int, *, writable: bool = False) -> None:
        self.size = os.fstat(descriptor).st_size
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(descriptor, self.size, mmap.MAP_SHARED, protection)
        self.data = memoryview(self._map)
        self.words = self.data.cast("Q")

    @property
    def generation(self) -> int:
        """The number of the content; 0 if it is not complete."""
        return self.words[GENERATION]

    def clear(self) -> None:
        """Give all memory of the segment back; it is all zeros then."""
        self._map.madvise(mmap.MADV_REMOVE)


def create_segments(size: int) -> list[int]:
    """Create the segments of a machine, each of at most so many bytes, and return their descriptors.

    They take memory as they are filled. Empty where the system has no anonymous files in memory, or allows none.
    """
    if not hasattr(os, "memfd_create") or not hasattr(mmap, "MADV_REMOVE"):
        return []
    pages = max(size, BYTES_MIN) // mmap.PAGESIZE
    descriptors: list[int] = []
    try:
        for number in range(SEGMENTS):
            descriptors.append(os.memfd_create(f"radixgate-index-{number}", os.MFD_CLOEXEC))
            os.ftruncate(descriptors[-1], pages * mmap.PAGESIZE)
    except OSError as err:
        log.warning(
            "every process has its own copy of the prefix index, since they cannot share memory: %s", err
        )
        for descriptor in descriptors:
            os.close(descriptor)
        return []
    return descriptors


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMemory:
    """The shared memory in which the processes of one machine have one copy of the index."""

    descriptors: Sequence[int]
    """The segments."""
    writes: bool
    """Whether this process follows the index and writes the copy; the others read it."""
    corrections: Path
    """The unix socket for corrections."""
