"""A segment of shared memory, with the layout of its head and its parts.

    head            the words below
    sequences       for each shard the number of the last published change
    announcements   a ring of predictions, from which processes learn the loads of workers
    heap            slot tables and records

A segment is an anonymous file in memory, which the supervising process creates and its children inherit. So it has
no name, is bounded in bytes, and vanishes with the last process that uses it, even after a crash. There are two
segments: when the first process restarts, it fills the unused one while the others still read the old one.
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
"""The generation of the content, larger for newer content; 0 while it is incomplete."""
ALIVE_AT = 2
"""When the writer last published, in nanoseconds of the machine's monotonic clock."""
NODE_TABLE = 3
"""This word and the next two show where the slot tables are; see slot_table.py."""
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
"""How often changes were published."""
LOST_SHARDS = 12
"""Whether the writer cannot follow all shards."""
BYTES_USED = 13
BYTES_NEEDED = 14
"""The bytes that were not published because the segment is full."""

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
    """Act as a memory barrier: other processes see the stores before this call before those after it.

    Processors with ordered stores need nothing; on others, taking and releasing a lock is such a barrier.
    """
    if not _STORES_IN_ORDER:
        with _LOCK:
            pass
        with _LOCK:
            pass


class IndexSegment:
    """A segment mapped into this process: `data` is its content in bytes, `words` the same in words."""

    def __init__(self, descriptor: int, *, writable: bool = False) -> None:
        self.size = os.fstat(descriptor).st_size
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(descriptor, self.size, mmap.MAP_SHARED, protection)
        self.data = memoryview(self._map)
        self.words = self.data.cast("Q")

    @property
    def generation(self) -> int:
        """The generation of the content; 0 while it is incomplete."""
        return self.words[GENERATION]

    def clear(self) -> None:
        """Return all memory of the segment to the system; its content is then all zeros."""
        self._map.madvise(mmap.MADV_REMOVE)


def create_segments(size: int) -> list[int]:
    """Create the segments of a machine, each of at most `size` bytes, and return their file descriptors.

    They take memory as they are filled. The list is empty where the system has no anonymous files in memory, or
    forbids them.
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
    """The shared memory with the one copy of the index that the processes of a machine have in common."""

    descriptors: Sequence[int]
    """The file descriptors of the segments."""
    writes: bool
    """Whether this process follows the index and writes the copy; the others read it."""
    corrections: Path
    """The path of the unix socket for corrections."""
