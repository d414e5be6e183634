"""Registers a worker in Redis, renews the registration while the worker serves, and removes it at the end.

The registration of a worker that dies ends with its lease. A worker also serves while Redis is unreachable:
gateways that have the worker keep it, and it is registered again when Redis is back.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from gateway.discovery.worker_registry import LEASE_SECONDS, WorkerRegistry
from radix_cache.redis.call import RedisDown

log = logging.getLogger(__name__)

RENEW_SECONDS = LEASE_SECONDS / 5
REMOVE_SECONDS_MAX = 2.0


@asynccontextmanager
async def keep_registered(
    registry: WorkerRegistry, worker: dict[str, Any], renew_seconds: float = RENEW_SECONDS
) -> AsyncIterator[None]:
    """Keep a worker registered for as long as the context is open.

    Args:
        registry: the registry in Redis.
        worker: the worker, with the fields of an entry of `workers` in settings.
        renew_seconds: time between two renewals.
    """
    renewing = asyncio.create_task(_renew(registry, worker, renew_seconds))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with suppress(RedisDown, TimeoutError):
            await asyncio.wait_for(registry.remove(worker["id"]), REMOVE_SECONDS_MAX)


async def _renew(registry: WorkerRegistry, worker: dict[str, Any], seconds: float) -> None:
    is_registered = None
    while True:
        try:
            await registry.put(worker, lease_seconds=LEASE_SECONDS)
        except RedisDown as err:
            if is_registered is not False:
                log.warning("worker %s cannot be registered: %s", worker["id"], err)
            is_registered = False
        else:
            if not is_registered:
                log.info("worker %s is registered at %s", worker["id"], worker["url"])
            is_registered = True
        await asyncio.sleep(seconds)
