"""Waiting for an answer with a time limit, without counting a late event loop as a late answer."""

import asyncio
from typing import TypeVar

Answer = TypeVar("Answer")

LATE_SECONDS = 0.005
"""A timer that fires this much late shows that the event loop was held up."""


async def bounded_wait(answer: "asyncio.Future[Answer]", seconds: float) -> Answer:
    """Return the result of the future, or raise TimeoutError after `seconds`.

    The future itself is never cancelled: other tasks may wait for it too.
    """
    wait = _Wait(seconds)
    answer.add_done_callback(wait.answered)
    try:
        if not await wait.in_time:
            raise TimeoutError
        return answer.result()
    finally:
        wait.end()
        answer.remove_done_callback(wait.answered)
        del answer  # Its error refers to this frame: see _Wait.


class _Wait:
    """Waits until the future is answered or its time is up.

    When the event loop was held up, its timers fire before it has read its sockets: an answer that seems late may
    have been in the socket for long. A timer that fires late therefore grants the same time once more.

    Since there is one for every request, it leaves nothing to the cycle collector: a function that refers to
    itself, or a future with an error that is raised where the future is held, would be a reference cycle.
    """

    __slots__ = ("_loop", "_seconds", "_timer", "in_time")

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self.in_time: asyncio.Future[bool] = self._loop.create_future()
        self._timer = self._loop.call_later(seconds, self._expired, self._loop.time() + seconds)

    def answered(self, _: object) -> None:
        if not self.in_time.done():
            self.in_time.set_result(True)

    def end(self) -> None:
        self._timer.cancel()

    def _expired(self, due: float | None) -> None:
        if self.in_time.done():
            return
        if due is not None and self._loop.time() - due > LATE_SECONDS:
            self._timer = self._loop.call_later(self._seconds, self._expired, None)
        else:
            self.in_time.set_result(False)
