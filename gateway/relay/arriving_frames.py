"""Sends the frames of a stream where they arrive, without a turn of the event loop for the request's task.

    worker's connection -- piece --> send --> client's connection      most pieces
                             |
                             +------------> the request's task         the first one, the last ones, an error,
                                                                       a client that has to be waited for

Most pieces of a stream need no decision: waking the task for them costs more than all that is done about them.
"""

from gateway.domain.errors import GatewayError
from gateway.domain.exchange import Exchange
from gateway.relay.frame_filter import FrameFilter
from gateway.telemetry.request_record import Progress


class ArrivingFrames:
    """The frames of one stream on their way to the client, and what was sent of them."""

    def __init__(self, exchange: Exchange, frames: FrameFilter, progress: Progress) -> None:
        self.begun = False
        """Whether the client has the beginning of the stream."""
        self.failure: GatewayError | None = None
        """Why the client's API cannot express a piece that was not taken."""
        self._exchange = exchange
        self._frames = frames
        self._progress = progress
        self._traced = progress.trace is not None
        self._noted = 0

    def send(self, piece: bytes) -> bool:
        """Send a piece that has arrived; False: the request's task has to do it."""
        if not (self.begun and self._exchange.writes_at_once and self._frames.is_plain(piece)):
            return False
        ready = self._frames.feed(piece)
        if ready:
            try:
                self._exchange.write_at_once(ready)
            except GatewayError as err:
                self.failure = err
                return False
            self.note_sent(ready)
        return True

    def note_sent(self, ready: bytes) -> None:
        """Note frames that were handed to the client's socket."""
        if self._traced:
            self._progress.note_finish_reasons(ready)
        self._progress.output_sent(self._frames.frames - self._noted)
        self._noted = self._frames.frames
