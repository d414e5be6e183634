"""The choice of the waiting request that is estimated again: the one that was estimated longest ago.

A request's uncached tokens and its cost are estimated on arrival. While it waits, other requests compute its
prefix, or a worker evicts that. So one waiting request is estimated again each time turns are given, which bounds
the work, however many wait.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

AGE_SECONDS = 0.1
"""A younger estimate is kept."""

Key = TypeVar("Key", bound=Hashable)
"""The key of a request."""


class EstimateAges(Generic[Key]):
    """When each waiting request was estimated last."""

    def __init__(self) -> None:
        self._estimated_at: dict[Key, float] = {}  # the oldest estimate first

    def add(self, request: Key, now: float) -> None:
        """Add a request that has been estimated now."""
        self._estimated_at[request] = now

    def remove(self, request: Key) -> None:
        """Remove a request that waits no longer. Removing it twice has no effect."""
        self._estimated_at.pop(request, None)

    def take_due(self, now: float) -> Key | None:
        """Return the request that is to be estimated again, and count it as estimated now; None if none is due."""
        for request, at in self._estimated_at.items():
            if now - at < AGE_SECONDS:
                return None
            del self._estimated_at[request]
            self._estimated_at[request] = now
            return request
        return None
