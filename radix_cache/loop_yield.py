"""Lets long work on the event loop give way to other tasks."""

import asyncio
import time

WORK_SECONDS_MAX = 0.005


class LoopYielder:
    """Gives way to other tasks once the work since the last time has taken WORK_SECONDS_MAX."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + WORK_SECONDS_MAX

    async def yield_if_due(self) -> None:
        """Let other tasks run if the work has taken long enough since the last time."""
        if time.perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = time.perf_counter() + WORK_SECONDS_MAX
