"""One connection to one Redis, as lean as can be: bytes out, answers in order, no task and no lock a call.

A general client spends more on a script than Redis itself. Commands of one turn of the event loop leave in one
write; the server answers in the order in which it was asked, so whoever waits first is answered first.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import hiredis

SILENCE_SECONDS_MAX = 2.0
CONNECT_SECONDS_MAX = 2.0

Command = Sequence[str | bytes | int | float]
Reply = Any
"""bytes, int, None, a list of these, or a hiredis.ReplyError."""


_NOT_YET = object()


OPTIONS = frozenset({"db", "ssl_cert_reqs", "ssl_ca_certs"})
"""What the query of an address may say."""


class ConnectionLost(Exception):
    """The connection ended, or nothing was heard for too long, before the answer came."""


class RedisConnection(asyncio.Protocol):
    """An open connection. `lost`: called once when it ends. `told`: gets messages, and errors to what was told."""

    def __init__(
        self, lost: Callable[["RedisConnection"], None] = lambda _: None, told: Callable[[Reply], None] | None = None
    ) -> None:
        self.open = True
        self._lost = lost
        self._told = told
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)
        self._waiting: deque[tuple[Callable[[Reply | ConnectionLost], None], float]] = deque()
        self._unsent: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def ask(self, command: Command, answered: Callable[[Reply | ConnectionLost], None]) -> None:
        """Sends a command; `answered` is called with its reply, or with LineLost, never from within this call."""
        if not self.open:
            self._loop.call_soon(answered, ConnectionLost("closed"))
            return
        self.tell(command)
        self._waiting.append((answered, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(SILENCE_SECONDS_MAX, self._look)

    def tell(self, command: Command) -> None:
        """Sends a command whose replies are not answers: SSUBSCRIBE."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]

    async def reply(self, command: Command) -> Reply:
        """The reply to one command. Raises LineLost."""
        future: asyncio.Future[Reply] = self._loop.create_future()

        def answered(reply: Reply | ConnectionLost) -> None:
            if not future.done():
                if isinstance(reply, ConnectionLost):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)

        self.ask(command, answered)
        return await future

    def close(self) -> None:
        """Ends it; whoever still waits gets LineLost."""
        self._end(ConnectionLost("closed"))

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no asyncio class.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOT_YET:
                if self._told is not None and isinstance(reply, list | hiredis.ReplyError):
                    self._told(reply)
                elif self._waiting:
                    self._waiting.popleft()[0](reply)
        except hiredis.ProtocolError as err:
            self._end(ConnectionLost(f"this is no Redis: {err}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionLost(str(error) if error is not None else "the connection was closed"))

    # Further down.

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and self.open:
            self._transport.write(b"".join(unsent))

    def _look(self) -> None:
        """Has whoever waits longest waited too long?"""
        self._watch = None
        if not self._waiting:
            return
        left = self._waiting[0][1] + SILENCE_SECONDS_MAX - self._loop.time()
        if left <= 0:
            self._end(ConnectionLost(f"no answer in {SILENCE_SECONDS_MAX:g} seconds"))
        else:
            self._watch = self._loop.call_later(left, self._look)

    def _end(self, why: ConnectionLost) -> None:
        if not self.open:
            return
        self.open = False
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        self._lost(self)
        for answered, _ in waiting:
            answered(why)


class RedisAddress:
    """Where a Redis is and how to get in: redis://[user:password@]host[:port][/db], rediss://, unix://path[?db=n].

    Raises ValueError where the URL has an option that is not one of OPTIONS, or a port or database that is no
    number.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.path = unquote(parts.path) if parts.scheme == "unix" else ""
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 6379
        self.tls = parts.scheme == "rediss"
        self.user = unquote(parts.username or "")
        self.password = unquote(parts.password or "")
        options = dict(part.partition("=")[::2] for part in parts.query.split("&") if part)
        if options.keys() - OPTIONS:
            raise ValueError("an option is not known")
        self.database = int(options.get("db") or (parts.path.strip("/") if not self.path else "") or 0)
        self.verify = options.get("ssl_cert_reqs") != "none"
        self.ca_file = unquote(options.get("ssl_ca_certs", "")) or None

    def at(self, host: str, port: int) -> "RedisAddress":
        """Another server with the same credentials."""
        other = copy(self)
        other.host, other.port = host, port
        return other

    async def open(
        self, lost: Callable[[RedisConnection], None] = lambda _: None, told: Callable[[Reply], None] | None = None
    ) -> RedisConnection:
        """A connection that is let in. Raises LineLost."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                if self.path:
                    _, line = await loop.create_unix_connection(lambda: RedisConnection(lost), self.path)
                else:
                    context = self._context() if self.tls else None
                    _, line = await loop.create_connection(
                        lambda: RedisConnection(lost), self.host, self.port, ssl=context
                    )
                await self._enter(line)
        except (OSError, TimeoutError) as err:
            raise ConnectionLost(str(err) or "no connection in time") from err
        # Only now: what was asked so far were questions.
        line._told = told
        return line

    async def _enter(self, line: RedisConnection) -> None:
        commands: list[Command] = []
        if self.password:
            commands.append(["AUTH", *([self.user] if self.user else []), self.password])
        if self.database:
            commands.append(["SELECT", self.database])
        for command in commands:
            reply = await line.reply(command)
            if isinstance(reply, hiredis.ReplyError):
                line.close()
                raise ConnectionLost(f"{command[0]!s}: {reply}")

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
