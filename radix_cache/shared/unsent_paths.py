"""Paths that a gateway has learnt while Redis was away, kept until they can be sent."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.tiers import Tier

PATHS_MAX = 8192
BLOCKS_MAX = 2**20
"""The bound of blocks in all unsent paths together: 8 MiB."""


class UnsentPath(NamedTuple):
    """A path that `worker` holds in this tier or a faster one."""

    namespace: Namespace
    hashes: Hashes
    worker: WorkerId
    tier: Tier


class UnsentPaths:
    """Unsent paths, the oldest first; beyond PATHS_MAX or BLOCKS_MAX the oldest are dropped."""

    def __init__(self) -> None:
        self._paths: deque[UnsentPath] = deque()
        self._blocks = 0

    def __len__(self) -> int:
        """Return the number of paths."""
        return len(self._paths)

    def add(self, path: UnsentPath) -> None:
        """Add a path, and drop the oldest ones if there is no room."""
        self._paths.append(path)
        self._blocks += len(path.hashes)
        while self._paths and (len(self._paths) > PATHS_MAX or self._blocks > BLOCKS_MAX):
            self._blocks -= len(self._paths.popleft().hashes)

    def take(self, wanted: Callable[[UnsentPath], bool]) -> list[UnsentPath]:
        """Remove the wanted paths and return them."""
        taken: list[UnsentPath] = []
        staying: deque[UnsentPath] = deque()
        for path in self._paths:
            (taken if wanted(path) else staying).append(path)
        self._paths = staying
        self._blocks -= sum(len(path.hashes) for path in taken)
        return taken
