"""The life of a handoff, on both sides. A room is the number by which the two requests find each other.

    prefill   QUEUED -----> READY -----> SENDING -----> RELEASED        every arrow but the first lets the blocks go
              waits or      blocks are      |
              is computed   kept, on lease  |
                 |             |            |
                 +-- abort --- + - timeout -+ -- peer gone ----> ABORTED(reason)

    decode    RESERVING --> PULLING --> RUNNING                         no transfer without a home
                 |             |
                 |             +-- anything fails --> RECOMPUTING       it has the prompt, and can do it itself
                 +-- abort ----+-- abort -----------> (gone)            its blocks are free in the same step

A lease has a timeout, so a peer that never comes cannot keep blocks. Who pulls can come before the prompt is known
here, for both requests are sent at once: it waits for its room.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from workers.engine.errors import EngineError
from workers.engine.scheduler.plan import Sampled

ENDED_MAX = 4096
"""Rooms that are remembered after their end, so that who comes late is told at once what became of it."""


class HandoffFailed(EngineError):
    """The blocks of a prompt did not come; says why."""


class LeaseState(StrEnum):
    """Where a prefill stands."""

    QUEUED = "queued"
    READY = "ready"
    SENDING = "sending"
    RELEASED = "released"
    ABORTED = "aborted"


class PullState(StrEnum):
    """Where a decode stands."""

    RESERVING = "reserving"
    PULLING = "pulling"
    RUNNING = "running"
    RECOMPUTING = "recomputing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A computed prompt whose blocks are kept: `blocks` by position, 0 where a window has passed."""

    request_id: str
    blocks: tuple[int, ...]
    num_tokens: int
    digest: str
    first: Sampled
    seed: int
    cached_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class Lease:
    """One room of the prefill side."""

    room: int
    request_id: str
    state: LeaseState = LeaseState.QUEUED
    holding: Holding | None = None
    until: float = 0.0
    reason: str = ""


class Leases:
    """All rooms of a prefill engine; any thread may call."""

    def __init__(
        self,
        let_go: Callable[[str], None],
        *,
        seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`let_go` frees the blocks of a request id, in the engine's own time."""
        self._let_go = let_go
        self._seconds = seconds
        self._clock = clock
        self._rooms: dict[int, Lease] = {}
        self._ended: OrderedDict[int, str] = OrderedDict()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._rooms)

    def states(self) -> dict[int, LeaseState]:
        """What stands in which room."""
        with self._changed:
            return {room: lease.state for room, lease in self._rooms.items()}

    def open(self, room: int, request_id: str) -> None:
        """A prompt was submitted. HandoffFailed if the room is taken."""
        with self._changed:
            if room in self._rooms:
                raise HandoffFailed(f"room {room} is taken by another request")
            self._ended.pop(room, None)
            self._rooms[room] = Lease(room=room, request_id=request_id)

    def ready(self, room: int, holding: Holding) -> None:
        """The prompt is computed; its blocks are kept for a while. Frees them if nobody wants them any more."""
        with self._changed:
            lease = self._rooms.get(room)
            if lease is None or lease.state is not LeaseState.QUEUED:
                self._let_go(holding.request_id)
                return
            lease.holding, lease.state = holding, LeaseState.READY
            lease.until = self._clock() + self._seconds
            self._changed.notify_all()

    def take(self, room: int, seconds: float, gone: Callable[[], bool]) -> Lease:
        """Wait until the room is ready, then send it; HandoffFailed when it will not be.

        `gone` says whether whoever asked has left meanwhile.
        """
        end = self._clock() + seconds
        with self._changed:
            while True:
                lease = self._rooms.get(room)
                if lease and lease.state is LeaseState.READY:
                    lease.state = LeaseState.SENDING
                    return lease
                if lease and lease.state is LeaseState.SENDING:
                    raise HandoffFailed("another one is taking these blocks")
                if lease is None and room in self._ended:
                    raise HandoffFailed(self._ended[room])
                if gone():
                    # Nobody else will come: do not keep for the lease's time what is computed for nobody.
                    self.abort(room, "the peer has left")
                    raise HandoffFailed("the peer has left")
                if self._clock() >= end:
                    raise HandoffFailed(f"room {room} was not ready in {seconds} seconds")
                self._changed.wait(0.1)

    def sent(self, lease: Lease) -> None:
        """The peer has everything."""
        self._end(lease.room, LeaseState.RELEASED, "the blocks were taken already", lease)

    def abort(self, room: int, reason: str, lease: Lease | None = None) -> None:
        """It comes to nothing. While blocks are sent only who sends them may say so: they are being read."""
        self._end(room, LeaseState.ABORTED, reason, lease)

    def sweep(self) -> None:
        """End the leases whose time is over."""
        now = self._clock()
        with self._changed:
            late = [
                lease.room
                for lease in self._rooms.values()
                if lease.state is LeaseState.READY and lease.until <= now
            ]
        for room in late:
            self.abort(room, "the lease timed out")

    def _end(self, room: int, state: LeaseState, reason: str, by: Lease | None) -> None:
        with self._changed:
            lease = self._rooms.get(room)
            if lease is None or (lease.state is LeaseState.SENDING and lease is not by):
                return
            del self._rooms[room]
            lease.state, lease.reason = state, reason
            self._ended[room] = reason
            while len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)
            if lease.holding:
                self._let_go(lease.holding.request_id)
            self._changed.notify_all()
