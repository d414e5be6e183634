"""A link between two sockets that can be slow, cut, or down. Bytes pass as they come, and in their order."""

import asyncio
from collections import deque
from pathlib import Path
from typing import cast


class _End(asyncio.Protocol):
    """One end of a connection; what comes in leaves at the other end, when it is due."""

    def __init__(self, link: "Link", other: "_End | None" = None) -> None:
        self.link = link
        self.other = other
        self.transport: asyncio.Transport | None = None
        self._late: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own type is none of asyncio's
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
        """Later, as the link says; never before what came before it."""
        self._late.append((asyncio.get_running_loop().time() + self.link.delay_seconds, data))
        self._send()

    def _send(self) -> None:
        if self.transport is None or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        while self._late and self._late[0][0] <= loop.time():
            _, data = self._late.popleft()
            if not self.transport.is_closing():
                self.transport.write(data)
        if self._late:
            self._timer = loop.call_at(self._late[0][0], self._due)

    def _due(self) -> None:
        self._timer = None
        self._send()


class Link:
    """From the unix socket `near`, on which it listens, to the unix socket `far`. `delay_seconds`: each way."""

    def __init__(self, near: Path, far: Path) -> None:
        self.delay_seconds = 0.0
        self.up = True
        self.ends: set[_End] = set()
        self._near = near
        self._far = far
        self._server: asyncio.Server | None = None
        self._joining: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _End(self), str(self._near))

    def cut(self) -> None:
        """All connections; new ones may come if it is `up`."""
        for end in list(self.ends):
            if end.transport is not None:
                end.transport.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def join(self, near: _End) -> None:
        near.other = _End(self, near)
        task = asyncio.create_task(self._join(near, near.other))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, near: _End, far: _End) -> None:
        assert near.transport is not None
        try:
            if not self.up:
                raise ConnectionRefusedError
            transport, _ = await asyncio.get_running_loop().create_unix_connection(
                lambda: far, str(self._far)
            )
        except OSError:
            near.transport.abort()
        else:
            if near.transport.is_closing():
                transport.abort()
