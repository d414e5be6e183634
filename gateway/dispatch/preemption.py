"""Batch requests that may have to give up their place, as long as nothing has come from there.

A worker that is hung up on stops; the batch request waits for another turn, and its charge is taken back. Of a pair
the room is the prefill worker's, and both are hung up on. Whoever needs the room may wait at another gateway; see
gateway/queueing/shared/preemption_requests.py.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.dispatch.placement import Placed
from gateway.queueing.shared.preemption_requests import Need
from policies.admission.dispatch_window import fits_window

TIMES_MAX = 3
"""Of one request: then it keeps its place."""


class Preempted(Exception):
    """Somebody else needs its place more; nothing has come from there yet."""


class Attempt:
    """One request on its way to a first byte. `times`: so often it has given way already."""

    def __init__(self) -> None:
        self.times = 0
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def until_first_byte(self, placed: Placed, among: "Preemptible") -> AsyncIterator[None]:
        """Raises Preempted."""
        self._limit = limit = asyncio.timeout(None)
        try:
            async with limit:
                among.put(self, placed)
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            self.times += 1
            among.count += 1
            raise Preempted from None
        finally:
            among.drop(self)
            self._limit = None

    def give_way(self) -> None:
        assert self._limit is not None
        self._limit.reschedule(asyncio.get_running_loop().time())

    def stay(self) -> None:
        """Its first byte has come, perhaps in the moment in which it was to give way: the room is there then."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None)


class Preemptible:
    """All of them, in the order in which they were sent. `count`: how many have given way."""

    def __init__(self) -> None:
        self.count = 0
        self._placed: dict[Attempt, Placed] = {}

    def put(self, attempt: Attempt, placed: Placed) -> None:
        self._placed[attempt] = placed

    def drop(self, attempt: Attempt) -> bool:
        """Was it there?"""
        return self._placed.pop(attempt, None) is not None

    def can_make_room(self, needs: Sequence[Need], window_tokens: int) -> bool:
        """Would that be enough for one of these?"""
        return bool(self._enough_for(needs, window_tokens))

    def make_room(self, needs: Sequence[Need], window_tokens: int) -> bool:
        """Takes places back, the last ones first, so that a request fits at its best worker, if that is enough."""
        given = self._enough_for(needs, window_tokens)
        for attempt in given:
            self.drop(attempt)
            attempt.give_way()
        return bool(given)

    def _enough_for(self, needs: Sequence[Need], window_tokens: int) -> list[Attempt]:
        return next((given for need in needs if (given := self._enough(need, window_tokens))), [])

    def _enough(self, need: Need, window_tokens: int) -> list[Attempt]:
        there = [item for item in self._placed.items() if item[1].computes.id == need.worker]
        given: list[Attempt] = []
        if not there:
            return given
        queued = max(need.queued, there[0][1].computes.load.all_tokens_queued)
        for attempt, placed in reversed(there):
            if fits_window(queued, need.tokens, window_tokens):
                break
            given.append(attempt)
            queued -= placed.place.tokens_computing
        return given if fits_window(queued, need.tokens, window_tokens) else []
