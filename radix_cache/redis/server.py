"""A client of one Redis server, which connects on demand and keeps the order of calls.

A lost connection is opened again at the next call. A call is made once more if its connection was lost, if the
server did not have its script, or if the server is no longer the primary.
"""

import asyncio
from collections import deque

import hiredis

from radix_cache.redis.call import UNKNOWN_SCRIPT_ERRORS, RedisCall, Script
from radix_cache.redis.connection import ConnectionLost, RedisAddress, RedisConnection, Reply

ALREADY_LOADED = "already exists"
"""The error of a server on which another client has already loaded the library."""


NOT_PRIMARY_ERRORS = ("READONLY", "MASTERDOWN")
"""Prefixes of the errors of a server that is no longer the primary."""


class RedisServer:
    """Calls to one Redis server over one connection."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self._connection: RedisConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[RedisCall] = deque()
        self._loaded: dict[str, int] = {}
        self._loads = 0
        self._refusals: dict[str, str] = {}
        self._under_way = 0
        self._bytes = 0
        self._closed = False

    @property
    def calls(self) -> int:
        """The number of calls that wait or are under way."""
        return len(self._waiting) + self._under_way

    def has_room(self, _: RedisCall, calls_max: int, bytes_max: int) -> bool:
        """Return whether fewer than `calls_max` calls, with fewer than `bytes_max` bytes, are outstanding."""
        return len(self._waiting) + self._under_way < calls_max and self._bytes < bytes_max

    async def primaries(self) -> list[RedisAddress]:
        """Return the address of the server itself, which has all keys."""
        return [self.address]

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    def send(self, call: RedisCall) -> None:
        """Send a call, or keep it until there is a connection."""
        self._bytes += len(call.packed)
        connection = self._connection
        if connection is None:
            self._waiting.append(call)
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
            return
        self._under_way += 1
        script = call.script
        if script is not None:
            if script.text not in self._loaded:
                self._load(connection, script)
            call.load = self._loaded[script.text]
        if call.asking:
            connection.ask(["ASKING"], _ignore_reply)
        connection.ask_packed(call.packed, lambda reply: self._answered(call, reply))

    async def close(self) -> None:
        """Close the connection and fail the calls that still wait."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
        self._fail_waiting("closed")

    def forget_script(self, call: RedisCall) -> None:
        """Record that the server does not have the call's script; the first of many such calls loads it again."""
        if call.script is not None and self._loaded.get(call.script.text) == call.load:
            del self._loaded[call.script.text]

    def explain(self, call: RedisCall, error: str) -> str:
        """Return the error of a call, with the reason why its script did not load, if there is one."""
        refusal = self._refusals.get(call.script.text) if call.script is not None else None
        return (
            f"{error} ({refusal})"
            if refusal is not None and error.startswith(UNKNOWN_SCRIPT_ERRORS)
            else error
        )

    def _load(self, connection: RedisConnection, script: Script) -> None:
        self._loads += 1
        self._loaded[script.text] = self._loads

        def on_load_reply(reply: Reply | ConnectionLost) -> None:
            self._refusals.pop(script.text, None)
            if isinstance(reply, hiredis.ReplyError) and ALREADY_LOADED not in str(reply):
                self._refusals[script.text] = str(reply)

        connection.ask([*script.load, script.text], on_load_reply)

    def _answered(self, call: RedisCall, reply: Reply | ConnectionLost) -> None:
        """End a call with its reply, or make it once more."""
        self._returned(call)
        if isinstance(reply, ConnectionLost):
            if call.repeated or self._closed:
                call.fail(reply)
            else:
                call.repeated = True
                self.send(call)
        elif isinstance(reply, hiredis.ReplyError):
            if (
                str(reply).startswith(NOT_PRIMARY_ERRORS)
                and not call.repeated
                and self._connection is not None
            ):
                # After a failover: the next connection asks the sentinels again.
                self._connection.close()
                call.repeated = True
                self.send(call)
            elif (
                call.script is not None and not call.repeated and str(reply).startswith(UNKNOWN_SCRIPT_ERRORS)
            ):
                call.repeated = True
                self.forget_script(call)
                self.send(call)
            else:
                call.fail(self.explain(call, str(reply)))
        else:
            call.succeed(reply)

    def _returned(self, call: RedisCall) -> None:
        """Record that a call is no longer under way."""
        self._under_way -= 1
        self._bytes -= len(call.packed)

    def _unreachable(self, call: RedisCall, reason: str) -> None:
        call.fail(reason)

    async def _connect(self) -> None:
        """Open a connection and send the calls that wait for it, or fail them."""
        try:
            connection = await self.address.connect(self._on_connection_lost)
        except ConnectionLost as err:
            self._connecting = None
            self._fail_waiting(str(err))
            return
        self._connection, self._connecting = connection, None
        self._loaded.clear()
        for call in self._take_waiting():
            self.send(call)

    def _on_connection_lost(self, connection: RedisConnection) -> None:
        if self._connection is connection:
            self._connection = None

    def _fail_waiting(self, reason: str) -> None:
        for call in self._take_waiting():
            self._unreachable(call, reason)

    def _take_waiting(self) -> deque[RedisCall]:
        """Remove all waiting calls and return them."""
        waiting, self._waiting = self._waiting, deque()
        self._bytes -= sum(len(call.packed) for call in waiting)
        return waiting


def _ignore_reply(_: object) -> None:
    """Ignore the reply to ASKING; if ASKING failed, the call after it fails too."""
