"""The layout of the queue's shards: which shard decides follows from the group of a model, and perhaps the tenant.

group of models --hash--> one shard
group of a model in `queueing.tenant_shards` --hash, and hash of the tenant--> one of so many shards,
                                                                               at equal distances
"""

from binascii import crc32
from collections.abc import Callable, Mapping

from gateway.fleet.model_groups import ModelGroups
from gateway.queueing.shared.keys import model_of


def shard_of_group(group: str, shards: int, tenant: str = "", parts: int = 1) -> int:
    """Return the number of a shard: 0 <= number < shards. The tenants of the group are divided among `parts`."""
    part = crc32(tenant.encode()) % parts if parts > 1 else 0
    return (crc32(group.encode()) + part * shards // parts) % shards


class ShardLayout:
    """The shards of each group of models, as of now."""

    def __init__(
        self, shards: int, tenant_shards: Mapping[str, int], groups: Callable[[], ModelGroups]
    ) -> None:
        """`tenant_shards`: by model, among how many shards its tenants are divided; 1 for any other model."""
        self.shards = shards
        self._tenant_shards = tenant_shards
        self._groups = groups
        self._parts_of: tuple[ModelGroups, dict[str, int]] | None = None

    @property
    def divides(self) -> bool:
        """Whether the tenants of any model are divided."""
        return self.shards > 1 and any(parts > 1 for parts in self._tenant_shards.values())

    def shard_of(self, queue: str, tenant: str = "") -> int:
        """Return the number of the shard of a queue's requests of a tenant."""
        group = self._groups().of(model_of(queue))
        return shard_of_group(group, self.shards, tenant, self._parts(group))

    def is_divided(self, queue: str) -> bool:
        """Return whether the tenants of a queue are divided among several shards."""
        return self._parts(self._groups().of(model_of(queue))) > 1

    def has_group(self, number: int, group: str) -> bool:
        """Return whether a shard decides on requests of a group of models."""
        parts, first = self._parts(group), crc32(group.encode())
        return any((first + part * self.shards // parts) % self.shards == number for part in range(parts))

    def _parts(self, group: str) -> int:
        """Return among how many shards the tenants of a group are divided: the largest number of its models."""
        if not self._tenant_shards:
            return 1
        groups = self._groups()
        if self._parts_of is None or self._parts_of[0] is not groups:
            parts: dict[str, int] = {}
            for model, number in self._tenant_shards.items():
                name = groups.of(model)
                parts[name] = max(parts.get(name, 1), min(number, self.shards))
            self._parts_of = groups, parts
        return self._parts_of[1].get(group, 1)
