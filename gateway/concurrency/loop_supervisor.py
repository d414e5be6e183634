"""Background loops under supervision: a loop that crashes is restarted after a growing pause."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

RESTART_SECONDS = (0.1, 1.0, 5.0, 30.0)
HEALTHY_SECONDS = 60.0
"""A loop that ran longer than this before it crashed is restarted after the shortest pause again."""
AGAIN_SECONDS = 5.0
"""The time after which a cancelled loop that has not ended is cancelled again. Code may lose a cancellation, as
asyncio.wait_for does before Python 3.12.
"""


@dataclass(slots=True)
class LoopState:
    """The state of a background loop."""

    restarts: int = 0
    """Restarts since the gateway started."""

    failing: bool = False
    """True between a crash and the restart after it."""


class LoopSupervisor:
    """Runs named background loops, restarts those that crash, and reports their states."""

    def __init__(self) -> None:
        self.loops: dict[str, LoopState] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Start a loop under this name; `run` is called again whenever it raises."""
        self.loops[name] = LoopState()
        self._tasks.append(asyncio.create_task(self._keep(name, run), name=name))

    async def close(self) -> None:
        """Cancel all loops and wait until they have ended."""
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
                log.exception("the background loop %r has crashed and is restarted", name)
            if asyncio.get_running_loop().time() - started > HEALTHY_SECONDS:
                failures = 0
            state.restarts += 1
            state.failing = True
            await asyncio.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])
            state.failing = False
            failures += 1
