"""Every key of the shared index. One hash tag a shard, so that a script finds all it touches in one place.

    rg:{ix:07}:tree:<namespace>     hash: the nodes of one namespace (lua/tree.lua)
    rg:{ix:07}:log                  stream: every change of the shard, the newest few thousand
    rg:{ix:07}:meta                 hash: tip and sequence of the last change
    rg:{ix:07}:names                hash: namespace id -> the namespace, for people and for snapshots
    rg:{ix:07}:predictions          hash: id -> tenure, deadline, path
    rg:{ix:07}                      channel: every change as it is made
    rg:{ix:all}:...                 the registry: which tenure a worker has

A namespace lives in one shard, by its id, and is never split.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import NewType

from radix_cache.namespace import Namespace

NamespaceId = NewType("NamespaceId", bytes)
"""Eight bytes that stand for a namespace in keys."""

REGISTRY = -1
"""The shard number that the registry goes by."""


def namespace_id(namespace: Namespace) -> NamespaceId:
    """By hash: equal namespaces have one id in every process."""
    return NamespaceId(hashlib.sha256(namespace.packed()).digest()[:8])


@dataclass(frozen=True)
class Keys:
    """The names under one prefix. `shards` must be the same in all gateways of a deployment."""

    prefix: str = "rg"
    shards: int = 64

    def shard(self, namespace: NamespaceId) -> int:
        """Where a namespace lives: 0 <= shard < shards."""
        return int.from_bytes(namespace, "little") % self.shards

    def tag(self, shard: int) -> str:
        """What the names of a shard begin with; its channel too."""
        return self._tags[shard]

    def log(self, shard: int) -> str:
        return f"{self._tags[shard]}:log"

    def meta(self, shard: int) -> str:
        return f"{self._tags[shard]}:meta"

    def names(self, shard: int) -> str:
        return f"{self._tags[shard]}:names"

    def predictions(self, shard: int) -> str:
        return f"{self._tags[shard]}:predictions"

    def tree(self, namespace: NamespaceId) -> str:
        return f"{self._tags[self.shard(namespace)]}:tree:{namespace.hex()}"

    @property
    def workers(self) -> str:
        """Hash: worker id -> tenure."""
        return f"{self._tags[REGISTRY]}:workers"

    @property
    def keeper(self) -> str:
        """Which gateway tidies up; it expires."""
        return f"{self._tags[REGISTRY]}:keeper"

    @cached_property
    def _tags(self) -> dict[int, str]:
        tags = {shard: f"{self.prefix}:{{ix:{shard:02}}}" for shard in range(self.shards)}
        return {**tags, REGISTRY: f"{self.prefix}:{{ix:all}}"}
