"""The names of all Redis keys of the shared index. Each shard has one hash tag, so all its keys are on one server.

    rg:v3:{ix:07}:tree:<tree>          hash: the nodes of one tree (lua/tree.lua)
    rg:v3:{ix:07}:log                  stream: every change of the shard, the newest few thousand and few MiB
    rg:v3:{ix:07}:meta                 hash: tip (id) and sequence number of the last change; sizes
    rg:v3:{ix:07}:names                hash: id of a tree -> its namespace, for people and for snapshots
    rg:v3:{ix:07}:predictions          hash: id -> tenure, deadline, path
    rg:v3:{ix:07}                      channel: every change as it is made
    rg:v3:{ix:all}:...                 the registry: the tenure of each worker, the gateways that follow its events

A tenure is the number of one worker in the tree from its start until its cache is lost.

On one server a namespace is one tree. In a Redis Cluster it has up to CLUSTER_PARTS trees, each in another shard;
the first block of a path decides which tree has the path. The slots of the shards are spread evenly, so that all
primaries have about as many shards; `07.41` is a tag whose slot is in the part of shard 7. `v3` is the layout of
the keys and values: see LAYOUT.
"""

import hashlib
from binascii import crc32
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NewType

from radix_cache.blocks import Hashes
from radix_cache.namespace import NAMESPACES_MAX, Namespace
from radix_cache.redis.topology import is_cluster, spread_tags

TreeId = NewType("TreeId", bytes)
"""The eight bytes of one tree in keys: a namespace, or one of its parts."""

LAYOUT = 3
"""Increased with every change of the stored values or messages; gateways of different layouts share nothing."""

SHARDS = 48
"""A number that divides evenly among 2, 3, 4, 6, 8 or 12 primaries."""

CLUSTER_PARTS = 24
"""The number of trees of a namespace in a Redis Cluster: one in every second shard."""

REGISTRY = -1
"""The shard number of the registry."""


@lru_cache(maxsize=NAMESPACES_MAX)
def tree_id(namespace: Namespace) -> TreeId:
    """Return the id of a namespace's first or only tree: a hash, the same in every process."""
    return TreeId(hashlib.sha256(namespace.packed()).digest()[:8])


@dataclass(frozen=True)
class Keys:
    """The names of the keys under one prefix."""

    prefix: str = "rg"
    shards: int = SHARDS
    """The number of shards, which must be the same in all gateways of a deployment."""
    layout: int = LAYOUT
    parts: int = 1
    """How many trees a namespace has at most; the same in all gateways of a deployment."""

    @classmethod
    def of_redis(cls, url: str, prefix: str) -> "Keys":
        """Return the key names of a deployment that uses the Redis at this URL."""
        return cls(prefix=prefix, parts=CLUSTER_PARTS if is_cluster(url) else 1)

    def tree_of(self, namespace: Namespace, first: int) -> TreeId:
        """Return the id of the tree with the paths of a namespace that begin with the block `first`."""
        whole = tree_id(namespace)
        return whole if self.parts == 1 else self._part(whole, first % self.parts)

    def trees_of(self, namespace: Namespace) -> list[TreeId]:
        """Return the ids of all trees that a namespace may have."""
        whole = tree_id(namespace)
        return [self._part(whole, part) for part in range(self.parts)]

    def shard(self, tree: TreeId) -> int:
        """Return the shard of a tree: 0 <= shard < shards."""
        return int.from_bytes(tree, "little") % self.shards

    def shard_of(self, namespace: Namespace, hashes: Hashes) -> int:
        """Return the shard of a path."""
        return self.shard(self.tree_of(namespace, hashes[0]))

    def tag(self, shard: int) -> str:
        """Return the beginning of all key names of a shard, which is also the name of its channel."""
        return self._tags[shard]

    def log(self, shard: int) -> str:
        """Return the key of a shard's log."""
        return f"{self._tags[shard]}:log"

    def meta(self, shard: int) -> str:
        """Return the key with the tip and the sequence number of a shard's last change."""
        return f"{self._tags[shard]}:meta"

    def names(self, shard: int) -> str:
        """Return the key of a shard's namespaces, a hash by tree id."""
        return f"{self._tags[shard]}:names"

    def predictions(self, shard: int) -> str:
        """Return the key of a shard's predictions."""
        return f"{self._tags[shard]}:predictions"

    def tree(self, tree: TreeId) -> str:
        """Return the key of a tree's nodes."""
        return f"{self._tags[self.shard(tree)]}:tree:{tree.hex()}"

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
        names = tuple(f"ix:{shard:02}" for shard in range(self.shards))
        if self.layout > 2:
            # Deployments that share a cluster have their shards of one number in different places.
            names = spread_tags(names, first=crc32(self.prefix.encode()) % len(names))
        tags = {shard: f"{self._prefix}:{{{name}}}" for shard, name in enumerate(names)}
        return {**tags, REGISTRY: f"{self._prefix}:{{ix:all}}"}

    @property
    def _prefix(self) -> str:
        return f"{self.prefix}:v{self.layout}" if self.layout > 1 else self.prefix

    def _part(self, whole: TreeId, part: int) -> TreeId:
        """Return the id of a part of a namespace: the namespace's id plus the part's distance in shards."""
        number = int.from_bytes(whole, "little") + part * self.shards // self.parts
        return TreeId((number % 2**64).to_bytes(8, "little"))
