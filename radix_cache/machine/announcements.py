"""The ring of announcements: brings the predictions to all processes of a machine, for the workers' loads.

The first process writes, and every other process reads on from its last position. A process that has fallen behind
by a whole ring ends all predictions that it has, and continues with new announcements.
"""

from struct import Struct

from radix_cache.machine.segment import (
    ANNOUNCED,
    ANNOUNCEMENT_WORDS,
    ANNOUNCEMENTS,
    RING,
    WORD,
    IndexSegment,
    order_stores,
)
from radix_cache.shared.predictions import PredictionListener

_ENTRY = Struct("<16sIIIId")
_ADDED, _OVER, _COMPUTED = 1, 2, 3
MARGIN = 256
"""The oldest entries, which readers skip because the writer may be overwriting them."""

assert _ENTRY.size <= ANNOUNCEMENT_WORDS * WORD


class AnnouncementWriter:
    """Writes predictions and their ends to the ring, and notifies a listener of this process."""

    def __init__(self, segment: IndexSegment) -> None:
        self.listener: PredictionListener | None = None
        self.own = b""
        """The prefix of this process's own prediction ids, of which its listener is not notified."""
        self._segment = segment

    def predicted(self, identity: bytes, tenure: int, new_blocks: int, blocks: int, sent_at: float) -> None:
        """Announce a prediction; see PredictionListener."""
        self._write(identity, _ADDED, tenure, new_blocks, blocks, sent_at)
        if self.listener is not None and not identity.startswith(self.own):
            self.listener.predicted(identity, tenure, new_blocks, blocks, sent_at)

    def prompt_computed(self, identity: bytes) -> None:
        """Announce that the prompt of a prediction is computed."""
        self._write(identity, _COMPUTED, 0, 0, 0, 0.0)
        if self.listener is not None and not identity.startswith(self.own):
            self.listener.prompt_computed(identity)

    def prediction_over(self, identity: bytes) -> None:
        """Announce the end of a prediction."""
        self._write(identity, _OVER, 0, 0, 0, 0.0)
        if self.listener is not None and not identity.startswith(self.own):
            self.listener.prediction_over(identity)

    def _write(
        self, identity: bytes, kind: int, tenure: int, new_blocks: int, blocks: int, sent_at: float
    ) -> None:
        words = self._segment.words
        number = words[ANNOUNCED]
        at = (RING + number % ANNOUNCEMENTS * ANNOUNCEMENT_WORDS) * WORD
        _ENTRY.pack_into(self._segment.data, at, identity, kind, tenure, new_blocks, blocks, sent_at)
        order_stores()
        words[ANNOUNCED] = number + 1


class AnnouncementReader:
    """Reads the ring of the segment in use, and notifies a listener."""

    def __init__(self) -> None:
        self.listener: PredictionListener | None = None
        self.own = b""
        """The prefix of this process's own prediction ids, of which the listener is not notified."""
        self._segment: IndexSegment | None = None
        self._read = 0
        self._under_way: set[bytes] = set()

    def read(self, segment: IndexSegment) -> None:
        """Notify the listener of all announcements since the last call."""
        listener, announced = self.listener, segment.words[ANNOUNCED]
        if listener is None or (segment is self._segment and announced == self._read):
            return
        order_stores()
        if segment is not self._segment or announced - self._read > ANNOUNCEMENTS - MARGIN:
            self.end_all()
            self._segment = segment
            self._read = announced
            return
        for number in range(self._read, announced):
            at = (RING + number % ANNOUNCEMENTS * ANNOUNCEMENT_WORDS) * WORD
            identity, kind, tenure, new_blocks, blocks, sent_at = _ENTRY.unpack_from(segment.data, at)
            if identity.startswith(self.own):
                continue
            if kind == _ADDED:
                self._under_way.add(identity)
                listener.predicted(identity, tenure, new_blocks, blocks, sent_at)
            elif identity not in self._under_way:
                continue
            elif kind == _COMPUTED:
                listener.prompt_computed(identity)
            else:
                self._under_way.discard(identity)
                listener.prediction_over(identity)
        self._read = announced

    def end_all(self) -> None:
        """End all predictions that the listener was notified of."""
        ended, self._under_way = self._under_way, set()
        for identity in ended:
            if self.listener is not None:
                self.listener.prediction_over(identity)
