"""The address of a Redis primary that sentinels watch: each new connection gets the current primary from them.

    redis+sentinel://[user:password@]host:port[,host:port...]/service[/database][?options]

redis-py finds the primary (its Sentinel asks one sentinel after the other); the connection is our own. After a
failover the old primary closes its connections or answers READONLY, and the next connection goes to the new one. A
primary that was wrongly declared down becomes a replica of its successor up to ten seconds later; writes to it
until then are lost. Sentinels are therefore queried every CHECK_SECONDS, and connections to any other server are
closed.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from radix_cache.redis.connection import (
    CONNECT_SECONDS_MAX,
    ConnectionLost,
    RedisAddress,
    RedisConnection,
    Reply,
)

SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_PORT = 26379
ASK_SECONDS_MAX = 0.5
"""How long one sentinel may take to answer."""
CHECK_SECONDS = 1.0


def is_sentinel(url: str) -> bool:
    """Return whether the URL names sentinels."""
    return url.partition("://")[0] in SCHEMES


class SentinelAddress(RedisAddress):
    """The address of a primary by its service name. The constructor raises ValueError for a malformed URL."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        where, _, tail = rest.partition("/")
        user, at, hosts = where.rpartition("@")
        path, question, options = tail.partition("?")
        self.service, _, database = path.partition("/")
        self.sentinels = [_endpoint(host) for host in hosts.split(",")]
        if not self.service or not all(host for host, _ in self.sentinels):
            raise ValueError("write redis+sentinel://host:26379,host:26379/service")
        self._open: dict[RedisConnection, tuple[str, int]] = {}
        self._checks: asyncio.Task[None] | None = None
        super().__init__(f"{SCHEMES[scheme]}://{user}{at}{self.service}/{database}{question}{options}")

    async def connect(
        self,
        on_lost: Callable[[RedisConnection], None] = lambda _: None,
        on_message: Callable[[Reply], None] | None = None,
    ) -> RedisConnection:
        """Open a connection to the current primary. Raises ConnectionLost."""
        host, port = await self._primary()
        primary = RedisAddress.with_endpoint(self, host, port)
        connection = await RedisAddress.connect(primary, on_lost, on_message)
        self._open[connection] = host, port
        if self._checks is None:
            self._checks = asyncio.create_task(self._check())
        return connection

    async def _check(self) -> None:
        """Close connections to servers that are no longer the primary, for as long as connections are open."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._open = {connection: at for connection, at in self._open.items() if connection.is_open}
            if not self._open:
                self._checks = None
                return
            try:
                primary = await self._primary()
            except ConnectionLost:
                continue  # Without an answer the connections stay open.
            for connection, at in list(self._open.items()):
                if at != primary:
                    connection.close()

    async def _primary(self) -> tuple[str, int]:
        """Return host and port of the primary from the first sentinel that answers; later it is asked first.

        Raises ConnectionLost.
        """
        # redis-py is needed only where sentinels watch the Redis.
        from redis.asyncio.retry import Retry
        from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        options: dict[str, Any] = {
            "socket_timeout": ASK_SECONDS_MAX,
            "socket_connect_timeout": min(ASK_SECONDS_MAX, CONNECT_SECONDS_MAX),
            # By default redis-py retries an unreachable sentinel for seconds before it asks the next one.
            "retry": Retry(NoBackoff(), 0),
        }
        endpoints = list(self.sentinels)
        sentinel = Sentinel(endpoints, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        clients = list(sentinel.sentinels)
        try:
            host, port = await sentinel.discover_master(self.service)
        except (MasterNotFoundError, RedisError, OSError) as err:
            raise ConnectionLost(f"no sentinel names a primary of {self.service}: {err}") from err
        finally:
            for client in clients:
                await client.aclose()
        # redis-py moves the sentinel that answered to the front.
        answering = endpoints[clients.index(sentinel.sentinels[0])]
        self.sentinels.remove(answering)
        self.sentinels.insert(0, answering)
        return str(host), int(port)


def _endpoint(text: str) -> tuple[str, int]:
    """Return host and port of a sentinel."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), SENTINEL_PORT
    return host.strip("[]"), int(port)
