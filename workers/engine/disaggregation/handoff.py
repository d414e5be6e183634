"""The states of a handoff on both sides, and the leases of the prefill side.

A room is the number that pairs the requests to the two engines (SGLang's `bootstrap_room`).

    prefill   QUEUED -----> READY -----> SENDING -----> RELEASED        every arrow but the first frees the blocks
              waits or      blocks are      |
              is computed   kept, on lease  |
                 |             |            |
                 +-- abort --- + - timeout -+ -- peer gone ----> ABORTED(reason)

    decode    RESERVING --> PULLING --> RUNNING                         blocks are allocated before the transfer
                 |             |
                 |             +-- any failure -----> RECOMPUTING       the prompt is computed here instead
                 +-- abort ----+-- abort -----------> (gone)            the blocks are free in the same step

A lease has a timeout, so that a peer that never connects cannot keep blocks. Both requests are sent at once, so the
decode side may request a room before the prompt has arrived here: it then waits for the room.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from workers.engine.errors import EngineError
from workers.engine.scheduler.plan import SampledTokens

ENDED_MAX = 4096
"""Rooms kept after their end, so that a peer that connects late gets the reason at once."""


class HandoffFailed(EngineError):
    """Raised when a handoff fails; the message has the cause."""


class LeaseState(StrEnum):
    """The state of a handoff on the prefill side."""

    QUEUED = "queued"
    READY = "ready"
    SENDING = "sending"
    RELEASED = "released"
    ABORTED = "aborted"


class PullState(StrEnum):
    """The state of a handoff on the decode side."""

    RESERVING = "reserving"
    PULLING = "pulling"
    RUNNING = "running"
    RECOMPUTING = "recomputing"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPrompt:
    """A computed prompt with blocks that are kept for a decode engine."""

    request_id: str
    blocks: tuple[int, ...]
    """Block ids by position; 0 for blocks before the attention window."""
    num_tokens: int
    """Tokens of the prompt."""
    digest: str
    """See `prompt_digest`."""
    first: SampledTokens
    """The first token of the answer."""
    seed: int
    cached_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class HandoffLease:
    """One room of the prefill side, and the blocks that it keeps."""

    room: int
    request_id: str
    state: LeaseState = LeaseState.QUEUED
    prompt: HeldPrompt | None = None
    """The computed prompt; None until it is computed."""
    expires_at: float = 0.0
    """When the lease expires, in seconds of the clock; counts in the state READY."""
    reason: str = ""
    """Why the lease ended."""


class HandoffLeases:
    """The leases of all rooms of a prefill engine; any thread may call."""

    def __init__(
        self,
        release: Callable[[str], None],
        *,
        seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without rooms.

        Args:
            release: Makes the engine free the blocks of a request id; returns before they are free.
            seconds: How long a lease lasts.
            clock: Returns the time in seconds.
        """
        self._release = release
        self._seconds = seconds
        self._clock = clock
        self._rooms: dict[int, HandoffLease] = {}
        self._ended: OrderedDict[int, str] = OrderedDict()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._rooms)

    def states(self) -> dict[int, LeaseState]:
        """Return the state of each room."""
        with self._changed:
            return {room: lease.state for room, lease in self._rooms.items()}

    def open(self, room: int, request_id: str) -> None:
        """Open a room for a submitted prompt. Raises HandoffFailed if the room is taken."""
        with self._changed:
            if room in self._rooms:
                raise HandoffFailed(f"room {room} is taken by another request")
            self._ended.pop(room, None)
            self._rooms[room] = HandoffLease(room=room, request_id=request_id)

    def mark_ready(self, room: int, prompt: HeldPrompt) -> None:
        """Keep the blocks of a computed prompt on lease, or free them if the room has ended."""
        with self._changed:
            lease = self._rooms.get(room)
            if lease is None or lease.state is not LeaseState.QUEUED:
                self._release(prompt.request_id)
                return
            lease.prompt, lease.state = prompt, LeaseState.READY
            lease.expires_at = self._clock() + self._seconds
            self._changed.notify_all()

    def start_sending(self, room: int, seconds: float, peer_left: Callable[[], bool]) -> HandoffLease:
        """Wait at most `seconds` until the room is ready, and mark it as being sent.

        `peer_left` returns whether the requesting peer has disconnected.

        Raises:
            HandoffFailed: The room will not become ready, or another peer receives it.
        """
        end = self._clock() + seconds
        with self._changed:
            while True:
                lease = self._rooms.get(room)
                if lease and lease.state is LeaseState.READY:
                    lease.state = LeaseState.SENDING
                    return lease
                if lease and lease.state is LeaseState.SENDING:
                    raise HandoffFailed("another peer is receiving these blocks")
                if lease is None and room in self._ended:
                    raise HandoffFailed(self._ended[room])
                if peer_left():
                    # No other peer will connect, so the blocks need not be kept for the lease's time.
                    self.abort(room, "the peer has left")
                    raise HandoffFailed("the peer has left")
                if self._clock() >= end:
                    raise HandoffFailed(f"room {room} was not ready in {seconds} seconds")
                self._changed.wait(0.1)

    def mark_sent(self, lease: HandoffLease) -> None:
        """End a lease successfully: the peer has all blocks."""
        self._end(lease.room, LeaseState.RELEASED, "the blocks were sent already", lease)

    def abort(self, room: int, reason: str, lease: HandoffLease | None = None) -> None:
        """End a room without success.

        While its blocks are being sent, and so are being read, only the sender may end it, by passing the lease.
        """
        self._end(room, LeaseState.ABORTED, reason, lease)

    def abort_expired(self) -> None:
        """Abort the leases that have expired."""
        now = self._clock()
        with self._changed:
            expired = [
                lease.room
                for lease in self._rooms.values()
                if lease.state is LeaseState.READY and lease.expires_at <= now
            ]
        for room in expired:
            self.abort(room, "the lease timed out")

    def _end(self, room: int, state: LeaseState, reason: str, sender: HandoffLease | None) -> None:
        with self._changed:
            lease = self._rooms.get(room)
            if lease is None or (lease.state is LeaseState.SENDING and lease is not sender):
                return
            del self._rooms[room]
            lease.state, lease.reason = state, reason
            self._ended[room] = reason
            while len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)
            if lease.prompt:
                self._release(lease.prompt.request_id)
            self._changed.notify_all()
