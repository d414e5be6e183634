"""A worker that is to give its memory away for a while gets no requests meanwhile, from any gateway."""

import asyncio
from collections.abc import Callable

from gateway.discovery.worker_registry import LOOK_SECONDS, WorkerRegistry
from workers.adapter import Sleeps, WorkerUnreachable

NOTICE_SECONDS = 2 * LOOK_SECONDS
"""Until every gateway has heard that a worker is drained."""


class WorkerBusy(Exception):
    """So many requests are under way there."""

    def __init__(self, streams: int) -> None:
        super().__init__(streams)
        self.streams = streams


async def put_to_sleep(
    registry: WorkerRegistry, worker: str, engine: Sleeps, streams: Callable[[], int] = lambda: 0
) -> None:
    """Drains it first. `streams`: under way there, as far as is known.

    Raises WorkerUnreachable and AtWork, and then it is as it was.
    """
    was_drained = worker in await registry.draining()
    await registry.drain([worker])
    try:
        # Gateways send it requests until they have heard of it, and an engine is not to sleep under one.
        await asyncio.sleep(NOTICE_SECONDS)
        if count := streams():
            raise WorkerBusy(count)
        await engine.sleep()
    except (WorkerUnreachable, WorkerBusy):
        if not was_drained:
            await registry.resume([worker])
        raise


async def wake_up(registry: WorkerRegistry, worker: str, engine: Sleeps) -> None:
    """It gets requests again, once it can. Raises WorkerUnreachable."""
    await engine.wake()
    await registry.resume([worker])
