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
    """The frames of one stream on their way to the client."""

    def __init__(self, exchange: Exchange, frames: FrameFilter, progress: Progress) -> None:
        self.failure: GatewayError | None = None
        """Why the client's API cannot express a piece that was not taken."""
        self._exchange = exchange
        self._frames = frames
        self._progress = progress

    def send(self, piece: bytes) -> bool:
        """Send a piece that has arrived; False: the request's task has to do it."""
        ready = self._frames.feed_plain(piece) if self._exchange.writes_at_once else None
        if ready is None:
            return False
        if ready:
            try:
                self._exchange.write_at_once(ready)
            except GatewayError as err:
                self.failure = err
                return False
            if self._progress.trace is not None:
                self._progress.note_finish_reasons(ready)
            self._progress.output_sent(self._frames.frames)
        return True
