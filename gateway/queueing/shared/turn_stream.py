"""Hears of turns: reads the stream of the shared queue, on a connection of its own, blocked until there is news."""

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
"""Entries that the stream keeps, about; lua/queue.lua has the same."""


class TurnReader:
    """`turn`: gets the id of a ticket whose turn has come, of any gateway. `gateways`: some came or went. `others`:
    by word, what gets the value of what gateways say to each other.

    `missed`: called whenever it begins to listen, and after it was far behind. What was told before was not heard,
    or the stream may have let go of it.
    """

    def __init__(
        self,
        scripts: ScriptCaller,
        stream: str,
        *,
        turn: Callable[[str], None],
        gateways: Callable[[], None],
        missed: Callable[[], None],
        others: Mapping[bytes, Callable[[str], None]],
    ) -> None:
        self._scripts = scripts
        self._stream = stream
        self._turn = turn
        self._gateways = gateways
        self._missed = missed
        self._others = others

    async def run(self) -> None:
        """For as long as it is not cancelled."""
        while True:
            try:
                ((address, _),) = await self._scripts.addresses_of([self._stream.encode()], anew=True)
                line = await address.connect()
                try:
                    await self._follow(line)
                finally:
                    line.close()
            except (RedisDown, ConnectionLost, ValueError):
                await asyncio.sleep(AGAIN_SECONDS)

    async def _follow(self, line: RedisConnection) -> None:
        """Follow the stream on one connection. Raises ConnectionLost."""
        newest = await self._asked(line, "XREVRANGE", self._stream, "+", "-", "COUNT", "1")
        last = newest[0][0].decode() if newest else "0-0"
        self._missed()
        behind = False
        while True:
            found = await self._asked(
                line, "XREAD", "BLOCK", str(BLOCK_MS), "COUNT", str(COUNT), "STREAMS", self._stream, last
            )
            entries = found[0][1] if found else ()
            for identity, (kind, value) in entries:
                last = identity.decode()
                if kind == b"turn":
                    self._turn(value.decode())
                elif (heard := self._others.get(kind)) is not None:
                    heard(value.decode())
                else:
                    self._gateways()
            if behind and len(entries) < COUNT:
                self._missed()
            behind = len(entries) == COUNT

    async def _asked(self, line: RedisConnection, *command: str) -> Any:
        reply = await line.execute(command)
        if isinstance(reply, hiredis.ReplyError):
            raise ConnectionLost(str(reply))
        return reply or []
