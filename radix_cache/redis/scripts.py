"""Calls Lua scripts on Redis: many calls in one round trip, in the order in which they were made.

Callers await futures. A caller that stops waiting (timeout, client gone) does not cancel the command, which may
have been sent. Scripts are therefore idempotent, and their changes can be undone by id. After a lost connection a
call is made once more. In a cluster the order holds per slot.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import hiredis

from radix_cache.redis.batch import CallBatcher, hash_tag
from radix_cache.redis.call import CommandArgument, RedisCall, RedisDown, Script, ScriptAnswer
from radix_cache.redis.cluster import RedisCluster
from radix_cache.redis.connection import ConnectionLost, RedisAddress, RedisConnection
from radix_cache.redis.library import LibraryFunction
from radix_cache.redis.sentinel import SentinelAddress, is_sentinel
from radix_cache.redis.server import RedisServer
from radix_cache.redis.topology import is_cluster, seed_addresses

CALLS_WAITING_MAX = 10_000

BYTES_WAITING_MAX = 32 * 2**20
"""The bound of bytes in calls that wait for one server, or for stuck slots.

The path of a prompt of 131,072 tokens takes 64 KiB; thousands of them would fill a gateway's memory in the two
seconds until a silent server is given up. A healthy server is never so far behind.
"""

CLOSE_SECONDS_MAX = 1.0
ANSWERED_SECONDS = 0.005
"""The interval at which a closing client checks whether all calls are answered."""


class ScriptCaller:
    """A client of one Redis server or one cluster, which connects on demand.

    The URL is one of RedisAddress, redis+sentinel:// (see sentinel.py), or redis+cluster:// with some of its
    servers. The constructor raises ValueError.
    """

    def __init__(self, url: str) -> None:
        self._redis: RedisServer | RedisCluster
        if is_cluster(url):
            self._redis = RedisCluster(seed_addresses(url))
        else:
            self._redis = RedisServer(SentinelAddress(url) if is_sentinel(url) else RedisAddress(url))
        self._send = self._redis.send
        self._batcher = CallBatcher(self._send_or_fail, hash_tag if is_cluster(url) else None)
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether calls wait or are under way."""
        return self._redis.calls > 0 or len(self._batcher) > 0

    def bind(self, functions: Mapping[str, LibraryFunction]) -> None:
        """Bind the libraries of these functions, so that they are loaded together with the first call.

        A library that is not bound yet is bound by the first call of one of its functions.
        """
        for function in functions.values():
            self._batcher.libraries.bind(function.library)

    def call(
        self,
        script: Script | LibraryFunction,
        keys: Sequence[str],
        arguments: Sequence[CommandArgument],
        *,
        urgent: bool = True,
    ) -> "asyncio.Future[ScriptAnswer]":
        """Call a script or function; the future returns its answer, or raises RedisDown.

        Calls of library functions are sent in batches, see batch.py; a call that is not urgent may be sent later.
        """
        if isinstance(script, LibraryFunction):
            answer = self._batcher.add(script, keys, arguments, urgent=urgent)
            if self._closed:
                self.flush()  # They fail at once.
            return answer
        return self._start_call((script.run, script.name, len(keys), *keys, *arguments), keys, script)

    def flush(self) -> None:
        """Send all pending calls now."""
        if len(self._batcher):
            self._batcher.flush()

    def ask(self, *command: CommandArgument) -> "asyncio.Future[Any]":
        """Send a plain command that may be repeated; the second word is its key, if it has one.

        The future has the reply (bytes, int, None, or a list of these), or raises RedisDown.
        """
        return self._start_call(command, command[1:2], None)

    async def ping(self) -> None:
        """Check that Redis answers. Raises RedisDown."""
        await self.ask("PING")

    async def addresses_of(
        self, channels: Iterable[bytes], *, refresh: bool = False
    ) -> list[tuple[RedisAddress, list[bytes]]]:
        """Return the servers that have these sharded channels, each with its channels. Raises RedisDown.

        With `refresh` a cluster client reads the slot map again first.
        """
        if isinstance(self._redis, RedisServer):
            return [(self._redis.address, list(channels))]
        return await self._redis.addresses_of(channels, refresh=refresh)

    @asynccontextmanager
    async def connect_all(self) -> AsyncIterator[list[RedisConnection]]:
        """Open a connection to every server with keys of its own, for commands that scan all keys of a server.

        Raises RedisDown, also when a connection is lost meanwhile.
        """
        connections: list[RedisConnection] = []
        try:
            for address in await self._redis.primaries():
                connection = await address.connect()
                connections.append(connection)
            yield connections
        except ConnectionLost as err:
            raise RedisDown(str(err)) from err
        finally:
            for connection in connections:
                connection.close()

    async def close(self) -> None:
        """Wait for the answers to earlier calls, for a bounded time, and close all connections.

        Calls without an answer by then fail with RedisDown, and so do new ones.
        """
        self.flush()
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                # Answers come to many futures, which are not kept here.
                while self._redis.calls:  # noqa: ASYNC110
                    await asyncio.sleep(ANSWERED_SECONDS)
        await self._redis.close()

    def _start_call(
        self, command: tuple[CommandArgument, ...], keys: Sequence[CommandArgument], script: Script | None
    ) -> "asyncio.Future[Any]":
        self.flush()  # Calls keep the order in which they are made.
        packed = hiredis.pack_command(command)  # type: ignore[arg-type]
        call = RedisCall(packed, keys, script, asyncio.get_running_loop().create_future())
        self._send_or_fail(call)
        return call.answer

    def _send_or_fail(self, call: RedisCall) -> None:
        if self._closed:
            call.fail("closed")
        elif not self._redis.has_room(call, CALLS_WAITING_MAX, BYTES_WAITING_MAX):
            call.fail("too many calls wait for Redis, in number or in bytes")
        else:
            self._send(call)
