"""The threads that encode long prompts, shared by all tenants; each tenant uses at most one at a time.

    tenant a   [running] [waits] [waits] ...          b's prompt takes the other thread, however many a sends
    tenant b   [running]

A running thread cannot be stopped. If the client disconnects meanwhile, its tenant still counts as holding the
thread until the work is done; otherwise a client could hold all threads by disconnecting and coming back. If the
client disconnects while its prompt waits, the prompt gives up its place at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from gateway.domain.errors import TenantQueueFull

WAITING_MIN = 32
"""Long prompts of one tenant that may always wait, however long."""
WAITING_CHARACTERS_MAX = 8 * 1024**2
"""Characters of one tenant's long prompts that may wait beyond WAITING_MIN: they are held in memory. So many are a
stampede of a hundred prompts of 16,000 tokens."""

RETRY_SECONDS = 1.0
"""After how long a refused client may try again."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A prompt that waits for its tenant's thread."""

    given: asyncio.Future[None]
    characters: int


class EncoderThreads:
    """Runs the encoding of long prompts in the threads of `executor`, one at a time for each tenant."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        # For every tenant that holds a thread, its prompts that wait for that thread.
        self._waiting: dict[str, deque[_Turn]] = {}

    async def run(self, tenant: str, characters: int, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread once no other work of the tenant is running, and return its result.

        `characters` is the length of what it encodes. Raises TenantQueueFull.
        """
        await self._wait_for_turn(tenant, characters)
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:
            with suppress(RuntimeError):  # The event loop may be closed by now.
                loop.call_soon_threadsafe(self._start_next, tenant)

        try:
            running = self._executor.submit(work)
        except RuntimeError:
            self._start_next(tenant)
            raise
        running.add_done_callback(done)
        return await asyncio.wrap_future(running)

    async def _wait_for_turn(self, tenant: str, characters: int) -> None:
        waiting = self._waiting.get(tenant)
        if waiting is None:
            self._waiting[tenant] = deque()
            return
        length = characters + sum(turn.characters for turn in waiting)
        if len(waiting) >= WAITING_MIN and length > WAITING_CHARACTERS_MAX:
            raise TenantQueueFull(RETRY_SECONDS)
        turn = _Turn(asyncio.get_running_loop().create_future(), characters)
        waiting.append(turn)
        try:
            await turn.given
        except asyncio.CancelledError:
            if not turn.given.cancelled():
                self._start_next(tenant)  # The turn came at the same moment; the next prompt takes it.
            elif turn in waiting:
                waiting.remove(turn)
            raise

    def _start_next(self, tenant: str) -> None:
        """Give the tenant's free thread to the prompt that has waited longest."""
        waiting = self._waiting[tenant]
        while waiting:
            turn = waiting.popleft()
            if not turn.given.done():
                turn.given.set_result(None)
                return
        del self._waiting[tenant]
