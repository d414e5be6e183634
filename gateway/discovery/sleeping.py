"""A worker that is to give its memory away for a while gets no requests meanwhile, from any gateway."""

from gateway.discovery.registry import WorkerRegistry
from workers.adapter import Sleeps, WorkerUnreachable


async def put_to_sleep(registry: WorkerRegistry, worker: str, engine: Sleeps) -> None:
    """Drains it first. Raises WorkerUnreachable, and then it is as it was."""
    was_drained = worker in await registry.draining()
    await registry.drain([worker])
    try:
        await engine.sleep()
    except WorkerUnreachable:
        if not was_drained:
            await registry.resume([worker])
        raise


async def wake(registry: WorkerRegistry, worker: str, engine: Sleeps) -> None:
    """It gets requests again, once it can. Raises WorkerUnreachable."""
    await engine.wake()
    await registry.resume([worker])
