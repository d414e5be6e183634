"""Puts workers to sleep, which frees the GPU memory of their engines; sleeping workers get no requests."""

import asyncio
from collections.abc import Callable

from gateway.discovery.worker_registry import DRAINED_SECONDS, WorkerRegistry
from workers.adapter import SupportsSleep, WorkerFailed

NOTICE_SECONDS = 2 * DRAINED_SECONDS
"""Time within which every gateway has read that a worker is drained."""


class WorkerBusy(Exception):
    """A worker cannot sleep, because it has running requests.

    Args:
        streams: number of running requests.
    """

    def __init__(self, streams: int) -> None:
        super().__init__(streams)
        self.streams = streams


async def put_to_sleep(
    registry: WorkerRegistry, worker: str, engine: SupportsSleep, streams: Callable[[], int] = lambda: 0
) -> None:
    """Drain a worker and put its engine to sleep.

    Args:
        registry: the registry in Redis.
        worker: id of the worker.
        engine: the adapter of the worker.
        streams: returns the number of running requests on the worker, as far as it is known.

    Raises:
        WorkerFailed: the engine does not answer. The worker is then drained only if it was before.
        WorkerBusy: the worker has running requests. The worker is then drained only if it was before.
    """
    was_drained = worker in await registry.draining()
    await registry.drain([worker])
    try:
        # Gateways send requests until they have read the change, and an engine must not sleep while it serves one.
        await asyncio.sleep(NOTICE_SECONDS)
        if count := streams():
            raise WorkerBusy(count)
        await engine.sleep()
    except (WorkerFailed, WorkerBusy):
        if not was_drained:
            await registry.resume([worker])
        raise


async def wake_up(registry: WorkerRegistry, worker: str, engine: SupportsSleep) -> None:
    """Wake the engine of a worker, and make gateways send requests to it again. Raises WorkerFailed."""
    await engine.wake()
    await registry.resume([worker])
