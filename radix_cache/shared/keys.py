"""The names of all Redis keys of the shared index. Each shard has one hash tag, so all its keys are on one server.

    rg:v2:{ix:07}:tree:<namespace>     hash: the nodes of one namespace (lua/tree.lua)
    rg:v2:{ix:07}:log                  stream: every change of the shard, the newest few thousand and few MiB
    rg:v2:{ix:07}:meta                 hash: tip (id) and sequence number of the last change; sizes
    rg:v2:{ix:07}:names                hash: namespace id -> the namespace, for people and for snapshots
    rg:v2:{ix:07}:predictions          hash: id -> tenure, deadline, path
    rg:v2:{ix:07}                      channel: every change as it is made
    rg:v2:{ix:all}:...                 the registry: the tenure of each worker, the gateways that follow its events

A tenure is a number that stands for one worker from its start until its cache is lost. A namespace is in one shard,
by its id, and is never split. `v2` is the layout of the keys and values: see LAYOUT.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NewType

from radix_cache.namespace import NAMESPACES_MAX, Namespace

NamespaceId = NewType("NamespaceId", bytes)
"""Eight bytes that stand for a namespace in keys."""

LAYOUT = 2
"""Increased with every change of the stored values or messages; gateways of different layouts share nothing."""

REGISTRY = -1
"""The shard number of the registry."""


@lru_cache(maxsize=NAMESPACES_MAX)
def namespace_id(namespace: Namespace) -> NamespaceId:
    """Return the id of a namespace: a hash, so that equal namespaces have one id in every process."""
    return NamespaceId(hashlib.sha256(namespace.packed()).digest()[:8])


@dataclass(frozen=True)
class Keys:
    """The names of the keys under one prefix."""

    prefix: str = "rg"
    shards: int = 64
    """The number of shards, which must be the same in all gateways of a deployment."""
    layout: int = LAYOUT

    def shard(self, namespace: NamespaceId) -> int:
        """Return the shard of a namespace: 0 <= shard < shards."""
        return int.from_bytes(namespace, "little") % self.shards

    def tag(self, shard: int) -> str:
        """Return the beginning of all key names of a shard, which is also the name of its channel."""
        return self._tags[shard]

    def log(self, shard: int) -> str:
        """Return the key of a shard's log."""
        return f"{self._tags[shard]}:log"

    def meta(self, shard: int) -> str:
        """Return the key of a shard's last tip and sequence number."""
        return f"{self._tags[shard]}:meta"

    def names(self, shard: int) -> str:
        """Return the key of the namespaces of a shard by id."""
        return f"{self._tags[shard]}:names"

    def predictions(self, shard: int) -> str:
        """Return the key of a shard's predictions."""
        return f"{self._tags[shard]}:predictions"

    def tree(self, namespace: NamespaceId) -> str:
        """Return the key of a namespace's nodes."""
        return f"{self._tags[self.shard(namespace)]}:tree:{namespace.hex()}"

    @property
    def any_tree(self) -> str:
        """A pattern for SCAN that matches the trees of all namespaces."""
        return f"{self._prefix}:{{ix:*:tree:*"

    @property
    def workers(self) -> str:
        """The key of the workers' tenures, a hash by worker id."""
        return f"{self._tags[REGISTRY]}:workers"

    @property
    def maintenance_lease(self) -> str:
        """The key that names the gateway which maintains the index; it expires."""
        return f"{self._tags[REGISTRY]}:maintenance_lease"

    @property
    def feed_leases(self) -> tuple[str, str, str]:
        """The keys of the live gateways, of the leases by worker, and of the version of both."""
        tag = f"{self._tags[REGISTRY]}:feeds"
        return f"{tag}:gateways", f"{tag}:leases", f"{tag}:version"

    @cached_property
    def _tags(self) -> dict[int, str]:
        tags = {shard: f"{self._prefix}:{{ix:{shard:02}}}" for shard in range(self.shards)}
        return {**tags, REGISTRY: f"{self._prefix}:{{ix:all}}"}

    @property
    def _prefix(self) -> str:
        return f"{self.prefix}:v{self.layout}" if self.layout > 1 else self.prefix
