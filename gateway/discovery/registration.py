"""Keeps a launched engine in the registry for as long as it answers, so that every gateway knows of it.

    up         put, and put again long before its lease ends
    not up     removed: gateways send it nothing new
    stopped    removed; its running requests may end before it is stopped

A Redis that is away changes nothing: the lease ends by itself, and the next round puts it again.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from gateway.discovery.registry import LEASE_SECONDS, WorkerRegistry
from radix_cache.redis.call import RedisDown
from workers.launch import EngineLife

log = logging.getLogger(__name__)

PUT_SECONDS = LEASE_SECONDS / 3


class Registration:
    """`worker`: as it stands in the settings' `workers`."""

    def __init__(self, registry: WorkerRegistry, worker: dict[str, Any], life: EngineLife) -> None:
        self._registry = registry
        self._worker = worker
        self._life = life
        self._there = False

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._life.changed.clear()
            try:
                if self._life.up:
                    await self._registry.put(self._worker, lease_seconds=LEASE_SECONDS)
                    self._said(True)
                elif self._there:
                    await self.withdraw()
            except RedisDown as err:
                log.warning("worker %s cannot be registered: %s", self._worker["id"], err)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._life.changed.wait(), PUT_SECONDS)

    async def withdraw(self) -> None:
        """Gateways send it nothing new. Raises RedisDown."""
        await self._registry.remove(self._worker["id"])
        self._said(False)

    def _said(self, there: bool) -> None:
        if there is not self._there:
            self._there = there
            log.info(
                "worker %s is %s", self._worker["id"], "registered" if there else "not registered any more"
            )
