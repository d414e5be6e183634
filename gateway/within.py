"""Waiting for somebody else's answer, for so long, without blaming them for our own lateness."""

import asyncio
from typing import TypeVar

Answer = TypeVar("Answer")

LATE_SECONDS = 0.005


async def within(answer: "asyncio.Future[Answer]", seconds: float) -> Answer:
    """The answer, or TimeoutError after `seconds`. The future itself is never cancelled: others may need it.

    When the loop was held up, its timers fire before it has read its sockets: what looks like a late answer may lie
    there since long. A timer that fires late therefore grants the same time once more.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def answered(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def expired(due: float | None) -> None:
        if waiter.done():
            return
        if due is not None and loop.time() - due > LATE_SECONDS:
            timers.append(loop.call_later(seconds, expired, None))
        else:
            waiter.set_exception(TimeoutError())

    timers = [loop.call_later(seconds, expired, loop.time() + seconds)]
    answer.add_done_callback(answered)
    try:
        await waiter
    finally:
        timers[-1].cancel()
        answer.remove_done_callback(answered)
    return answer.result()
