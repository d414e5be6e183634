"""Background loops under supervision, and the order in which a gateway stops.

SIGTERM: not ready --notice_seconds--> doors closed --streams end, at most `seconds`--> cancelled --> closed
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

RESTART_SECONDS = (0.1, 1.0, 5.0, 30.0)
HEALTHY_SECONDS = 60.0
AGAIN_SECONDS = 5.0
"""A loop that has not ended by then is cancelled again: what others have written may lose a cancellation, as
asyncio.wait_for does before Python 3.12."""


@dataclass(slots=True)
class LoopState:
    """How a loop does: `restarts` since start; `failing` between a crash and its restart."""

    restarts: int = 0
    failing: bool = False


class Supervisor:
    """Runs named loops, restarts those that crash, and says how they do."""

    def __init__(self) -> None:
        self.loops: dict[str, LoopState] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self.loops[name] = LoopState()
        self._tasks.append(asyncio.create_task(self._keep(name, run), name=name))

    async def close(self) -> None:
        running = {task for task in self._tasks if not task.done()}
        while running:
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=AGAIN_SECONDS)

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        state, failures = self.loops[name], 0
        while True:
            started = asyncio.get_running_loop().time()
            try:
                await run()
                return
            except Exception:
                log.exception("the loop %r has failed; it is started again", name)
            if asyncio.get_running_loop().time() - started > HEALTHY_SECONDS:
                failures = 0
            state.restarts += 1
            state.failing = True
            await asyncio.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])
            state.failing = False
            failures += 1
