"""Clients of the soak: each sends its next request when the last one is answered, or was left by the client."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

from tests.benchmarks.wire import Answer, BadAnswer
from tests.soak.traffic import Ask

AGAIN_SECONDS = 0.1
TROUBLES_KEPT = 5


@dataclass(slots=True)
class Tally:
    """How the requests ended."""

    answered: int = 0
    left: int = 0
    """Requests whose client closed the connection."""
    refused: int = 0
    """Requests that were refused as expected."""
    failed: int = 0
    troubles: Counter[str] = field(default_factory=Counter)
    """The first few kinds of unexpected answers, counted."""

    @property
    def requests(self) -> int:
        """All requests that have ended."""
        return self.answered + self.left + self.refused + self.failed

    def fail(self, why: str) -> None:
        """Count a request that failed for this reason."""
        self.failed += 1
        if why in self.troubles or len(self.troubles) < TROUBLES_KEPT:
            self.troubles[why] += 1


class _Line(asyncio.Protocol):
    """One connection. `done` is called when a request ends, with the reason of a failure, else None."""

    def __init__(self, done: Callable[[str | None], None]) -> None:
        self._done = done
        self._ask: Ask | None = None
        self._answer = Answer()
        self._reads = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transports do not inherit from asyncio's

    @property
    def usable(self) -> bool:
        return not self.transport.is_closing()

    def send(self, ask: Ask) -> None:
        self._ask, self._answer, self._reads = ask, Answer(ask.status), 0
        self.transport.write(ask.data)
        if ask.leave_after == 0:
            # By then the request has reached the gateway, and the answer has perhaps not reached the client.
            asyncio.get_running_loop().call_later(0.001, self._leave, ask)

    def data_received(self, data: bytes) -> None:
        if self._ask is None:
            return
        try:
            complete = self._answer.feed(data)
        except BadAnswer as err:
            self.transport.abort()
            self._end(str(err)[:300])
            return
        self._reads += 1
        if complete:
            self._end(None)
        elif self._ask.leave_after is not None and self._reads >= self._ask.leave_after > 0:
            self._leave(self._ask)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection was lost: {exc}")

    def _leave(self, ask: Ask) -> None:
        if self._ask is ask:
            self.transport.abort()
            self._end(None)

    def _end(self, why: str | None) -> None:
        if self._ask is not None:
            self._ask = None
            self._done(why)


async def call(asks: Iterator[Ask], host: str, port: int, tally: Tally) -> None:
    """Send requests over one connection after the other until there are no more."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str | None] | None = None

    def done(why: str | None) -> None:
        if ended is not None and not ended.done():
            ended.set_result(why)

    line: _Line | None = None
    for ask in asks:
        while line is None or not line.usable:
            try:
                _, line = await loop.create_connection(lambda: _Line(done), host, port)
            except OSError as err:
                tally.fail(f"no connection: {err}")
                await asyncio.sleep(AGAIN_SECONDS)
        ended = loop.create_future()
        line.send(ask)
        why = await ended
        if why is not None:
            tally.fail(why)
        elif ask.leave_after is not None:
            tally.left += 1
        elif ask.status != 200:
            tally.refused += 1
        else:
            tally.answered += 1
    if line is not None:
        line.transport.abort()
