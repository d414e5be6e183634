"""Whose blocks the prefix index is full of: by isolation group, and what of that a tenant may have.

A group that is over its bound gets no further paths recorded: they are served as if nobody held them, and push
nobody else's out of the index. What workers say themselves is the truth and stays.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from gateway.domain.tenant import Tenant
from radix_cache.namespace import Namespace

COUNT_SECONDS = 1.0


class IndexQuota:
    """`namespaces`: all of the index, packed, with their blocks. `clock`: seconds, never backwards."""

    def __init__(
        self, namespaces: Callable[[], Iterable[tuple[bytes, int]]], clock: Callable[[], float]
    ) -> None:
        self.unrecorded = 0
        """Paths that were not recorded, in all."""
        self._namespaces = namespaces
        self._clock = clock
        self._counted_at = float("-inf")
        self._blocks: Counter[str] = Counter()

    def blocks(self) -> Mapping[str, int]:
        """By group, as of the last second."""
        if self._clock() - self._counted_at >= COUNT_SECONDS:
            counted: Counter[str] = Counter()
            for name, blocks in self._namespaces():
                counted[_group(name)] += blocks
            self._blocks, self._counted_at = counted, self._clock()
        return self._blocks

    def take(self, tenant: Tenant, blocks: int) -> bool:
        """May a path with so many blocks that are new be recorded? If so they count from now on."""
        if tenant.cache_blocks_max is None or blocks == 0:
            return True
        if self.blocks().get(tenant.group, 0) + blocks > tenant.cache_blocks_max:
            self.unrecorded += 1
            return False
        self._blocks[tenant.group] += blocks
        return True


@lru_cache(maxsize=100_000)
def _group(name: bytes) -> str:
    try:
        return Namespace.unpack(name).group
    except ValueError:
        return ""
