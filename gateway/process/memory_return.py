"""Settings of the C library's allocator (glibc), so that a process gives the memory of large requests back.

By default glibc raises the size from which it maps memory up to 32 MiB once such a block was freed, and makes eight
heaps a processor for threads: a body of 20 MB then lies in the middle of a heap, which can never shrink again.
"""

import ctypes

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

MAPPED_BYTES_MIN = 256 * 1024
"""Larger blocks are mapped, and unmapped as soon as they are freed."""
FREE_BYTES_MAX = 1024 * 1024
"""Free memory at the end of a heap that is not given back."""
HEAPS_MAX = 2
"""Heaps of all threads: they hold the interpreter lock when they allocate, and do not wait for one another."""


def return_freed_memory() -> None:
    """Make this process give freed memory back; without glibc, do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(M_TRIM_THRESHOLD, FREE_BYTES_MAX)
        mallopt(M_ARENA_MAX, HEAPS_MAX)
