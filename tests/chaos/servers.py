"""The Redis servers of a scene: one behind a link, a primary and a replica with a sentinel, or a cluster."""

import asyncio
from pathlib import Path
from typing import Any, Protocol

import redis.asyncio as redis
from redis.asyncio.sentinel import Sentinel

from tests.fakes.redis_cluster import Node, RedisCluster
from tests.fakes.redis_sentinel import SERVICE, WatchedNode, WatchedServers
from tests.stage.link import Link
from tests.stage.valkey import ValkeyServer

DOWN_AFTER_MS = 3000
"""How long a server may be silent before another takes its place; a busy machine is late, too."""

SLOTS_MOVED_MAX = 40


class Servers(Protocol):
    """Started Redis servers."""

    @property
    def url(self) -> str:
        """The URL for gateways."""

    @property
    def client(self) -> Any:
        """A client of redis-py that gateways' faults do not reach."""

    async def close(self) -> None:
        """Stop all servers."""


class LinkedValkey:
    """One Valkey whose data survive a restart, behind a link."""

    def __init__(self, directory: Path) -> None:
        data = directory / "valkey"
        data.mkdir()
        self.valkey = ValkeyServer(data, keeps=True)
        self.link = Link(directory / "link", self.valkey.socket)
        self.url = f"unix://{directory / 'link'}"
        self.client = redis.from_url(self.valkey.url)

    async def start(self) -> None:
        """Start the server and its link."""
        await asyncio.to_thread(self.valkey.start)
        await self.link.open()

    async def close(self) -> None:
        """Stop both."""
        await self.client.aclose()
        await self.link.close()
        self.valkey.kill()


class WatchedValkey:
    """A primary, its replica, and a sentinel that promotes the replica."""

    def __init__(self, directory: Path) -> None:
        data = directory / "watched"
        data.mkdir()
        self._servers = WatchedServers(data, down_after_ms=DOWN_AFTER_MS)
        self._sentinel = Sentinel([("127.0.0.1", self._servers.sentinel_port)])  # type: ignore[no-untyped-call]
        self.url = self._servers.url
        self.client: Any = self._sentinel.master_for(SERVICE)  # type: ignore[no-untyped-call]
        self.fallen: WatchedNode | None = None
        """The primary that the current fault has hit."""

    async def start(self) -> None:
        """Start all servers."""
        await asyncio.to_thread(self._servers.start)

    def fell(self) -> WatchedNode:
        """Note and return the primary, which is about to be hit."""
        self.fallen = self._servers.primary()
        return self.fallen

    def promote(self) -> None:
        """Let primary and replica change places; the primary waits until the replica has all data."""
        self._servers.sentinel.client.execute_command("SENTINEL", "FAILOVER", SERVICE, "COORDINATED")

    def replaced(self) -> bool:
        """Return whether another server is the primary now."""
        return self._servers.primary() is not self.fallen

    def primary_port(self) -> int:
        """Return the port of the primary."""
        return self._servers.primary().port

    def has_replica(self) -> bool:
        """Return whether the replica has all data of the primary."""
        return self._servers.replica().copies()

    async def close(self) -> None:
        """Stop all servers."""
        await self.client.aclose()
        for each in self._sentinel.sentinels:
            await each.aclose()
        self._servers.close()


class ValkeyCluster:
    """A cluster of three primaries, each with a replica."""

    def __init__(self) -> None:
        self.cluster = RedisCluster(node_timeout_ms=DOWN_AFTER_MS)
        self.url = self.cluster.url
        self.client: Any = None
        self.fallen: Node | None = None
        """The primary that the current fault has hit."""

    async def start(self) -> None:
        """Start all servers."""
        await asyncio.to_thread(self._start)
        self.client = redis.RedisCluster.from_url(f"redis://127.0.0.1:{self.cluster.nodes[0].port}")

    def used_slots(self) -> list[int]:
        """Return slots of quotas, of the queue and of the index, SLOTS_MOVED_MAX at most."""
        keys = {key for node in self.cluster.primaries() for key in node.ask("SCAN", 0, "COUNT", 1000)[1]}
        first = self.cluster.nodes[0]
        return sorted({first.ask("CLUSTER", "KEYSLOT", key) for key in keys})[:SLOTS_MOVED_MAX]

    def move(self, slot: int) -> None:
        """Move a slot to the next server, a few keys at a time."""
        source, primaries = self.cluster.owner(slot), self.cluster.primaries()
        target = primaries[(primaries.index(source) + 1) % len(primaries)]
        self.cluster.begin_move(slot, target)
        while self.cluster.move_keys(slot, source, target, most=3):
            pass
        self.cluster.end_move(slot, target)

    def fell(self) -> Node:
        """Note and return the primary of the shared queue, which is about to be hit."""
        self.fallen = self._queue_owner()
        return self.fallen

    def promote(self) -> None:
        """Let the primary of the shared queue and its replica change places without loss."""
        assert self.fallen is not None
        self.cluster.replicas_of(self.fallen)[0].ask("CLUSTER", "FAILOVER")

    def replaced(self) -> bool:
        """Return whether another server is the primary of the shared queue now."""
        try:
            return self._queue_owner() is not self.fallen
        except AssertionError:
            return False

    def has_replicas(self) -> bool:
        """Return whether every primary has a replica with all data."""
        return all(self.cluster.replicas_of(primary) for primary in self.cluster.primaries())

    def _queue_owner(self) -> Node:
        slot = self.cluster.members()[0].ask("CLUSTER", "KEYSLOT", "{queue}")
        return self.cluster.owner(slot)

    async def close(self) -> None:
        """Stop all servers."""
        await self.client.aclose()
        self.cluster.close()

    def _start(self) -> None:
        self.cluster.start()
        for node in self.cluster.nodes:
            self.cluster.add_replica(node)
