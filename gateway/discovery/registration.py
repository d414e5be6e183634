"""A worker that registers itself in Redis, renews that for as long as it serves, and takes itself out at its end.

A worker that dies without a word is gone when its lease ends. Redis that is away is no reason not to serve: the
gateways that have taken it up keep it, and it registers again when Redis is back.
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
LAST_SECONDS = 2.0


@asynccontextmanager
async def keep_registered(
    registry: WorkerRegistry, worker: dict[str, Any], renew_seconds: float = RENEW_SECONDS
) -> AsyncIterator[None]:
    """`worker`: as it stands in `workers` of the settings."""
    renewing = asyncio.create_task(_renew(registry, worker, renew_seconds))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with suppress(RedisDown, TimeoutError):
            await asyncio.wait_for(registry.remove(worker["id"]), LAST_SECONDS)


async def _renew(registry: WorkerRegistry, worker: dict[str, Any], seconds: float) -> None:
    known = None
    while True:
        try:
            await registry.put(worker, lease_seconds=LEASE_SECONDS)
        except RedisDown as err:
            if known is not False:
                log.warning("worker %s cannot register: %s", worker["id"], err)
            known = False
        else:
            if not known:
                log.info("worker %s is registered at %s", worker["id"], worker["url"])
            known = True
        await asyncio.sleep(seconds)
