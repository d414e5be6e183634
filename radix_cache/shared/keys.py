"""Every key of the shared index. One hash tag a shard, so that a script finds all it touches in one place.

    rg:v2:{ix:07}:tree:<namespace>     hash: the nodes of one namespace (lua/tree.lua)
    rg:v2:{ix:07}:log                  stream: every change of the shard, the newest few thousand
    rg:v2:{ix:07}:meta                 hash: tip and sequence of the last change
    rg:v2:{ix:07}:names                hash: namespace id -> the namespace, for people and for snapshots
    rg:v2:{ix:07}:predictions          hash: id -> tenure, deadline, path
    rg:v2:{ix:07}                      channel: every change as it is made
    rg:v2:{ix:all}:...                 the registry: which tenure a worker has; which gateways follow its events

A namespace lives in one shard, by its id, and is never split. `v2` is the layout of all that: see LAYOUT.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import NewType

from radix_cache.namespace import Namespace

NamespaceId = NewType("NamespaceId", bytes)
"""Eight bytes that stand for a namespace in keys."""

LAYOUT = 2
"""Counts up with every change of what is kept or told. Gateways of different layouts share nothing."""

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
    layout: int = LAYOUT

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
    def any_tree(self) -> str:
        """A pattern for SCAN."""
        return f"{self._begin}:{{ix:*:tree:*"

    @property
    def workers(self) -> str:
        """Hash: worker id -> tenure."""
        return f"{self._tags[REGISTRY]}:workers"

    @property
    def keeper(self) -> str:
        """Which gateway tidies up; it expires."""
        return f"{self._tags[REGISTRY]}:keeper"

    @property
    def feed_leases(self) -> tuple[str, str, str]:
        """Gateways that live; leases by worker; the version of both."""
        tag = f"{self._tags[REGISTRY]}:feeds"
        return f"{tag}:gateways", f"{tag}:leases", f"{tag}:version"

    @cached_property
    def _tags(self) -> dict[int, str]:
        tags = {shard: f"{self._begin}:{{ix:{shard:02}}}" for shard in range(self.shards)}
        return {**tags, REGISTRY: f"{self._begin}:{{ix:all}}"}

    @property
    def _begin(self) -> str:
        return f"{self.prefix}:v{self.layout}" if self.layout > 1 else self.prefix
