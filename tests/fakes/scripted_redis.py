"""A Redis server on a real socket that claims to be a cluster and gives the replies that a test has set.

It shows faults that a real server cannot be made to show at a given moment.
"""

import asyncio
from collections import deque

import hiredis


class ScriptedRedis:
    """A cluster of one server that owns all slots."""

    def __init__(self) -> None:
        self.replies: deque[str] = deque()  # the replies to the next commands; then `always`
        self.always: str | None = None  # the reply to all further commands; None: +OK
        self.seen: list[list[bytes]] = []  # the commands that were received
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The URL of the cluster."""
        return f"redis+cluster://127.0.0.1:{self.port}"

    @property
    def named(self) -> list[str]:
        """The last argument of every command that was received."""
        return [command[-1].decode() for command in self.seen]

    async def __aenter__(self) -> "ScriptedRedis":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(65536):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                writer.write(self._answer(command))
        writer.close()

    def _answer(self, command: list[bytes]) -> bytes:
        if command[0] == b"CLUSTER":
            host = f"*3\r\n$9\r\n127.0.0.1\r\n:{self.port}\r\n$2\r\nid\r\n"
            return f"*1\r\n*3\r\n:0\r\n:16383\r\n{host}".encode()
        self.seen.append(command)
        if command[0] == b"ASKING":
            return b"+OK\r\n"
        reply = self.replies.popleft() if self.replies else self.always or "+OK"
        return f"{reply}\r\n".encode()
