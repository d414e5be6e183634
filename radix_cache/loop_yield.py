"""Turns: long work in the event loop that lets others have theirs."""

import asyncio
import time

WORK_SECONDS_MAX = 0.005


class LoopYielder:
    """Lets others run when the work since the last time has taken long enough."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + WORK_SECONDS_MAX

    async def give(self) -> None:
        if time.perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = time.perf_counter() + WORK_SECONDS_MAX
