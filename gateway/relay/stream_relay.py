"""One stream on its way from a worker to the client.

    worker's connection -- piece --> take --> client's connection      most pieces
                             |
                             +------------> the request's task         the first one, the last ones, an error,
                                                                       a client that has to be waited for

Most pieces of a stream need no decision: waking the task for them costs more than all that is done about them.
"""

from collections.abc import Callable, Mapping

from gateway.domain.errors import GatewayError, RefusedByWorker, StreamInterrupted, WorkerError
from gateway.domain.exchange import Exchange
from gateway.domain.request import InferenceRequest
from gateway.relay.answer_failure import raise_failure
from gateway.relay.frame_filter import FrameFilter
from gateway.telemetry.progress import Progress
from workers.adapter import StreamBroken, WorkerAnswer, WorkerFailed

EVENT_STREAM = "text/event-stream"


class StreamRelay:
    """Sends the frames of one stream to the client, as they pass the filter."""

    def __init__(
        self,
        answer: WorkerAnswer,
        exchange: Exchange,
        frames: FrameFilter,
        progress: Progress,
        on_begun: Callable[[], None],
    ) -> None:
        """`on_begun`: called when the client has the first bytes, unless these are the last ones."""
        self._answer = answer
        self._exchange = exchange
        self._frames = frames
        self._progress = progress
        self._on_begun = on_begun
        self._begun = False
        """Whether the answer to the client has begun: until then another worker may still answer."""
        self._last = b""
        """Frames that leave together with the end of the stream."""
        self._failure: GatewayError | None = None
        """Why the client's API cannot express a piece that was not taken."""

    async def run(self, request: InferenceRequest, headers: Mapping[str, str]) -> None:
        """Send the stream to its end, with these headers, and note its usage. Raises as `relay` does."""
        frames, progress = self._frames, self._progress
        try:
            async for piece in self._answer.chunks():
                if self._failure is not None:
                    raise self._failure
                if ready := frames.feed(piece):
                    await self._send(ready, headers)
                if frames.error is not None:
                    break

            # The stream has ended: as a failure of the worker, or with `[DONE]` or all finish reasons.
            rest = frames.end()
            if frames.error is not None or (request.generates and not frames.ended):
                raise_failure(frames.error, self._begun, request, progress)
            if not self._begun:
                await self._exchange.begin(self._answer.status, EVENT_STREAM, headers)
            await self._exchange.end(self._last + rest)
        except StreamBroken as err:
            if self._begun:
                # The client has the beginning of this answer, which another worker cannot continue.
                raise StreamInterrupted from err
            raise WorkerFailed(str(err)) from err
        except WorkerError as err:
            # The client's API cannot express a frame. The answer has begun: `begin` comes before any frame.
            raise StreamInterrupted from err
        except RefusedByWorker:
            progress.worker_refused = True
            raise
        finally:
            progress.usage, progress.tally = frames.usage, frames.tally

    async def _send(self, ready: bytes, headers: Mapping[str, str]) -> None:
        """Send frames from the request's task; the first ones begin the answer."""
        begins, self._begun = not self._begun, True
        if begins:
            await self._exchange.begin(self._answer.status, EVENT_STREAM, headers)
        if self._frames.done and self._answer.complete:
            self._last += ready
        elif begins and self._exchange.writes_at_once:
            self._exchange.write_at_once(ready)
            self._on_begun()
            self._answer.offer(self.take)
        else:
            if begins:
                self._on_begun()  # The client may have to be waited for.
            await self._exchange.write(ready)
        if self._progress.trace is not None:
            self._progress.note_finish_reasons(ready)
        self._progress.output_sent()

    def take(self, piece: bytes) -> bool:
        """Send a piece where it arrives; False: the request's task has to do it.

        The connection to the worker calls it: `offer` of the answer hands it there.
        """
        ready = self._frames.feed_plain(piece) if self._exchange.writes_at_once else None
        if ready is None:
            return False
        if ready:
            try:
                self._exchange.write_at_once(ready)
            except GatewayError as err:
                self._failure = err
                return False
            if self._progress.trace is not None:
                self._progress.note_finish_reasons(ready)
            self._progress.output_sent()
        return True
