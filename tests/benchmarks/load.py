"""Many callers at once: bare protocols on uvloop that write bytes and search for the end of the answer."""

import asyncio
import time
from collections.abc import Iterator
from typing import cast

from tests.benchmarks.subjects import Subject
from tests.benchmarks.wire import Answer, BadAnswer

DELTA = b'"delta"'


class Client(asyncio.Protocol):
    """A caller that sends its next request when the last one is answered; `finished` is done at the end."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._answer = Answer()
        self.answered = 0
        self.reads = 0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports do not inherit from asyncio's
        self._send()

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        try:
            done = self._answer.feed(data)
        except BadAnswer as err:
            self._end(err)
            return
        if done:
            self.answered += 1
            self._answer = Answer()
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or BadAnswer("the connection was closed"))

    def close(self) -> None:
        self._end(None)
        self._transport.abort()

    def _send(self) -> None:
        data = next(self._requests, None)
        if data is None:
            self._end(None)
        else:
            self._transport.write(data)

    def _end(self, error: Exception | None) -> None:
        if self.finished.done():
            return
        if error is None:
            self.finished.set_result(None)
        else:
            self.finished.set_exception(error)


class WatchedStream(Client):
    """A caller that notes the time of each chunk."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        super().__init__(requests)
        self.arrived_at: list[float] = []

    def data_received(self, data: bytes) -> None:
        self.arrived_at.extend([time.perf_counter()] * data.count(DELTA))
        super().data_received(data)


async def connect(subject: Subject, client: Client) -> None:
    """Open the connection and send the first request."""
    await asyncio.get_running_loop().create_connection(lambda: client, subject.host, subject.port)
