"""The quota of blocks in the prefix index: counts blocks by isolation group, and bounds what a tenant may record.

New paths of a group over its bound are not recorded. Their requests are served as if no worker held them, and do
not evict other groups' paths from the index. Paths that workers publish themselves are always recorded.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from gateway.domain.tenant import Tenant
from radix_cache.namespace import Namespace

COUNT_SECONDS = 1.0


class IndexQuota:
    """Bounds the blocks that each isolation group has in the index.

    Args:
        namespaces: Returns all packed namespaces of the index with their numbers of blocks.
        clock: Seconds that never run backwards.
    """

    def __init__(
        self, namespaces: Callable[[], Iterable[tuple[bytes, int]]], clock: Callable[[], float]
    ) -> None:
        self.unrecorded_paths = 0
        """The number of paths that were not recorded."""
        self._namespaces = namespaces
        self._clock = clock
        self._counted_at = float("-inf")
        self._blocks: Counter[str] = Counter()

    def blocks_by_group(self) -> Mapping[str, int]:
        """Return the number of blocks by group, at most a second old."""
        if self._clock() - self._counted_at >= COUNT_SECONDS:
            counted: Counter[str] = Counter()
            for name, blocks in self._namespaces():
                counted[_group(name)] += blocks
            self._blocks, self._counted_at = counted, self._clock()
        return self._blocks

    def try_record(self, tenant: Tenant, blocks: int) -> bool:
        """Return whether a path with so many new blocks may be recorded; if so, they count from now on."""
        if tenant.cache_blocks_max is None or blocks == 0:
            return True
        if self.blocks_by_group().get(tenant.group, 0) + blocks > tenant.cache_blocks_max:
            self.unrecorded_paths += 1
            return False
        self._blocks[tenant.group] += blocks
        return True


@lru_cache(maxsize=100_000)
def _group(name: bytes) -> str:
    try:
        return Namespace.unpack(name).group
    except ValueError:
        return ""
