"""What a gateway learns while Redis is away, or while a shard cannot be followed: kept, and sent when it is back.

paths    in an index of their own, for matches, and in a list that is bounded, to be sent
workers  those of which Redis did not take a removal: all that they hold has to be compared again
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from radix_cache.blocks import Hashes
from radix_cache.local_index import LocalIndex
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import REGISTRY, Keys
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


class LearntWhileAway:
    """The paths and removals to send to Redis later. `new_index` makes an empty index in this process."""

    def __init__(self, new_index: Callable[[], LocalIndex], keys: Keys) -> None:
        self.index: LocalIndex | None = None
        """The paths that could not be sent, for matches; None once all of them were."""
        self.lost_shards: Collection[int] = ()
        """The shards that the replica cannot follow."""
        self.paths = UnsentPaths()
        """The same paths, as they have to be sent."""
        self._workers: set[WorkerId] = set()
        self._new_index = new_index
        self._keys = keys

    def is_lost(self, namespace: Namespace, hashes: Hashes) -> bool:
        """Return whether the replica cannot follow the path's shard; without the registry it follows no shard."""
        lost = self.lost_shards
        return bool(lost) and (REGISTRY in lost or self._keys.shard_of(namespace, hashes) in lost)

    def add(self, path: UnsentPath) -> None:
        """Keep a path that could not be sent to Redis."""
        if self.index is None:
            self.index = self._new_index()
        self.index.hold(path.namespace, path.hashes, path.worker, tier=path.tier)
        self.paths.add(path)

    def add_worker(self, worker: WorkerId) -> None:
        """Keep a worker whose removal Redis did not take."""
        self._workers.add(worker)

    def forget(self, worker: WorkerId) -> None:
        """Drop the worker's paths."""
        if self.index is not None:
            self.index.forget(worker)
        self.paths.take(lambda path: path.worker == worker)

    def take(self) -> tuple[list[UnsentPath], set[WorkerId]]:
        """Remove and return the paths that can be sent now, and the workers; nothing while the registry is lost."""
        if REGISTRY in self.lost_shards:
            return [], set()
        paths = self.paths.take(lambda path: not self.is_lost(path.namespace, path.hashes))
        workers, self._workers = self._workers, set()
        if not self.paths:
            self.index = None
        return paths, workers
