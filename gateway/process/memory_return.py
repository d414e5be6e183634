"""Sets up the C library's allocator (glibc), so that a process returns the memory of large requests to the system.

By default glibc maps only blocks above a threshold, which rises up to 32 MiB when large blocks are freed, and makes
eight heaps per processor for threads. A body of 20 MB then lies in the middle of a heap, which can never shrink
again.
"""

import ctypes

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

MAPPED_BYTES_MIN = 256 * 1024
"""Larger blocks are mapped, and unmapped as soon as they are freed."""
FREE_BYTES_MAX = 1024 * 1024
"""The most free memory at the end of a heap that is kept."""
HEAPS_MAX = 2
"""The number of heaps of all threads; threads hold the GIL while they allocate, so none waits for a heap."""


def return_freed_memory() -> None:
    """Make this process give freed memory back; without glibc, do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(M_TRIM_THRESHOLD, FREE_BYTES_MAX)
        mallopt(M_ARENA_MAX, HEAPS_MAX)
