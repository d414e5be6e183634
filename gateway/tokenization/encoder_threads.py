"""The threads that encode long prompts, shared by all tenants: each tenant holds one of them at most.

    tenant a   [running] [waits] [waits] ...          b's prompt takes the other thread, however many a sends
    tenant b   [running]

A thread cannot be stopped: a client that leaves while it runs still holds it until it is done, or leaving and
coming back would be a way to hold them all. One that leaves while it waits is gone at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

from gateway.domain.errors import TenantQueueFull

WAITING_MAX = 32
"""Long prompts of one tenant that may wait. Each is held in memory."""

RETRY_SECONDS = 1.0

Result = TypeVar("Result")


class EncoderThreads:
    """`executor`: the threads."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # of every tenant that holds a thread

    async def run(self, tenant: str, work: Callable[[], Result]) -> Result:
        """What the work gives, done in a thread when it is the tenant's turn. Raises TenantQueueFull."""
        await self._turn(tenant)
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:
            with suppress(RuntimeError):  # The loop may have ended meanwhile.
                loop.call_soon_threadsafe(self._next, tenant)

        try:
            running = self._executor.submit(work)
        except RuntimeError:
            self._next(tenant)
            raise
        running.add_done_callback(done)
        return await asyncio.wrap_future(running)

    async def _turn(self, tenant: str) -> None:
        waiting = self._waiting.get(tenant)
        if waiting is None:
            self._waiting[tenant] = deque()
            return
        if len(waiting) >= WAITING_MAX:
            raise TenantQueueFull(RETRY_SECONDS)
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._next(tenant)  # It came in the same moment.
            elif turn in waiting:
                waiting.remove(turn)
            raise

    def _next(self, tenant: str) -> None:
        """The thread is free: whoever of the tenant waited longest has it."""
        waiting = self._waiting[tenant]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[tenant]
