"""The memory of an answer that is read to its end before its client gets it, within what all requests may take.

Without it, a few answers without end of one worker would take more memory than the process may use.
"""

from gateway.domain.errors import BadRequest
from gateway.domain.memory_budget import MemoryLease
from workers.adapter import FailureKind, WorkerFailed

FREE_BYTES = 1024**2
"""Shorter answers are not accounted for."""
COPIES = 2
"""Times that an answer is in memory: in the pieces in which it came, or in its buffer to the client, and whole."""


class AnswerMemory:
    """What one answer takes of the memory of its request."""

    __slots__ = ("_bytes", "_lease", "_reserved")

    def __init__(self, lease: MemoryLease) -> None:
        """Begin an answer; `lease` is that of its request."""
        self._lease = lease
        self._bytes = 0
        self._reserved = 0

    def add(self, more: int) -> None:
        """Account for so many bytes more.

        Raises WorkerFailed for an answer that is too large, and Overloaded if others take the memory now.
        """
        self._bytes += more
        if self._bytes <= FREE_BYTES:
            return
        needed = self._bytes * COPIES
        try:
            self._lease.reserve(needed - self._reserved)
        except BadRequest as err:
            raise WorkerFailed(
                "its answer takes more memory than all requests may (listen.memory_bytes_max)",
                failure=FailureKind.SERVER_ERROR,
            ) from err
        self._reserved = needed

    def release(self) -> None:
        """Give everything back: the answer is not sent."""
        self._lease.reserve(-self._reserved)
        self._reserved = 0
