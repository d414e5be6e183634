"""Lets long-running work yield the event loop to other tasks."""

import asyncio
import time

WORK_SECONDS_MAX = 0.005


class LoopYielder:
    """Yields to other tasks once the work since the last yield has taken WORK_SECONDS_MAX.

    With `pauses` it then sleeps for as long as the work took, so that work which never waits for I/O gets at most
    half of the loop's time.
    """

    def __init__(self, *, pauses: bool = False) -> None:
        self._pauses = pauses
        self._until = time.perf_counter() + WORK_SECONDS_MAX

    async def yield_if_due(self) -> None:
        """Let other tasks run if the work since the last yield has taken WORK_SECONDS_MAX."""
        late = time.perf_counter() - self._until
        if late >= 0:
            await asyncio.sleep(late + WORK_SECONDS_MAX if self._pauses else 0)
            self._until = time.perf_counter() + WORK_SECONDS_MAX
