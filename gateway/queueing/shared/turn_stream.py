"""Reads the stream of the shared queue on a connection of its own, blocked until there are messages."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import hiredis

from radix_cache.redis.call import RedisDown
from radix_cache.redis.connection import ConnectionLost, RedisConnection
from radix_cache.redis.scripts import ScriptCaller

BLOCK_MS = 1000
COUNT = 256
AGAIN_SECONDS = 0.1
STREAM_MAX = 4096
"""About how many entries the stream keeps; lua/call.lua has the same number."""


class TurnReader:
    """Passes the messages of the stream on."""

    def __init__(
        self,
        scripts: ScriptCaller,
        stream: str,
        *,
        on_turn: Callable[[str], None],
        on_gateways: Callable[[], None],
        on_missed: Callable[[], None],
        handlers: Mapping[bytes, Callable[[str], None]],
        wanted: asyncio.Event | None = None,
    ) -> None:
        """Create a reader of `stream`.

        Args:
            scripts: Finds the server that has the stream.
            stream: The stream's key.
            on_turn: Gets the id of a ticket that has its turn, of any gateway.
            on_gateways: Called when gateways came or went.
            on_missed: Called whenever the reader begins to read, and after it was far behind: messages were not
                read, or the stream may have dropped them.
            handlers: By kind of message, what gets the value of messages between gateways.
            wanted: Set while the stream is to be read; None: always.
        """
        self._scripts = scripts
        self._stream = stream
        self._on_turn = on_turn
        self._on_gateways = on_gateways
        self._on_missed = on_missed
        self._handlers = handlers
        self._wanted = wanted

    async def run(self) -> None:
        """Read messages until this is cancelled; connect again when the connection is lost."""
        while True:
            if self._wanted is not None:
                await self._wanted.wait()
            try:
                ((address, _),) = await self._scripts.addresses_of([self._stream.encode()], refresh=True)
                line = await address.connect()
                try:
                    await self._follow(line)
                finally:
                    line.close()
            except (RedisDown, ConnectionLost, ValueError):
                await asyncio.sleep(AGAIN_SECONDS)

    async def _follow(self, line: RedisConnection) -> None:
        """Follow the stream on one connection. Raises ConnectionLost."""
        newest = await self._ask(line, "XREVRANGE", self._stream, "+", "-", "COUNT", "1")
        last = newest[0][0].decode() if newest else "0-0"
        self._on_missed()
        behind = False
        while self._wanted is None or self._wanted.is_set():
            found = await self._ask(
                line, "XREAD", "BLOCK", str(BLOCK_MS), "COUNT", str(COUNT), "STREAMS", self._stream, last
            )
            entries = found[0][1] if found else ()
            for identity, (kind, value) in entries:
                last = identity.decode()
                if kind == b"turn":
                    self._on_turn(value.decode())
                elif (handler := self._handlers.get(kind)) is not None:
                    handler(value.decode())
                else:
                    self._on_gateways()
            if behind and len(entries) < COUNT:
                self._on_missed()
            behind = len(entries) == COUNT

    async def _ask(self, line: RedisConnection, *command: str) -> Any:
        reply = await line.execute(command)
        if isinstance(reply, hiredis.ReplyError):
            raise ConnectionLost(str(reply))
        return reply or []
