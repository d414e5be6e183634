"""Calls Lua scripts on Redis, many callers to one round trip, in the order in which they call.

Callers await futures. A caller that stops waiting (timeout, client gone) does not stop the command: it has been
sent. Scripts are therefore written to be repeated and to be undone by id; a call whose connection broke is made
once more. In a cluster the order holds for each slot.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from radix_cache.redis.call import ScriptAnswer, CommandArgument, RedisCall, RedisDown, Script
from radix_cache.redis.cluster import RedisCluster
from radix_cache.redis.connection import RedisAddress, RedisConnection, ConnectionLost
from radix_cache.redis.server import RedisServer
from radix_cache.redis.topology import is_cluster, seed_addresses

CALLS_WAITING_MAX = 10_000


class ScriptCaller:
    """Owns the connections to one Redis or one cluster, made when they are needed. `close` fails what still waits.

    `url`: as Address has it, or redis+cluster:// with the addresses of some of the servers. Raises ValueError.
    """

    def __init__(self, url: str) -> None:
        self._redis = RedisCluster(seed_addresses(url)) if is_cluster(url) else RedisServer(RedisAddress(url))
        self._send = self._redis.send
        self._closed = False

    @property
    def busy(self) -> bool:
        """Calls wait, or are under way."""
        return self._redis.calls > 0

    def call(
        self, script: Script, keys: Sequence[str], arguments: Sequence[CommandArgument]
    ) -> "asyncio.Future[ScriptAnswer]":
        """The script's answer, or RedisDown."""
        return self._make([script.run, script.name, len(keys), *keys, *arguments], keys, script)

    def ask(self, *command: CommandArgument) -> "asyncio.Future[Any]":
        """The reply to a plain command that may be repeated: bytes, int, None, a list of these; or RedisDown.

        Its second word is its key, if it has any.
        """
        return self._make(command, command[1:2], None)

    async def ping(self) -> None:
        """Raises RedisDown unless Redis answers."""
        await self.ask("PING")

    async def whereabouts(
        self, channels: Iterable[bytes], *, anew: bool = False
    ) -> list[tuple[RedisAddress, list[bytes]]]:
        """Who has which channels. `anew`: what was known before is not true any more. Raises RedisDown."""
        if isinstance(self._redis, RedisServer):
            return [(self._redis.address, list(channels))]
        return await self._redis.whereabouts(channels, anew=anew)

    @asynccontextmanager
    async def each(self) -> AsyncIterator[list[RedisConnection]]:
        """A line to every server that has keys of its own, for commands that look at all a server has.

        Raises RedisDown, also when one of them is lost meanwhile.
        """
        lines: list[RedisConnection] = []
        try:
            for address in await self._redis.primaries():
                line = await address.open()
                lines.append(line)
            yield lines
        except ConnectionLost as err:
            raise RedisDown(str(err)) from err
        finally:
            for line in lines:
                line.close()

    async def close(self) -> None:
        self._closed = True
        await self._redis.close()

    def _make(
        self, command: Sequence[CommandArgument], keys: Sequence[CommandArgument], script: Script | None
    ) -> "asyncio.Future[Any]":
        call = RedisCall(command, keys, script, asyncio.get_running_loop().create_future())
        if self._closed:
            call.fail("closed")
        elif not self._redis.has_room(call, CALLS_WAITING_MAX):
            call.fail("too many calls wait for Redis")
        else:
            self._send(call)
        return call.answer
