"""A worker's adapter that answers from a script, without a network."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from workers.adapter import WorkerAnswer, WorkerCall, WorkerReport
from workers.adapters.request_fields import FIELDS

USAGE = b'{"prompt_tokens":640,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}'
WHOLE = b'{"choices":[{"index":0}],"usage":%s}' % USAGE
FRAMES = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":%s}\n\n' % USAGE,
    b"data: [DONE]\n\n",
)


@dataclass
class StubAnswer(WorkerAnswer):
    """An answer whose first bytes have come."""

    status: int = 200
    content_type: str = "application/json"
    pieces: tuple[bytes, ...] = (WHOLE,)
    error: Exception | None = None
    """Raised after the pieces."""
    until: asyncio.Event | None = None
    """The pieces after the first one wait for this event."""
    complete: bool = False

    async def chunks(self) -> AsyncIterator[bytes]:
        for number, piece in enumerate(self.pieces):
            if number and self.until is not None:
                await self.until.wait()
            yield piece
        if self.error is not None:
            raise self.error


def streamed(
    *pieces: bytes, error: Exception | None = None, until: asyncio.Event | None = None
) -> StubAnswer:
    """Return an answer that is an event stream; without pieces a whole one of two tokens."""
    return StubAnswer(content_type="text/event-stream", pieces=pieces or FRAMES, error=error, until=until)


class StubAdapter:
    """A WorkerAdapter that follows a script: one outcome for each call, then plain answers.

    An outcome is a StubAnswer, an exception to raise before the first byte, or a future of one of these.
    """

    isolates = True
    request_fields = FIELDS
    reports_running_usage = False
    streams_whole = True

    def __init__(self) -> None:
        self.outcomes: deque[object] = deque()
        self.calls: list[WorkerCall] = []
        self.open = 0
        """Calls that were begun and are not ended."""

    def next(self, *outcomes: object) -> None:
        """Let the next calls end like this."""
        self.outcomes.extend(outcomes)

    def silent(self) -> "asyncio.Future[object]":
        """Let the next call wait for its first byte until the returned future has an outcome."""
        future = asyncio.get_running_loop().create_future()
        self.outcomes.append(future)
        return future

    @asynccontextmanager
    async def stream(self, call: WorkerCall) -> AsyncIterator[WorkerAnswer]:
        self.calls.append(call)
        self.open += 1
        try:
            call.on_sent()
            call.on_wait()
            outcome = self.outcomes.popleft() if self.outcomes else None
            if isinstance(outcome, asyncio.Future):
                outcome = await outcome
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome if outcome is not None else streamed() if call.stream else StubAnswer()
        finally:
            self.open -= 1

    async def probe(self) -> WorkerReport:
        return WorkerReport()

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass
