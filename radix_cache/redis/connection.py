"""One connection to one Redis server, with little overhead: no task and no lock for each command.

A general client spends more time on a script than Redis itself. Commands of one iteration of the event loop are
sent in one write. The server replies in the order of the commands, so each reply belongs to the oldest open
request.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
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
"""The options that a Redis URL may have in its query."""


class ConnectionLost(Exception):
    """The connection ended, or the server was silent for too long, before the reply came."""


class RedisConnection(asyncio.Protocol):
    """An open connection to a Redis server.

    Args:
        on_lost: Called once, when the connection ends.
        on_message: Gets messages of subscriptions, and errors in reply to commands of `send`.
    """

    def __init__(
        self,
        on_lost: Callable[["RedisConnection"], None] = lambda _: None,
        on_message: Callable[[Reply], None] | None = None,
    ) -> None:
        self.is_open = True
        self._on_lost = on_lost
        self._on_message = on_message
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)
        self._waiting: deque[tuple[Callable[[Reply | ConnectionLost], None], float]] = deque()
        self._unsent: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._silence_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def ask(self, command: Command, on_reply: Callable[[Reply | ConnectionLost], None]) -> None:
        """Send a command; `on_reply` is called later with its reply, or with ConnectionLost."""
        self.ask_packed(hiredis.pack_command(tuple(command)), on_reply)  # type: ignore[arg-type]

    def ask_packed(self, packed: bytes, on_reply: Callable[[Reply | ConnectionLost], None]) -> None:
        """Send a command that is packed already, like `ask`."""
        if not self.is_open:
            self._loop.call_soon(on_reply, ConnectionLost("closed"))
            return
        self._write(packed)
        self._waiting.append((on_reply, self._loop.time()))
        if self._silence_timer is None:
            self._silence_timer = self._loop.call_later(SILENCE_SECONDS_MAX, self._check_silence)

    def send(self, command: Command) -> None:
        """Send a command that is answered by messages, such as SSUBSCRIBE."""
        self._write(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]

    async def execute(self, command: Command) -> Reply:
        """Send a command and return its reply. Raises ConnectionLost."""
        future: asyncio.Future[Reply] = self._loop.create_future()

        self.ask(command, partial(_set_reply, future))
        try:
            return await future
        finally:
            del future  # Its exception refers to this frame: that would be a reference cycle.

    def close(self) -> None:
        """Close the connection; open requests get ConnectionLost."""
        self._end_connection(ConnectionLost("closed"))

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the new connection."""
        # uvloop's transports are not instances of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and pass on each reply."""
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOT_YET:
                if self._on_message is not None and isinstance(reply, list | hiredis.ReplyError):
                    self._on_message(reply)
                elif self._waiting:
                    self._waiting.popleft()[0](reply)
        except hiredis.ProtocolError as err:
            self._end_connection(ConnectionLost(f"the server does not speak the Redis protocol: {err}"))

    def connection_lost(self, error: Exception | None) -> None:
        """End the connection after its transport was closed."""
        self._end_connection(ConnectionLost(str(error) if error is not None else "the connection was closed"))

    def _write(self, packed: bytes) -> None:
        """Buffer bytes, to be written at the end of the event loop's iteration."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(packed)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and self.is_open:
            self._transport.write(b"".join(unsent))

    def _check_silence(self) -> None:
        """End the connection if its oldest request has waited too long."""
        self._silence_timer = None
        if not self._waiting:
            return
        left = self._waiting[0][1] + SILENCE_SECONDS_MAX - self._loop.time()
        if left <= 0:
            self._end_connection(ConnectionLost(f"no answer in {SILENCE_SECONDS_MAX:g} seconds"))
        else:
            self._silence_timer = self._loop.call_later(left, self._check_silence)

    def _end_connection(self, why: ConnectionLost) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        self._on_lost(self)
        for on_reply, _ in waiting:
            on_reply(why)


class RedisAddress:
    """The address and credentials of a Redis server.

    URLs are redis://[user:password@]host[:port][/db], rediss:// or unix://path[?db=n]. The constructor raises
    ValueError for an option that is not in OPTIONS, and for a port or database that is not a number.
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
            raise ValueError(f"the URL has an unknown option; known are {', '.join(sorted(OPTIONS))}")
        self.database = int(options.get("db") or (parts.path.strip("/") if not self.path else "") or 0)
        self.verify = options.get("ssl_cert_reqs") != "none"
        self.ca_file = unquote(options.get("ssl_ca_certs", "")) or None

    def with_endpoint(self, host: str, port: int) -> "RedisAddress":
        """Return the address of another server with the same credentials."""
        other = copy(self)
        other.host, other.port = host, port
        return other

    async def connect(
        self,
        on_lost: Callable[[RedisConnection], None] = lambda _: None,
        on_message: Callable[[Reply], None] | None = None,
    ) -> RedisConnection:
        """Open an authenticated connection. Raises ConnectionLost."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                if self.path:
                    _, connection = await loop.create_unix_connection(
                        lambda: RedisConnection(on_lost), self.path
                    )
                else:
                    context = self._ssl_context() if self.tls else None
                    _, connection = await loop.create_connection(
                        lambda: RedisConnection(on_lost), self.host, self.port, ssl=context
                    )
                await self._authenticate(connection)
        except (OSError, TimeoutError) as err:
            raise ConnectionLost(str(err) or "no connection in time") from err
        # Set only now, so that the authentication commands get their replies as usual.
        connection._on_message = on_message
        return connection

    async def _authenticate(self, connection: RedisConnection) -> None:
        commands: list[Command] = []
        if self.password:
            commands.append(["AUTH", *([self.user] if self.user else []), self.password])
        if self.database:
            commands.append(["SELECT", self.database])
        for command in commands:
            reply = await connection.execute(command)
            if isinstance(reply, hiredis.ReplyError):
                connection.close()
                raise ConnectionLost(f"{command[0]!s}: {reply}")

    def _ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _set_reply(future: "asyncio.Future[Reply]", reply: Reply | ConnectionLost) -> None:
    if future.done():
        return
    if isinstance(reply, ConnectionLost):
        future.set_exception(reply)
    else:
        future.set_result(reply)
