"""The slot map of a cluster (which server has which slots), read again whenever a call was not served.

Servers are asked one after another, connected ones first, until one replies.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator

import hiredis

from radix_cache.redis.call import RedisCall, RedisDown
from radix_cache.redis.connection import ConnectionLost, RedisAddress, Reply
from radix_cache.redis.server import RedisServer
from radix_cache.redis.topology import SLOTS, ServerEndpoint, slot_ranges

log = logging.getLogger(__name__)

REFRESH_SECONDS_MIN = 0.1
REFRESH_SECONDS_MAX = 0.7

OnAnswered = Callable[["ClusterPrimary", RedisCall, Reply | ConnectionLost], None]


class ClusterPrimary(RedisServer):
    """A server of a cluster; it hands every call back to the cluster with its reply or failure."""

    def __init__(self, address: RedisAddress, on_answered: OnAnswered) -> None:
        super().__init__(address)
        self._hand_back = on_answered

    def _answered(self, call: RedisCall, reply: Reply | ConnectionLost) -> None:
        self._returned(call)
        self._hand_back(self, call, reply)

    def _unreachable(self, call: RedisCall, reason: str) -> None:
        self._hand_back(self, call, ConnectionLost(reason))


class SlotMap:
    """The servers of a cluster and their slots.

    Args:
        seeds: Servers to ask while none is known.
        on_answered: Gets each call that a server hands back, with its reply.
        on_refreshed: Called after every refresh.
    """

    def __init__(
        self, seeds: list[RedisAddress], on_answered: OnAnswered, on_refreshed: Callable[[], None]
    ) -> None:
        self.trouble = "no server of the cluster answers"
        self._seeds = seeds
        self._answered = on_answered
        self._on_refreshed = on_refreshed
        self._servers: dict[ServerEndpoint, ClusterPrimary] = {}
        self._owners: list[ClusterPrimary | None] = [None] * SLOTS
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed = asyncio.Event()
        self._refreshed_at = float("-inf")
        self._closed = False

    @property
    def servers(self) -> list[ClusterPrimary]:
        """All known servers."""
        return list(self._servers.values())

    @property
    def is_known(self) -> bool:
        """Whether any server is known."""
        return bool(self._servers)

    def owner(self, slot: int) -> ClusterPrimary | None:
        """Return the server of a slot; None if it is not known."""
        return self._owners[slot]

    def any_server(self) -> ClusterPrimary | None:
        """Return a connected server, else any known one."""
        servers = self.servers
        return next((s for s in servers if s.connected), random.choice(servers) if servers else None)

    def primaries(self) -> list[RedisAddress]:
        """Return the addresses of all servers with slots. Raises RedisDown if a slot has no server."""
        if None in self._owners:
            raise RedisDown(self.trouble if not self.is_known else "some slots of the cluster have no server")
        return [server.address for server in dict.fromkeys(self._owners) if server is not None]

    def slot_moved(self, slot: int, to: ClusterPrimary) -> None:
        """Record that a server has the slot from now on."""
        self._owners[slot] = to

    def server(self, endpoint: ServerEndpoint) -> ClusterPrimary:
        """Return the client of the server at this endpoint."""
        server = self._servers.get(endpoint)
        if server is None:
            server = self._servers[endpoint] = ClusterPrimary(
                self._seeds[0].with_endpoint(*endpoint), self._answered
            )
        return server

    def refresh(self) -> None:
        """Start to read the slots again, unless a refresh is running."""
        if self._refreshing is None and not self._closed:
            self._refreshing = asyncio.create_task(self._refresh())

    async def refreshed(self) -> None:
        """Wait for the running refresh, or start one and wait for it. Raises RedisDown if the map is closed."""
        if self._closed:
            raise RedisDown("closed")
        self.refresh()
        self._refreshed.clear()
        await self._refreshed.wait()

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        self._refreshed.set()
        for server in self.servers:
            await server.close()

    async def _refresh(self) -> None:
        """Ask one server after another until one replies with the slots."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._refreshed_at + REFRESH_SECONDS_MIN - loop.time()))
        try:
            for address in self._addresses_to_ask():
                ranges = await self._ask_slots(address)
                if ranges:
                    await self._set_owners(ranges)
                    break
            else:
                log.debug("no server of the Redis cluster returns its slots: %s", self.trouble)
        finally:
            self._refreshed_at = loop.time()
            self._refreshing = None
            self._refreshed.set()
        self._on_refreshed()

    def _addresses_to_ask(self) -> Iterator[RedisAddress]:
        known = self.servers
        random.shuffle(known)
        known.sort(key=lambda server: not server.connected)
        yield from (server.address for server in known)
        yield from (seed for seed in self._seeds if ServerEndpoint(seed.host, seed.port) not in self._servers)

    async def _ask_slots(self, address: RedisAddress) -> list[tuple[int, int, ServerEndpoint]]:
        try:
            async with asyncio.timeout(REFRESH_SECONDS_MAX):
                line = await address.connect()
                try:
                    reply = await line.execute(["CLUSTER", "SLOTS"])
                finally:
                    line.close()
        except (ConnectionLost, TimeoutError) as err:
            self.trouble = f"{address.host}:{address.port}: {err or 'no answer in time'}"
            return []
        if isinstance(reply, hiredis.ReplyError):
            self.trouble = f"{address.host}:{address.port}: {reply}"
        return slot_ranges(reply, address.host)

    async def _set_owners(self, ranges: list[tuple[int, int, ServerEndpoint]]) -> None:
        arranged: list[ClusterPrimary | None] = [None] * SLOTS
        for first, last, endpoint in ranges:
            arranged[first : last + 1] = [self.server(endpoint)] * (last + 1 - first)
        self._owners = arranged
        endpoints = {endpoint for _, _, endpoint in ranges}
        for endpoint in [endpoint for endpoint in self._servers if endpoint not in endpoints]:
            if not self._servers[endpoint].calls:
                await self._servers.pop(endpoint).close()
