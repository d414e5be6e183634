"""Lets long work on the event loop give way to other tasks."""

import asyncio
import time

WORK_SECONDS_MAX = 0.005


class LoopYielder:
    """Gives way to other tasks once the work since the last time has taken WORK_SECONDS_MAX.

    With `pauses` it then pauses for as long as it has worked, so that it gets half of the loop's time at the most:
    for work that does not wait for anything in between.
    """

    def __init__(self, *, pauses: bool = False) -> None:
        self._pauses = pauses
        self._until = time.perf_counter() + WORK_SECONDS_MAX

    async def yield_if_due(self) -> None:
        """Let other tasks run if the work has taken long enough since the last time."""
        late = time.perf_counter() - self._until
        if late >= 0:
            await asyncio.sleep(late + WORK_SECONDS_MAX if self._pauses else 0)
            self._until = time.perf_counter() + WORK_SECONDS_MAX
