"""Preemption: batch requests may have to give up their placement while they wait for their first byte.

The gateway closes the connection to the worker, which stops. `answer` of gateway/pipeline.py catches Preempted and
begins another attempt: the batch request waits for another turn, with the number of its ticket, and its charge is
taken back. Of a prefill/decode pair the room is the prefill worker's, and both connections are closed. The request
that needs the room may wait at another gateway; see gateway/queueing/shared/preemption_requests.py.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from gateway.dispatch.pending_request import Attempt, PendingRequest
from gateway.dispatch.placement import Placement
from gateway.queueing.shared.preemption_requests import Need
from policies.admission.window_room import fits_window
from workers.adapter import WorkerAnswer, WorkerCall

PREEMPTIONS_MAX = 3
"""Preemptions of one request: then it keeps its placement."""

Answer = TypeVar("Answer")


class Preempted(Exception):
    """Another request needs the placement more, and no byte of an answer has come yet."""


class PreemptibleAttempt:
    """A batch request that waits for the first byte of its worker's answer, and can be cut off until then."""

    __slots__ = ("_timeout", "placement")

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._timeout: asyncio.Timeout | None = None

    async def first_byte(self, opening: Awaitable[Answer]) -> Answer:
        """Return what `opening` brings. Raises Preempted if the attempt is cut off before."""
        timeout = self._timeout = asyncio.timeout(None)
        try:
            async with timeout:
                answer = await opening
                if not timeout.expired():
                    # It may be due to be cut off in this moment: its prefill is done, so the room is there.
                    timeout.reschedule(None)
                return answer
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Preempted from None

    def cut_off(self) -> None:
        """Close the connection to the worker."""
        assert self._timeout is not None
        self._timeout.reschedule(asyncio.get_running_loop().time())


def may_be_preempted(pending: PendingRequest, call: WorkerCall) -> bool:
    """Return whether a request may have to give up its placement: batch work at its first attempts.

    What a carrier has taken cannot be called back.
    """
    return (
        pending.background
        and not pending.failed_workers
        and pending.preemptions < PREEMPTIONS_MAX
        and call.carrier is None
    )


class Preemption:
    """The batch requests that wait for a first byte, in the order in which they were sent."""

    def __init__(self) -> None:
        self.count = 0
        """How many requests have been preempted."""
        self._attempts: dict[PreemptibleAttempt, None] = {}

    def add(self, attempt: PreemptibleAttempt) -> None:
        """Let this attempt be cut off from now on."""
        self._attempts[attempt] = None

    def remove(self, attempt: PreemptibleAttempt) -> None:
        """Do not cut this attempt off any more. Removing it twice has no effect."""
        self._attempts.pop(attempt, None)

    async def open(self, pending: PendingRequest, attempt: Attempt, call: WorkerCall) -> WorkerAnswer:
        """Send a batch request, and return the answer once its first bytes are there.

        Raises WorkerFailed, Preempted.
        """
        placement = attempt.placement
        stream = placement.call_target.stream(call)
        preemptible = PreemptibleAttempt(placement)
        self.add(preemptible)
        try:
            answer = await preemptible.first_byte(stream.__aenter__())
        except Preempted:
            pending.preemptions += 1
            self.count += 1
            pending.progress.discard_attempt()
            raise
        finally:
            self.remove(preemptible)
        attempt.stream = stream
        return answer

    def can_make_room(self, needs: Sequence[Need]) -> bool:
        """Return whether cutting attempts off would make enough room for one of these needs."""
        return bool(self._victims_for_any(needs))

    def make_room(self, needs: Sequence[Need]) -> bool:
        """Cut attempts off, the last ones first, for the first need that can be met; return False if none can."""
        attempts = self._victims_for_any(needs)
        for attempt in attempts:
            self.remove(attempt)
            attempt.cut_off()
        return bool(attempts)

    def _victims_for_any(self, needs: Sequence[Need]) -> list[PreemptibleAttempt]:
        """Return the attempts to cut off for the first need that can be met; none if no need can."""
        return next((found for need in needs if (found := self._victims_for(need))), [])

    def _victims_for(self, need: Need) -> list[PreemptibleAttempt]:
        """Return the attempts to cut off for a need, the last ones first; none if all are not enough."""
        there = [each for each in self._attempts if each.placement.prefill_worker.id == need.worker]
        found: list[PreemptibleAttempt] = []
        if not there:
            return found
        queued = max(need.queued, there[0].placement.prefill_worker.load.all_tokens_queued)
        for attempt in reversed(there):
            if fits_window(queued, need.tokens, need.window):
                break
            found.append(attempt)
            queued -= attempt.placement.load_share.tokens_computing
        return found if fits_window(queued, need.tokens, need.window) else []
