"""Waiting for somebody else's answer, for so long, without blaming them for our own lateness."""

import asyncio
from typing import TypeVar

Answer = TypeVar("Answer")

LATE_SECONDS = 0.005


async def within(answer: "asyncio.Future[Answer]", seconds: float) -> Answer:
    """The answer, or TimeoutError after `seconds`. The future itself is never cancelled: others may need it."""
    wait = _Wait(seconds)
    answer.add_done_callback(wait.answered)
    try:
        if not await wait.in_time:
            raise TimeoutError
    finally:
        wait.end()
        answer.remove_done_callback(wait.answered)
    return answer.result()


class _Wait:
    """Until it is `answered`, or its time is up.

    When the loop was held up, its timers fire before it has read its sockets: what looks like a late answer may lie
    there since long. A timer that fires late therefore grants the same time once more.

    It leaves nothing to the collector, once for every request: a function that names itself, or a future with an
    error that is raised where it is held, would be a circle.
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
