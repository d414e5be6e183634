"""A link between two sockets that a test can slow down, stop, cut, or take down. Bytes keep their order."""

import asyncio
from collections import deque
from pathlib import Path
from typing import cast

Endpoint = Path | int
"""A unix socket, or a TCP port of this machine."""


class _End(asyncio.Protocol):
    """One end of a connection: bytes that arrive here leave at the other end when their delay is over."""

    def __init__(self, link: "Link", other: "_End | None" = None) -> None:
        self.link = link
        self.other = other
        self.transport: asyncio.Transport | None = None
        self._late: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports do not inherit from asyncio's
        self.link.ends.add(self)
        if self.other is None:
            self.link.join(self)
        self._send()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.ends.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort()

    def write(self, data: bytes) -> None:
        """Send the bytes after the delay of the link, never before earlier ones."""
        self._late.append((asyncio.get_running_loop().time() + self.link.delay_seconds, data))
        self._send()

    def _send(self) -> None:
        if self.transport is None or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        while self._late and not self.link.stopped and self._late[0][0] <= loop.time():
            _, data = self._late.popleft()
            if not self.transport.is_closing():
                self.transport.write(data)
        if self._late and not self.link.stopped:
            self._timer = loop.call_at(self._late[0][0], self._due)

    def resume(self) -> None:
        """Send what was held while the link was stopped."""
        self._send()

    def _due(self) -> None:
        self._timer = None
        self._send()


class Link:
    """Passes connections on from the socket `near`, on which it listens, to the socket `far`."""

    def __init__(self, near: Endpoint, far: Endpoint) -> None:
        self.delay_seconds = 0.0  # in each direction
        self.up = True  # False: new connections are closed at once
        self.stopped = False  # connections stay open and new ones are accepted, but no bytes pass
        self.ends: set[_End] = set()
        self._near = near
        self._far = far
        self._server: asyncio.Server | None = None
        self._joining: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen on the near socket."""
        loop = asyncio.get_running_loop()
        if isinstance(self._near, Path):
            self._server = await loop.create_unix_server(lambda: _End(self), str(self._near))
        else:
            self._server = await loop.create_server(lambda: _End(self), "127.0.0.1", self._near)

    def stop(self) -> None:
        """Let no bytes pass, as a network that drops all packets."""
        self.stopped = True

    def resume(self) -> None:
        """Let bytes pass again, those that were held first."""
        self.stopped = False
        for end in list(self.ends):
            end.resume()

    def cut(self) -> None:
        """Cut all connections; new ones may come while the link is up."""
        for end in list(self.ends):
            if end.transport is not None:
                end.transport.abort()

    async def close(self) -> None:
        """Stop listening, and cut all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()

    def join(self, near: _End) -> None:
        """Connect an end that has just been accepted to the far socket."""
        near.other = _End(self, near)
        task = asyncio.create_task(self._join(near, near.other))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, near: _End, far: _End) -> None:
        assert near.transport is not None
        try:
            if not self.up:
                raise ConnectionRefusedError
            loop = asyncio.get_running_loop()
            if isinstance(self._far, Path):
                transport, _ = await loop.create_unix_connection(lambda: far, str(self._far))
            else:
                transport, _ = await loop.create_connection(lambda: far, "127.0.0.1", self._far)
        except OSError:
            near.transport.abort()
        else:
            if near.transport.is_closing():
                transport.abort()
