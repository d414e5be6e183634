"""Who has which slots of a cluster, as its servers see it: asked when something has come back unserved.

One server's word is enough; one after another is asked, those first to whom there is a connection.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator

import hiredis

from radix_cache.redis.call import RedisCall, RedisDown
from radix_cache.redis.connection import RedisAddress, ConnectionLost, Reply
from radix_cache.redis.server import RedisServer
from radix_cache.redis.topology import SLOTS, ServerEndpoint, slot_ranges

log = logging.getLogger(__name__)

REFRESH_SECONDS_MIN = 0.1
REFRESH_SECONDS_MAX = 0.7

Answered = Callable[["ClusterPrimary", RedisCall, Reply | ConnectionLost], None]


class ClusterPrimary(RedisServer):
    """A server that hands back what it was asked, served or not."""

    def __init__(self, address: RedisAddress, answered: Answered) -> None:
        super().__init__(address)
        self._hand_back = answered

    def _answered(self, call: RedisCall, reply: Reply | ConnectionLost) -> None:
        self._under_way -= 1
        self._hand_back(self, call, reply)

    def _unreachable(self, call: RedisCall, why: str) -> None:
        self._hand_back(self, call, ConnectionLost(why))


class SlotMap:
    """`seeds`: whom to ask first. `answered`: gets what servers hand back. `done`: called after every look."""

    def __init__(self, seeds: list[RedisAddress], answered: Answered, done: Callable[[], None]) -> None:
        self.trouble = "no server of the cluster answers"
        self._seeds = seeds
        self._answered = answered
        self._done = done
        self._servers: dict[ServerEndpoint, ClusterPrimary] = {}
        self._owners: list[ClusterPrimary | None] = [None] * SLOTS
        self._looking: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._looked_at = float("-inf")
        self._closed = False

    @property
    def servers(self) -> list[ClusterPrimary]:
        return list(self._servers.values())

    @property
    def known(self) -> bool:
        return bool(self._servers)

    def owner(self, slot: int) -> ClusterPrimary | None:
        return self._owners[slot]

    def anybody(self) -> ClusterPrimary | None:
        servers = self.servers
        return next((s for s in servers if s.connected), random.choice(servers) if servers else None)

    def primaries(self) -> list[RedisAddress]:
        """Everybody who has slots. Raises RedisDown if a slot has nobody."""
        if None in self._owners:
            raise RedisDown(self.trouble if not self.known else "a part of the cluster is away")
        return [server.address for server in dict.fromkeys(self._owners) if server is not None]

    def moved(self, slot: int, to: ClusterPrimary) -> None:
        """A server said so."""
        self._owners[slot] = to

    def server(self, place: ServerEndpoint) -> ClusterPrimary:
        server = self._servers.get(place)
        if server is None:
            server = self._servers[place] = ClusterPrimary(self._seeds[0].at(*place), self._answered)
        return server

    def again(self) -> None:
        """What was known may be so no more."""
        if self._looking is None and not self._closed:
            self._looking = asyncio.create_task(self._look())

    async def made(self) -> None:
        """Waits for a look that begins now, or is under way. Raises RedisDown when closed."""
        if self._closed:
            raise RedisDown("closed")
        self.again()
        self._looked.clear()
        await self._looked.wait()

    async def close(self) -> None:
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._looked.set()
        for server in self.servers:
            await server.close()

    async def _look(self) -> None:
        """Asks one server after another, until one tells who has which slots."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._looked_at + REFRESH_SECONDS_MIN - loop.time()))
        try:
            for address in self._to_be_asked():
                ranges = await self._asked(address)
                if ranges:
                    await self._arrange(ranges)
                    break
            else:
                log.debug("the cluster tells nothing of itself: %s", self.trouble)
        finally:
            self._looked_at = loop.time()
            self._looking = None
            self._looked.set()
        self._done()

    def _to_be_asked(self) -> Iterator[RedisAddress]:
        known = self.servers
        random.shuffle(known)
        known.sort(key=lambda server: not server.connected)
        yield from (server.address for server in known)
        yield from (seed for seed in self._seeds if ServerEndpoint(seed.host, seed.port) not in self._servers)

    async def _asked(self, address: RedisAddress) -> list[tuple[int, int, ServerEndpoint]]:
        try:
            async with asyncio.timeout(REFRESH_SECONDS_MAX):
                line = await address.open()
                try:
                    reply = await line.reply(["CLUSTER", "SLOTS"])
                finally:
                    line.close()
        except (ConnectionLost, TimeoutError) as err:
            self.trouble = f"{address.host}:{address.port}: {err or 'no answer in time'}"
            return []
        if isinstance(reply, hiredis.ReplyError):
            self.trouble = f"{address.host}:{address.port}: {reply}"
        return slot_ranges(reply, address.host)

    async def _arrange(self, ranges: list[tuple[int, int, ServerEndpoint]]) -> None:
        arranged: list[ClusterPrimary | None] = [None] * SLOTS
        for first, last, place in ranges:
            arranged[first : last + 1] = [self.server(place)] * (last + 1 - first)
        self._owners = arranged
        places = {place for _, _, place in ranges}
        for place in [place for place in self._servers if place not in places]:
            if not self._servers[place].calls:
                await self._servers.pop(place).close()
